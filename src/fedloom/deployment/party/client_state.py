"""State that clients keep: whether a client that comes can go on where its hub is.

What a client has kept is of a round, as a hub's state is; and it counts for as long as the hub
accepted nothing later from that client. A client that died before it wrote down its last round has
to take its hub back to the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...core.errors import OutOfStepError, RefusedError
from ...core.topology import Client, title
from ...fabric.attempts import Held
from .past_rounds import Past


@dataclass
class KeptState:
    """At a hub: what those clients hold that cannot go on where it is."""

    past: Past
    held: dict[Client, tuple[Held, ...]] = field(default_factory=dict)

    def check(self, client: Client, held: tuple[Held, ...], round: int) -> None:
        """OutOfStepError where the hub has to go back for this client; RefusedError where that does
        not help."""
        self.held[client] = held
        if self._fits(client, round):
            del self.held[client]
            return
        newest = max((one.round for one in held), default=0)
        lacks = f"{title(client)} has its own state of round {newest}, and not of round {round}"
        if not self.offers(self.past.held):
            raise RefusedError(f"{lacks}, nor of any that can be gone back to: restore its folder")
        raise OutOfStepError(lacks)

    def offers(self, held: Iterable[Held]) -> tuple[Held, ...]:
        """Those that the hub's clients can go on from, too."""
        return tuple(one for one in held if all(self._fits(c, one.round) for c in self.held))

    def _fits(self, client: Client, round: int) -> bool:
        """Whether it has what it had when its hub accepted the last of it before this round."""
        last = self.past.accepted(client, round)
        line = self.past.line
        own = {0, *(one.round for one in self.held[client] if line.has(one))}
        return any(last < each <= round for each in own)
