"""State that clients keep: whether a client that connects can go on where its hub is.

A client's state is of a round, as a hub's is. It counts as long as the hub accepted nothing later
from that client. A client that died before its last round was on disk takes its hub back to the
round before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...core.errors import OutOfStepError, RefusedError
from ...core.topology import Client, title
from ...fabric.attempts import ResumePoint
from .past_rounds import PastRounds


@dataclass
class ClientState:
    """At a hub: the rounds that those clients hold which cannot go on where it is."""

    past: PastRounds
    rounds_of: dict[Client, tuple[ResumePoint, ...]] = field(default_factory=dict)

    def check(self, client: Client, rounds: tuple[ResumePoint, ...], round: int) -> None:
        """OutOfStepError where the hub has to go back for this client; RefusedError where that does
        not help."""
        self.rounds_of[client] = rounds
        if self._fits(client, round):
            del self.rounds_of[client]
            return
        newest = max((state.round for state in rounds), default=0)
        lacks = f"{title(client)} has its own state of round {newest}, and not of round {round}"
        if not self.offers(self.past.rounds):
            raise RefusedError(f"{lacks}, nor of any that can be gone back to: restore its folder")
        raise OutOfStepError(lacks)

    def offers(self, rounds: Iterable[ResumePoint]) -> tuple[ResumePoint, ...]:
        """Those of these rounds that the hub's clients can go on from, too."""
        return tuple(
            state for state in rounds if all(self._fits(c, state.round) for c in self.rounds_of)
        )

    def _fits(self, client: Client, round: int) -> bool:
        """Whether it has the state from which its hub accepted the last move before this round."""
        last = self.past.accepted(client, round)
        line = self.past.line
        own = {0, *(state.round for state in self.rounds_of[client] if line.has(state))}
        return any(last < number <= round for number in own)
