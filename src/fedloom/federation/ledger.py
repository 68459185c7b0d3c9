"""Who sent how much: messages and bytes by round, tier, direction and kind.

A hub books both directions of its silo (sent down, accepted up); between hubs and the server, the
sender books. So the ledgers of all parties add up to the ledger of a simulation. Bytes are payload:
tensors as they are, one byte for each entry of a mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .messages import Direction, Kind, Tier


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
    """Bookings of one or more parties. Rounds that cost the same share one record."""

    def __init__(self) -> None:
        self._rounds: dict[int, dict[Line, tuple[int, int]]] = {}
        self._last: dict[Line, tuple[int, int]] = {}

    def book(
        self,
        round: int,
        tier: Tier,
        direction: Direction,
        kind: Kind,
        messages: int,
        bytes: int,
    ) -> None:
        if messages:
            lines = self._rounds.setdefault(round, {})
            line = Line(tier, direction, kind.name)
            before = lines.get(line, (0, 0))
            lines[line] = (before[0] + messages, before[1] + bytes)

    def close(self, round: int) -> None:
        """The round is over: a run of equal rounds keeps one copy."""
        lines = self._rounds.get(round)
        if lines is not None and lines == self._last:
            self._rounds[round] = self._last
        elif lines is not None:
            self._last = lines

    def __iter__(self) -> Iterator[Entry]:
        for round, lines in sorted(self._rounds.items()):
            for line, (messages, size) in sorted(lines.items()):
                yield Entry(round, *line, messages, size)

    def of_round(self, round: int) -> dict[Line, tuple[int, int]]:
        """(tier, direction, kind) -> (messages, bytes) of one round."""
        return dict(self._rounds.get(round, {}))

    def total(self, tier: Tier | None = None) -> int:
        """Bytes so far, of one tier or of both."""
        return sum(entry.bytes for entry in self if tier in (None, entry.tier))

    @staticmethod
    def merged(ledgers: Iterable[Ledger]) -> Ledger:
        """The ledger of several parties together."""
        both = Ledger()
        messages: Counter[tuple[int, Line]] = Counter()
        sizes: Counter[tuple[int, Line]] = Counter()
        for ledger in ledgers:
            for entry in ledger:
                where = (entry.round, Line(entry.tier, entry.direction, entry.kind))
                messages[where] += entry.messages
                sizes[where] += entry.bytes
        for (round, line), count in messages.items():
            both._rounds.setdefault(round, {})[line] = (count, sizes[round, line])
        return both
