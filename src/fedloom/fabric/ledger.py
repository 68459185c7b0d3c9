"""The ledger of traffic: messages and bytes by round, tier, direction and kind.

A hub books both directions of its silo (sent down, accepted up); between hubs and the server, the
sender books. So the ledgers of all parties add up to the ledger of a simulation. Bytes are payload:
the size of tensors, one byte for each entry of a mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .kinds import Direction, Kind, Tier


class LedgerEntry(NamedTuple):
    """Messages and bytes of a round, for one tier, direction and kind."""

    round: int
    tier: Tier
    direction: Direction
    kind: str
    messages: int
    bytes: int


class LedgerLine(NamedTuple):
    """What messages are added up by."""

    tier: Tier
    direction: Direction
    kind: str


class Ledger:
    """Traffic of one or more parties."""

    def __init__(self) -> None:
        self._rounds: dict[int, Mapping[LedgerLine, tuple[int, int]]] = {}
        self._open: dict[LedgerLine, tuple[int, int]] = {}
        self._round = -1
        self._next = 0  # the round after all booked ones

    def begin(self, round: int) -> None:
        """Begin a round. Earlier bookings of it, or of later rounds, are dropped (a rollback)."""
        if round < self._next:
            self._rounds = {r: lines for r, lines in self._rounds.items() if r < round}
        self._round, self._next, self._open = round, round + 1, {}
        self._rounds[round] = self._open

    def book(self, tier: Tier, direction: Direction, kind: Kind, messages: int, bytes: int) -> None:
        if messages:
            line = LedgerLine(tier, direction, kind.name)
            before = self._open.get(line, (0, 0))
            self._open[line] = (before[0] + messages, before[1] + bytes)

    def end(self) -> None:
        """End the round. A round with the same cost as the one before shares its record."""
        last = self._rounds.get(self._round - 1)
        if last == self._open:
            self._rounds[self._round] = last

    def __iter__(self) -> Iterator[LedgerEntry]:
        for round, lines in sorted(self._rounds.items()):
            for line, (messages, size) in sorted(lines.items()):
                yield LedgerEntry(round, *line, messages, size)

    def of_round(self, round: int) -> dict[LedgerLine, tuple[int, int]]:
        """(tier, direction, kind) -> (messages, bytes) of one round."""
        return dict(self._rounds.get(round, {}))

    def lines(self) -> dict[LedgerLine, tuple[int, int]]:
        """(tier, direction, kind) -> (messages, bytes) of all rounds."""
        alike = Counter(map(id, self._rounds.values()))  # rounds that cost the same share a record
        sums: dict[LedgerLine, tuple[int, int]] = {}
        for lines in {id(lines): lines for lines in self._rounds.values()}.values():
            times = alike[id(lines)]
            for line, (messages, size) in lines.items():
                before = sums.get(line, (0, 0))
                sums[line] = (before[0] + times * messages, before[1] + times * size)
        return dict(sorted(sums.items()))

    def by_tier(self) -> dict[str, int]:
        """Bytes of each tier so far."""
        sums = {"bottom": 0, "top": 0}
        for line, (_, size) in self.lines().items():
            sums[line.tier] += size
        return sums

    def total(self, tier: Tier | None = None) -> int:
        """Bytes so far, of one tier or of both."""
        sums = self.by_tier()
        return sum(sums.values()) if tier is None else sums[tier]

    @staticmethod
    def merged(ledgers: Iterable[Ledger]) -> Ledger:
        """The sum of the ledgers of several parties."""
        messages: Counter[tuple[int, LedgerLine]] = Counter()
        sizes: Counter[tuple[int, LedgerLine]] = Counter()
        for ledger in ledgers:
            for entry in ledger:
                where = (entry.round, LedgerLine(entry.tier, entry.direction, entry.kind))
                messages[where] += entry.messages
                sizes[where] += entry.bytes
        return Ledger.of(
            LedgerEntry(round, *line, count, sizes[round, line])
            for (round, line), count in messages.items()
        )

    def to_json(self) -> list[Any]:
        """[first round, last round, lines] for each series of rounds with the same cost."""
        stretches: list[Any] = []
        for round, lines in sorted(self._rounds.items()):
            rows = [[*line, *cost] for line, cost in sorted(lines.items())]
            if stretches and stretches[-1][1:] == [round - 1, rows]:
                stretches[-1][1] = round
            else:
                stretches.append([round, round, rows])
        return stretches

    @staticmethod
    def from_json(stretches: Iterable[Any]) -> Ledger:
        ledger = Ledger()
        for first, last, rows in stretches:
            lines = {LedgerLine(*line): (messages, size) for *line, messages, size in rows}
            ledger._rounds.update(dict.fromkeys(range(first, last + 1), lines))
        ledger._next = max(ledger._rounds, default=-1) + 1
        return ledger

    @staticmethod
    def of(entries: Iterable[LedgerEntry]) -> Ledger:
        """A ledger with these entries."""
        rounds: dict[int, dict[LedgerLine, tuple[int, int]]] = {}
        for entry in entries:
            line = LedgerLine(entry.tier, entry.direction, entry.kind)
            rounds.setdefault(entry.round, {})[line] = (entry.messages, entry.bytes)
        ledger = Ledger()
        ledger._rounds = dict(rounds)
        ledger._next = max(rounds, default=-1) + 1
        return ledger
