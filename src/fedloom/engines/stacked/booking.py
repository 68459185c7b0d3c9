"""Books moves of many clients at once: messages and bytes."""

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
from .minibatch import MinibatchRows


class Booking(Clients):
    """Books moves inside silos in the ledger and on the clock."""

    _sizes: dict[str, tuple[Any, int]]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._sizes = {}

    def _book_all(
        self, direction: Direction, kind: Kind, present: Bools, size: Mapping[str, int]
    ) -> None:
        """Book a move inside every silo. `size`: bytes of each message in a silo."""
        for silo in self.scope:
            self._book(direction, kind, silo, present[self._axis.span[silo]], size[silo])

    def _book_rows(
        self, direction: Direction, kind: Kind, present: Bools, where: MinibatchRows, masked: bool
    ) -> None:
        """Book a move of each client's rows. It takes time by the number of rows or clients,
        whichever is smaller."""
        specs = [self._spec(kind, silo) for silo in self.scope]
        sizes = [math.prod(shape) * dtype.itemsize + masked for shape, dtype in specs]
        if self.clock is not None:
            for silo, size in zip(self.scope, sizes, strict=True):
                span = self._axis.span[silo]
                self._book(direction, kind, silo, present[span], where.rows[span] * size)
            return
        if self._axis.size > where.size:
            rows = np.count_nonzero(present[where.owners(self.scope)], axis=1).tolist()
        else:
            spans = [self._axis.span[silo] for silo in self.scope]
            rows = [int(where.rows[span] @ present[span]) for span in spans]
        total = sum(n * size for n, size in zip(rows, sizes, strict=True))
        self.ledger.book("bottom", direction, kind, int(np.count_nonzero(present)), total)

    def _size(self, silo: str, value: Any) -> int:
        """Bytes of a value; the last one of each silo is remembered."""
        last, size = self._sizes.get(silo, (None, 0))
        if last is not value or value is None:
            size = tree.nbytes(value)
            self._sizes[silo] = value, size
        return size

    def _bytes(self, silo: str, by_place: Mapping[int, Any]) -> Ints:
        """Bytes of each of the silo's clients' value."""
        span = self._axis.span[silo]
        sizes = np.zeros(span.stop - span.start, dtype=np.int64)
        for place, value in by_place.items():
            if span.start <= place < span.stop:
                sizes[place - span.start] = tree.nbytes(value)
        return sizes
