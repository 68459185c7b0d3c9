"""Where a party is in its run, for all its links; and whether it and another can go on together.

Hubs of one attempt (federation/attempts.py) can, those of different ones cannot: they leave their
attempts and agree on another. Meanwhile they are in none. A client is in the attempt of its hub,
and begins anew when its hub does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..core.errors import OutOfStepError
from ..core.topology import Client, Party, title
from ..fabric.attempts import Held, Line


class Greeting(Protocol):
    """What a party says of where it is."""

    boot: str
    line: Line | None
    agreeing: bool
    held: tuple[Held, ...]


Joining = Callable[[Client, tuple[Held, ...], int], None]  # and rounds done


class NotYetError(ConnectionError):
    """The other will come, and not as it is now."""


@dataclass
class Position:
    """`line`: the attempt, and those before it; none: a client that takes its hub's. `agreeing`: a
    hub that has left it. `round`: rounds done. `held`: what the party could go on from. `late`:
    processes of hubs that have agreed on this attempt, and may not know it yet."""

    line: Line | None = field(default_factory=Line)
    agreeing: bool = False
    round: int = -1
    held: tuple[Held, ...] = ()
    late: frozenset[str] = frozenset()
    joining: Joining = lambda client, held, round: None

    def meet(self, me: Party, peer: Party, hello: Greeting) -> None:
        """NotYetError where the other will come to where we are, OutOfStepError where we cannot
        stay there."""
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
