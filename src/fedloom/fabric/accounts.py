"""The accounts of an engine: its position in the run, the ledger, dropouts, how often rows were
released and, in some simulations, the clock."""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core.errors import PlacementError
from ..core.rng import Ints
from .kinds import Direction, Key, Kind
from .ledger import Ledger
from .releases import Releases
from .schedule import Bools, Moment, Recorded
from .simclock.clock import Clock, Crossing


@dataclass
class Now:
    """The position in the run; shared by all scopes of an engine."""

    round: int = 0
    move: int = 0
    last_up: dict[str, int] = field(default_factory=dict)  # silo -> move
    seen: Counter[str] = field(default_factory=Counter)
    draws: int = 0  # of noise


@dataclass
class Books:
    """The accounts of a run: the ledger, dropouts, how often rows were released and, in some
    simulations, the clock."""

    releases: Releases
    ledger: Ledger = field(default_factory=Ledger)
    record: Recorded = field(default_factory=Recorded)
    clock: Clock | None = None


class Accounts(ABC):
    """Numbers moves, and keeps the books."""

    scope: tuple[str, ...]

    def __init__(self, size: int, books: Books | None = None) -> None:
        self.take_over(books or Books(Releases(size)))
        self.now = Now()

    def take_over(self, books: Books) -> None:
        """Continue with these accounts."""
        self.releases, self.ledger, self.record = books.releases, books.ledger, books.record
        self.clock = books.clock

    @property
    def books(self) -> Books:
        """The accounts, for an engine that continues with them."""
        return Books(self.releases, self.ledger, self.record, self.clock)

    @property
    def round(self) -> int:
        return self.now.round

    def begin(self, round: int) -> None:
        """Begin a round: move numbers restart, rosters are full."""
        self.now.round, self.now.move, self.now.draws = round, 0, 0
        self.now.last_up.clear()
        self.now.seen.clear()
        self.ledger.begin(round)
        self.record.begin(round)
        if self.clock is not None:
            self.clock.begin(round)

    def end(self) -> None:
        """End the round at the parties hosted here."""
        self.ledger.end()
        if self.clock is not None:
            self.clock.end()

    def _next(self, kind: Kind) -> tuple[Key, Moment]:
        occurrence = self.now.seen[kind.name]
        self.now.seen[kind.name] += 1
        self.now.move += 1
        return Key(self.round, self.now.move), Moment(self.round, kind.name, occurrence)

    def _next_draw(self) -> tuple[int, int]:
        """The name of the next noise stream."""
        self.now.draws += 1
        return self.round, self.now.draws

    def _next_up(self, kind: Kind) -> tuple[Key, Moment]:
        key, moment = self._next(kind)
        self.now.last_up.update(dict.fromkeys(self.scope, key.move))
        return key, moment

    def _last_up(self, silo: str) -> Key:
        """The last upward move of a silo, on which `keep` depends."""
        if silo not in self.now.last_up:
            raise PlacementError(
                f"keep needs an upward move in silo {silo} earlier in the round: without one, its "
                "hub cannot say whose new state counts"
            )
        return Key(self.round, self.now.last_up[silo])

    def _crossed(self, sent: Sequence[Crossing]) -> None:
        if self.clock is not None:
            self.clock.across(sent)

    def _book(
        self, direction: Direction, kind: Kind, silo: str, there: Bools, size: int | Ints
    ) -> None:
        """Book a move inside a silo, of the clients that are present. `size`: bytes of each
        message, or an array of sizes by client."""
        count = int(np.count_nonzero(there))
        if not isinstance(size, int):
            total = int((size if count == len(there) else size[there]).sum())
        else:
            total = count * size
        self.ledger.book("bottom", direction, kind, count, total)
        if self.clock is not None and direction == "down":
            self.clock.down(silo, there, size)
        elif self.clock is not None:
            self.clock.up(silo, there, size)
