"""The position of a party in its run, and whether two parties can continue together.

Hubs in the same attempt (fabric/attempts.py) can continue. Hubs in different attempts cannot: they
leave their attempts and agree on a new one; meanwhile they are in none. A client is in the attempt
of its hub, and starts again when its hub does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ...core.errors import OutOfStepError
from ...core.topology import Client, Party, title
from ...fabric.attempts import AttemptHistory, ResumePoint


class PeerPosition(Protocol):
    """The position of a peer, from its Hello."""

    boot: str
    line: AttemptHistory | None
    agreeing: bool
    held: tuple[ResumePoint, ...]


Joining = Callable[
    [Client, tuple[ResumePoint, ...], int], None
]  # the client, its states, our rounds


class NotYetError(ConnectionError):
    """The peer is not in our attempt yet, but will be: try again."""


@dataclass
class Position:
    """`line`: the history of attempts; none: a client takes its hub's. `agreeing`: a hub that has
    left its attempt. `round`: rounds done. `held`: states that the party could resume from. `late`:
    processes of hubs that have agreed on this attempt, but may not know it yet."""

    line: AttemptHistory | None = field(default_factory=AttemptHistory)
    agreeing: bool = False
    round: int = -1
    held: tuple[ResumePoint, ...] = ()
    late: frozenset[str] = frozenset()
    joining: Joining = lambda client, held, round: None

    def meet(self, me: Party, peer: Party, hello: PeerPosition) -> None:
        """NotYetError where the peer will come to our attempt, OutOfStepError where we have to
        leave it."""
        same = hello.line == self.line and not hello.agreeing
        if isinstance(peer, Client):
            if hello.line is not None and (not same or self.agreeing):
                raise NotYetError(f"{title(peer)} is in an attempt that is over")
            if hello.line is None and not self.agreeing:
                self.joining(peer, hello.held, self.round)
        elif isinstance(me, Client):
            if self.line is not None and not same:
                raise OutOfStepError(f"{title(peer)} goes on from another round")
        elif self.agreeing:
            if not hello.agreeing:
                raise NotYetError(f"{title(peer)} does not know yet that it has to go back")
        elif hello.agreeing and hello.boot in self.late:
            raise NotYetError(f"{title(peer)} does not know yet where to go on from")
        elif not same:
            what = "has to go back" if hello.agreeing else "is in another attempt"
            raise OutOfStepError(f"{title(peer)} {what}")
