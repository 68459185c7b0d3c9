"""Attempts: after a rollback, a run goes on as a new attempt at its rounds.

A run is one attempt, unless hubs have to roll back. Then a new attempt begins at the latest round
whose state all hubs still have. Every checkpoint and every message names its attempt, so that
nothing from before a rollback is mistaken for something after it.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta


class ResumePoint(NamedTuple):
    """A state that a party can resume from: after `round` rounds, the last of them in this
    attempt."""

    round: int
    attempt: Annotated[str, Meta(max_length=64)]


START = ResumePoint(0, "")  # every party can begin again


def tag(run: str, attempt: str) -> str:
    """The run and the attempt that a message belongs to, as text."""
    return f"{run}/{attempt}" if attempt else run


class AttemptHistory(NamedTuple):
    """The history of attempts. `begun`: each attempt and the round that it began at. `number`: of
    the current attempt; the first is 0."""

    number: int = 0
    begun: Annotated[tuple[ResumePoint, ...], Meta(max_length=1 << 12)] = ()

    @property
    def attempt(self) -> str:
        """The name of the current attempt."""
        return self.begun[-1].attempt if self.begun else ""

    def of(self, round: int) -> ResumePoint:
        """The state after `round` rounds of this history."""
        before = [start.attempt for start in self.begun if start.round < round]
        return ResumePoint(round, before[-1] if before else "")

    def has(self, state: ResumePoint) -> bool:
        return self.of(state.round) == state

    def back_to(self, round: int, attempt: str, number: int) -> AttemptHistory:
        """The history of a new attempt, after `round` rounds of this one."""
        earlier = tuple(start for start in self.begun if start.round < round)
        return AttemptHistory(number, (*earlier, ResumePoint(round, attempt)))
