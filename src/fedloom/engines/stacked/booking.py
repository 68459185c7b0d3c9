"""What moves of the stacked engine cost: messages and bytes of many clients at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core import tree
from ...core.rng import Ints
from ...fabric.kinds import Direction, Kind
from ...fabric.schedule import Bools
from .clients import Clients
from .minibatch import Segments


class Booking(Clients):
    """Moves inside silos, in the ledger and on the clock."""

    _sizes: dict[str, tuple[Any, int]]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._sizes = {}

    def _book_all(
        self, direction: Direction, kind: Kind, there: Bools, size: Mapping[str, int]
    ) -> None:
        """A move inside every silo. `size`: bytes of every message in a silo."""
        for silo in self.scope:
            self._book(direction, kind, silo, there[self._axis.span[silo]], size[silo])

    def _book_rows(
        self, direction: Direction, kind: Kind, there: Bools, where: Segments, masked: bool
    ) -> None:
        """A move of each client's rows; time follows the rows or the clients, whichever are
        fewer."""
        each = [self._spec(kind, silo) for silo in self.scope]
        sizes = [math.prod(shape) * dtype.itemsize + masked for shape, dtype in each]
        if self.clock is not None:
            for silo, size in zip(self.scope, sizes, strict=True):
                span = self._axis.span[silo]
                self._book(direction, kind, silo, there[span], where.rows[span] * size)
            return
        if self._axis.size > where.size:
            rows = np.count_nonzero(there[where.owners(self.scope)], axis=1).tolist()
        else:
            spans = [self._axis.span[silo] for silo in self.scope]
            rows = [int(where.rows[span] @ there[span]) for span in spans]
        total = sum(n * size for n, size in zip(rows, sizes, strict=True))
        self.ledger.book("bottom", direction, kind, int(np.count_nonzero(there)), total)

    def _size(self, silo: str, value: Any) -> int:
        """Bytes of a value, which is often what was asked about last."""
        last, size = self._sizes.get(silo, (None, 0))
        if last is not value or value is None:
            size = tree.nbytes(value)
            self._sizes[silo] = value, size
        return size

    def _bytes(self, silo: str, each: Mapping[int, Any]) -> Ints:
        """Bytes of each of the silo's clients' value."""
        span = self._axis.span[silo]
        sizes = np.zeros(span.stop - span.start, dtype=np.int64)
        for place, mine in each.items():
            if span.start <= place < span.stop:
                sizes[place - span.start] = tree.nbytes(mine)
        return sizes
