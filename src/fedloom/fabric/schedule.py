"""What the world decides: who is there in a round, who answers a move, who visits whom when.

A hub is the only authority on its roster. The roster is full (or what the schedule says) at the
start of a round and only shrinks within it: whoever does not answer an upward move is out until the
next round. Who dropped out, and when, is recorded, and so is the order of visits to the master of
an asynchronous algorithm; the record alone replays the run.
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
    """An upward move, named so that adding a verb elsewhere does not rename it; START, 0 is the
    beginning of the round."""

    round: int
    kind: str = START
    occurrence: int = 0


class Turn(NamedTuple):
    """One answer of the master of an asynchronous algorithm: the silos that came for it, in this
    order, and those that it called for fresh embeddings before."""

    visitors: tuple[str, ...]
    again: tuple[str, ...] = ()


class Back(NamedTuple):
    """Hubs went back to where they were after so many rounds. `held`: what each had, by the newest
    round that it held."""

    round: int
    held: dict[str, int]


@runtime_checkable
class Schedule(Protocol):
    """Says who answers at a moment. Clients are given in the silo's order."""

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools: ...

    def check(self, clients: Mapping[str, Sequence[str]]) -> None:
        """Refuse a schedule that speaks of parties who are not there: {silo: names}."""
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
    """Each client is there in a round with probability `presence`, drawn from `seed`."""

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
    """Everyone answers, except where the script names who does not: {moment: {silo: names}}."""

    absent: Absences

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        return _without(clients, self.absent.get(moment, {}).get(silo, ()))

    def check(self, clients: Mapping[str, Sequence[str]]) -> None:
        for moment, silos in self.absent.items():
            for silo, names in silos.items():
                if silo not in clients:
                    raise SettingError(
                        f"schedule: {moment} names silo {silo!r}, which is not there"
                    )
                for name in set(names) - set(clients[silo]):
                    raise SettingError(f"schedule: {moment} names client {silo}/{name}, not there")


@dataclass
class Recorded:
    """Who dropped out, and when, as it happened: {moment: {silo: names}}; who visited the master,
    {round: turns}; and how often hubs went back (rounds are recorded as they were made last). Also
    a schedule: it replays the rounds it recorded."""

    dropped: dict[Moment, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    rounds: int = 0
    visits: dict[int, list[Turn]] = field(default_factory=dict)
    back: tuple[Back, ...] = ()

    def begin(self, round: int) -> None:
        """What follows is of this round; an earlier try at it, or at later ones, is forgotten."""
        if round < self.rounds:
            self.dropped = {m: who for m, who in self.dropped.items() if m.round < round}
            self.visits = {r: turns for r, turns in self.visits.items() if r < round}
        self.rounds = round + 1

    def visited(self, round: int, number: int, turn: Turn) -> None:
        """An answer of the master; those of higher numbers are still to come."""
        self.visits.setdefault(round, [])[number:] = [turn]

    def order(self, round: int, turns: int, group: int) -> list[tuple[str, ...]]:
        """Who came in each turn of a round, for an algorithm that has so many of so many."""
        found = [turn.visitors for turn in self.visits.get(round, [])]
        if len(found) != turns or any(len(set(who)) != group for who in found):
            told = ", ".join(str(len(who)) for who in found) or "none"
            raise SettingError(
                f"round {round}: the algorithm has {turns} turns of {group} different visitors; "
                f"recorded are {told}"
            )
        return found

    def of_round(self, round: int) -> Recorded:
        """Who dropped out, and who visited, in one round."""
        dropped = {moment: who for moment, who in self.dropped.items() if moment.round == round}
        visits = {round: [*self.visits[round]]} if round in self.visits else {}
        return Recorded(dropped, round + 1, visits)

    def note(
        self, moment: Moment, silo: str, clients: Sequence[str], before: Bools, after: Bools
    ) -> None:
        """The roster before and after a moment."""
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
                    f"schedule: round {round} has a visit of silo {silo!r}, which is not there"
                    f"{nearest(str(silo), clients)}"
                )

    @staticmethod
    def read(path: Path) -> Recorded:
        """From a file; refuse what is none."""
        try:
            return Recorded.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise DataError(f"{path} is no recorded schedule: {problem!r}") from None

    @staticmethod
    def merged(records: Iterable[Recorded]) -> Recorded:
        """One record from those of several parties."""
        both = Recorded()
        for record in records:
            both.rounds = max(both.rounds, record.rounds)
            for moment, silos in record.dropped.items():
                both.dropped.setdefault(moment, {}).update(silos)
            both.visits.update({round: [*turns] for round, turns in record.visits.items()})
            both.back = max(both.back, record.back, key=len)
        return both

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "rounds": self.rounds,
            "dropped": [[*moment, silos] for moment, silos in sorted(self.dropped.items())],
        }
        if self.visits:
            told["visits"] = [[round, *turns] for round, turns in sorted(self.visits.items())]
        if self.back:
            told["back"] = [[*one] for one in self.back]
        return told

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
        back = tuple(Back(int(round), dict(held)) for round, held in saved.get("back", ()))
        return Recorded(dropped, saved["rounds"], visits, back)


@dataclass(frozen=True)
class Resumed:
    """A schedule in whose round `again.rounds - 1` some have dropped out already, or visited: what
    happened before the hub's process was killed, and was told to others, happens again."""

    schedule: Schedule
    again: Recorded

    def has_begun(self, round: int) -> bool:
        """Whether the round had begun: who takes part in it is decided, whoever is gone by now."""
        return round == self.again.rounds - 1

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        there = self.schedule.answers(moment, silo, clients)
        if not self.has_begun(moment.round):
            return there
        return there & self.again.answers(moment, silo, clients)

    def visitors(self, round: int, number: int) -> tuple[str, ...] | None:
        """Who visited in a turn, if that was decided."""
        turns = self.again.visits.get(round, [])
        return turns[number].visitors if number < len(turns) else None

    def check(self, clients: Mapping[str, Sequence[str]]) -> None:
        self.schedule.check(clients)
        self.again.check(clients)


def planned(schedule: Schedule) -> Schedule:
    """Without what has happened already."""
    return schedule.schedule if isinstance(schedule, Resumed) else schedule


def _without(clients: Sequence[str], out: Sequence[str]) -> Bools:
    if not out:
        return np.ones(len(clients), dtype=bool)
    gone = set(out)
    return np.array([name not in gone for name in clients], dtype=bool)
