"""Attempts: a run that had to go back goes on as another attempt at its rounds.

A run is one attempt from its start to its end, unless hubs have to go back: then another begins,
with the round that all of them still hold. Every checkpoint and every message is of an attempt, by
its name; so nothing that was made or said before they went back is taken for what came after.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta


class Held(NamedTuple):
    """What a party can go on from: its state after so many rounds, the last of them made in an
    attempt."""

    round: int
    attempt: Annotated[str, Meta(max_length=64)]


START = Held(0, "")  # every party can begin anew


def tag(run: str, attempt: str) -> str:
    """What a message says that it is of: a run, and an attempt at it."""
    return f"{run}/{attempt}" if attempt else run


class Line(NamedTuple):
    """How the rounds so far came about: the attempts that they were made in, by the round each
    began with. `number`: of the attempt that is going on; the first is 0."""

    number: int = 0
    begun: Annotated[tuple[Held, ...], Meta(max_length=1 << 12)] = ()

    @property
    def attempt(self) -> str:
        """The name of the attempt that is going on."""
        return self.begun[-1].attempt if self.begun else ""

    def of(self, round: int) -> Held:
        """The state after so many rounds, as this line made it."""
        before = [one.attempt for one in self.begun if one.round < round]
        return Held(round, before[-1] if before else "")

    def has(self, held: Held) -> bool:
        return self.of(held.round) == held

    def back_to(self, round: int, attempt: str, number: int) -> Line:
        """Another attempt, after so many rounds of this line."""
        kept = tuple(one for one in self.begun if one.round < round)
        return Line(number, (*kept, Held(round, attempt)))
