"""What the world decides: who is there in a round, and who answers a move.

A hub is the only authority on its roster. The roster is full (or what the schedule says) at the
start of a round and only shrinks within it: whoever does not answer an upward move is out until the
next round. What was decided is recorded, and the record alone replays the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import SettingError
from ..rng import Streams

Bools = npt.NDArray[np.bool_]

START = "start"


class Moment(NamedTuple):
    """An upward move, named so that adding a verb elsewhere does not rename it; START, 0 is the
    beginning of the round."""

    round: int
    kind: str = START
    occurrence: int = 0


class Schedule(Protocol):
    """Says who answers at a moment. Clients are given in the silo's order."""

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools: ...


@dataclass(frozen=True)
class Everyone:
    """All clients, always."""

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        return np.ones(len(clients), dtype=bool)


@dataclass(frozen=True)
class Drawn:
    """Each client is there in a round with probability `presence`, drawn from `seed`."""

    presence: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.presence <= 1:
            raise SettingError(f"presence must be between 0 and 1, not {self.presence}")

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        stream = Streams(self.seed).common("presence", moment.round, silo)
        return stream.uniform_for(tuple(clients)) < self.presence


@dataclass(frozen=True)
class Scripted:
    """Everyone answers, except where the script names who does not: {moment: {silo: names}}."""

    absent: Mapping[Moment, Mapping[str, Iterable[str]]]

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        out = set(self.absent.get(moment, {}).get(silo, ()))
        return np.array([name not in out for name in clients], dtype=bool)


@dataclass
class Recorded:
    """Who answered, as it happened, where that was not everyone. Also a schedule: it replays."""

    who: dict[Moment, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    rounds: int = 0

    def note(self, moment: Moment, silo: str, clients: Sequence[str], answered: Bools) -> None:
        self.rounds = max(self.rounds, moment.round + 1)
        if not answered.all():
            names = tuple(name for name, there in zip(clients, answered, strict=True) if there)
            self.who.setdefault(moment, {})[silo] = names

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        if moment.round >= self.rounds:
            raise SettingError(
                f"the recorded schedule ends after {self.rounds} rounds; round {moment.round} was "
                "asked for"
            )
        names = self.who.get(moment, {}).get(silo)
        if names is None:
            return np.ones(len(clients), dtype=bool)
        there = set(names)
        return np.array([name in there for name in clients], dtype=bool)

    @staticmethod
    def merged(records: Iterable[Recorded]) -> Recorded:
        """One record from those of several parties."""
        both = Recorded()
        for record in records:
            both.rounds = max(both.rounds, record.rounds)
            for moment, silos in record.who.items():
                both.who.setdefault(moment, {}).update(silos)
        return both

    def to_json(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "answered": [[*moment, silos] for moment, silos in sorted(self.who.items())],
        }

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Recorded:
        who = {
            Moment(*moment): {silo: tuple(names) for silo, names in silos.items()}
            for *moment, silos in saved["answered"]
        }
        return Recorded(who, saved["rounds"])
