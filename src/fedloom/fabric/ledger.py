"""Who sent how much: messages and bytes by round, tier, direction and kind.

A hub books both directions of its silo (sent down, accepted up); between hubs and the server, the
sender books. So the ledgers of all parties add up to the ledger of a simulation. Bytes are payload:
tensors as they are, one byte for each entry of a mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .kinds import Direction, Kind, Tier


class Entry(NamedTuple):
    """One line of the ledger."""

    round: int
    tier: Tier
    direction: Direction
    kind: str
    messages: int
    bytes: int


class Line(NamedTuple):
    tier: Tier
    direction: Direction
    kind: str


class Ledger:
    """Bookings of one or more parties."""

    def __init__(self) -> None:
        self._rounds: dict[int, Mapping[Line, tuple[int, int]]] = {}
        self._open: dict[Line, tuple[int, int]] = {}
        self._round = -1
        self._next = 0  # after all that are booked

    def begin(self, round: int) -> None:
        """What follows is of this round; an earlier try at it, or at later ones, is forgotten."""
        if round < self._next:
            self._rounds = {r: lines for r, lines in self._rounds.items() if r < round}
        self._round, self._next, self._open = round, round + 1, {}
        self._rounds[round] = self._open

    def book(self, tier: Tier, direction: Direction, kind: Kind, messages: int, bytes: int) -> None:
        if messages:
            line = Line(tier, direction, kind.name)
            before = self._open.get(line, (0, 0))
            self._open[line] = (before[0] + messages, before[1] + bytes)

    def end(self) -> None:
        """The round is over. Rounds that cost the same share one record."""
        last = self._rounds.get(self._round - 1)
        if last == self._open:
            self._rounds[self._round] = last

    def __iter__(self) -> Iterator[Entry]:
        for round, lines in sorted(self._rounds.items()):
            for line, (messages, size) in sorted(lines.items()):
                yield Entry(round, *line, messages, size)

    def of_round(self, round: int) -> dict[Line, tuple[int, int]]:
        """(tier, direction, kind) -> (messages, bytes) of one round."""
        return dict(self._rounds.get(round, {}))

    def lines(self) -> dict[Line, tuple[int, int]]:
        """(tier, direction, kind) -> (messages, bytes) of all rounds."""
        alike = Counter(map(id, self._rounds.values()))  # rounds that cost the same share a record
        found: dict[Line, tuple[int, int]] = {}
        for lines in {id(lines): lines for lines in self._rounds.values()}.values():
            times = alike[id(lines)]
            for line, (messages, size) in lines.items():
                before = found.get(line, (0, 0))
                found[line] = (before[0] + times * messages, before[1] + times * size)
        return dict(sorted(found.items()))

    def by_tier(self) -> dict[str, int]:
        """Bytes so far, of each tier."""
        found = {"bottom": 0, "top": 0}
        for line, (_, size) in self.lines().items():
            found[line.tier] += size
        return found

    def total(self, tier: Tier | None = None) -> int:
        """Bytes so far, of one tier or of both."""
        each = self.by_tier()
        return sum(each.values()) if tier is None else each[tier]

    @staticmethod
    def merged(ledgers: Iterable[Ledger]) -> Ledger:
        """The ledger of several parties together."""
        messages: Counter[tuple[int, Line]] = Counter()
        sizes: Counter[tuple[int, Line]] = Counter()
        for ledger in ledgers:
            for entry in ledger:
                where = (entry.round, Line(entry.tier, entry.direction, entry.kind))
                messages[where] += entry.messages
                sizes[where] += entry.bytes
        return Ledger.of(
            Entry(round, *line, count, sizes[round, line])
            for (round, line), count in messages.items()
        )

    def to_json(self) -> list[Any]:
        """[first round, last round, lines] for each stretch of rounds that cost the same."""
        stretches: list[Any] = []
        for round, lines in sorted(self._rounds.items()):
            told = [[*line, *cost] for line, cost in sorted(lines.items())]
            if stretches and stretches[-1][1:] == [round - 1, told]:
                stretches[-1][1] = round
            else:
                stretches.append([round, round, told])
        return stretches

    @staticmethod
    def from_json(stretches: Iterable[Any]) -> Ledger:
        ledger = Ledger()
        for first, last, told in stretches:
            lines = {Line(*line): (messages, size) for *line, messages, size in told}
            ledger._rounds.update(dict.fromkeys(range(first, last + 1), lines))
        ledger._next = max(ledger._rounds, default=-1) + 1
        return ledger

    @staticmethod
    def of(entries: Iterable[Entry]) -> Ledger:
        """A ledger with these entries."""
        rounds: dict[int, dict[Line, tuple[int, int]]] = {}
        for entry in entries:
            line = Line(entry.tier, entry.direction, entry.kind)
            rounds.setdefault(entry.round, {})[line] = (entry.messages, entry.bytes)
        ledger = Ledger()
        ledger._rounds = dict(rounds)
        ledger._next = max(rounds, default=-1) + 1
        return ledger
