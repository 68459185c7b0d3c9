"""Schedules: which clients are present in a round, who answers a move, who visits the master when.

Only a hub decides on its roster. At the start of a round, the roster is full (or as the schedule
says). Within the round it only shrinks: a client that does not answer an upward move is out until
the next round. Dropouts are recorded, and so is the order of visits to the master of an
asynchronous algorithm. The record is enough to replay the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..core.checked import Checked
from ..core.errors import DataError, SettingError, nearest
from ..core.rng import Streams
from ..core.settings import Share

Bools = npt.NDArray[np.bool_]

START = "start"


class Moment(NamedTuple):
    """An upward move, by round, kind and occurrence. START, 0 is the start of the round. Verbs
    added elsewhere in a round do not change the name."""

    round: int
    kind: str = START
    occurrence: int = 0


class Turn(NamedTuple):
    """One answer of the master of an asynchronous algorithm. `visitors`: the silos that get it, in
    this order; `again`: the silos that the master called for fresh embeddings first."""

    visitors: tuple[str, ...]
    again: tuple[str, ...] = ()


class RollbackRecord(NamedTuple):
    """Hubs rolled back to the state after `round` rounds. `newest`: the newest round that each hub
    had a state of."""

    round: int
    newest: dict[str, int]


@runtime_checkable
class Schedule(Protocol):
    """Decides which clients answer at a moment. Clients are in the silo's order."""

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools: ...

    def check(self, clients: Mapping[str, Sequence[str]]) -> None:
        """Refuse a schedule that names parties who do not exist. `clients`: {silo: names}."""
        ...


@dataclass(frozen=True)
class Everyone:
    """All clients, always."""

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        return np.ones(len(clients), dtype=bool)

    def check(self, clients: Mapping[str, Sequence[str]]) -> None:
        """Always right."""


@dataclass(frozen=True)
class Drawn(Checked):
    """Each client is present in a round with probability `presence`, drawn from `seed`."""

    presence: Share
    seed: int = 0

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        stream = Streams(self.seed).common("presence", moment.round, silo)
        return stream.uniform_for(tuple(clients)) < self.presence

    def check(self, clients: Mapping[str, Sequence[str]]) -> None:
        """Always right."""


Absences = Mapping[Moment, Mapping[str, Sequence[str]]]


@dataclass(frozen=True)
class Scripted:
    """All clients answer, except those named in {moment: {silo: names}}."""

    absent: Absences

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        return _without(clients, self.absent.get(moment, {}).get(silo, ()))

    def check(self, clients: Mapping[str, Sequence[str]]) -> None:
        for moment, silos in self.absent.items():
            for silo, names in silos.items():
                if silo not in clients:
                    raise SettingError(
                        f"schedule: {moment} names silo {silo!r}, which does not exist"
                    )
                for name in set(names) - set(clients[silo]):
                    raise SettingError(
                        f"schedule: {moment} names client {silo}/{name}, which does not exist"
                    )


@dataclass
class Recorded:
    """The record of a run, and a schedule that replays it.

    `dropped`: {moment: {silo: names of clients that dropped out}}; `visits`: {round: turns};
    `back`: rollbacks. Rounds are recorded as they were computed last."""

    dropped: dict[Moment, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    rounds: int = 0
    visits: dict[int, list[Turn]] = field(default_factory=dict)
    back: tuple[RollbackRecord, ...] = ()

    def begin(self, round: int) -> None:
        """Begin a round. Earlier records of it, or of later rounds, are dropped (a rollback)."""
        if round < self.rounds:
            self.dropped = {m: who for m, who in self.dropped.items() if m.round < round}
            self.visits = {r: turns for r, turns in self.visits.items() if r < round}
        self.rounds = round + 1

    def visited(self, round: int, number: int, turn: Turn) -> None:
        """Record an answer of the master; answers with higher numbers are dropped."""
        self.visits.setdefault(round, [])[number:] = [turn]

    def order(self, round: int, turns: int, group: int) -> list[tuple[str, ...]]:
        """The visitors of each turn of a round: `turns` turns of `group` visitors."""
        visitors = [turn.visitors for turn in self.visits.get(round, [])]
        if len(visitors) != turns or any(len(set(who)) != group for who in visitors):
            sizes = ", ".join(str(len(who)) for who in visitors) or "none"
            raise SettingError(
                f"round {round}: the algorithm has {turns} turns of {group} different visitors; "
                f"recorded are {sizes}"
            )
        return visitors

    def of_round(self, round: int) -> Recorded:
        """Dropouts and visits of one round."""
        dropped = {moment: who for moment, who in self.dropped.items() if moment.round == round}
        visits = {round: [*self.visits[round]]} if round in self.visits else {}
        return Recorded(dropped, round + 1, visits)

    def note(
        self, moment: Moment, silo: str, clients: Sequence[str], before: Bools, after: Bools
    ) -> None:
        """Record who dropped out: the roster before and after a moment."""
        gone = tuple(clients[place] for place in np.flatnonzero(before & ~after).tolist())
        if gone:
            self.dropped.setdefault(moment, {})[silo] = gone

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        if moment.round >= self.rounds:
            raise SettingError(
                f"the recorded schedule ends after {self.rounds} rounds; round {moment.round} was "
                "asked for"
            )
        return _without(clients, self.dropped.get(moment, {}).get(silo, ()))

    def check(self, clients: Mapping[str, Sequence[str]]) -> None:
        Scripted(self.dropped).check(clients)
        for round, turns in self.visits.items():
            for silo in {silo for turn in turns for silo in turn.visitors} - set(clients):
                raise SettingError(
                    f"schedule: round {round} has a visit of silo {silo!r}, which does not exist"
                    f"{nearest(str(silo), clients)}"
                )

    @staticmethod
    def read(path: Path) -> Recorded:
        """Read schedule.json; a DataError where it is invalid."""
        try:
            return Recorded.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise DataError(f"{path} is not a recorded schedule: {problem!r}") from None

    @staticmethod
    def merged(records: Iterable[Recorded]) -> Recorded:
        """The records of several parties together."""
        both = Recorded()
        for record in records:
            both.rounds = max(both.rounds, record.rounds)
            for moment, silos in record.dropped.items():
                both.dropped.setdefault(moment, {}).update(silos)
            both.visits.update({round: [*turns] for round, turns in record.visits.items()})
            both.back = max(both.back, record.back, key=len)
        return both

    def to_json(self) -> dict[str, Any]:
        saved: dict[str, Any] = {
            "rounds": self.rounds,
            "dropped": [[*moment, silos] for moment, silos in sorted(self.dropped.items())],
        }
        if self.visits:
            saved["visits"] = [[round, *turns] for round, turns in sorted(self.visits.items())]
        if self.back:
            saved["back"] = [[*rollback] for rollback in self.back]
        return saved

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Recorded:
        dropped = {
            Moment(*moment): {silo: tuple(names) for silo, names in silos.items()}
            for *moment, silos in saved["dropped"]
        }
        visits = {
            round: [Turn(tuple(visitors), tuple(again)) for visitors, again in turns]
            for round, *turns in saved.get("visits", ())
        }
        back = tuple(
            RollbackRecord(int(round), dict(newest)) for round, newest in saved.get("back", ())
        )
        return Recorded(dropped, saved["rounds"], visits, back)


@dataclass(frozen=True)
class Resumed:
    """A schedule that repeats what has already happened in round `again.rounds - 1`: dropouts and
    visits that the hub had announced before its process was killed."""

    schedule: Schedule
    again: Recorded

    def has_begun(self, round: int) -> bool:
        """Whether the round had begun: then its roster is decided, whoever is gone by now."""
        return round == self.again.rounds - 1

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        there = self.schedule.answers(moment, silo, clients)
        if not self.has_begun(moment.round):
            return there
        return there & self.again.answers(moment, silo, clients)

    def visitors(self, round: int, number: int) -> tuple[str, ...] | None:
        """The visitors of a turn, if they were decided."""
        turns = self.again.visits.get(round, [])
        return turns[number].visitors if number < len(turns) else None

    def check(self, clients: Mapping[str, Sequence[str]]) -> None:
        self.schedule.check(clients)
        self.again.check(clients)


def planned(schedule: Schedule) -> Schedule:
    """The schedule without what has already happened."""
    return schedule.schedule if isinstance(schedule, Resumed) else schedule


def _without(clients: Sequence[str], out: Sequence[str]) -> Bools:
    if not out:
        return np.ones(len(clients), dtype=bool)
    gone = set(out)
    return np.array([name not in gone for name in clients], dtype=bool)
