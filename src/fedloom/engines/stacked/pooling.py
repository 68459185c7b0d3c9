"""Pooling: computes a silo's rows at once where its clients' work is the same as that of one client
with all rows.

As long as clients have the same weights, embeddings of rows are those of one model. And a mean over
clients after one step from these weights is one step along a weighted sum of the rows' losses.
Local work declares that this holds for it (`by_rows`, `in_shares`). Then each silo is computed as
if it had one client, in pieces if it has many rows: without padding, and without weights for each
client.

Clients without rows in a minibatch all compute the same, so one client of a silo does it for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ...core.rng import Ints
from ...fabric.schedule import Bools
from .axis import Axis, Chunk, PooledRows
from .lazy import LazyValue, LazyWork, SharedValue, TaskParts
from .minibatch import ClientBatches, MinibatchRows, ScatteredRows


def rows_of_mean(lazy: LazyValue) -> MinibatchRows | None:
    """The minibatch of clients' work, if its mean can be computed from a silo's rows at once."""
    if not isinstance(lazy, LazyWork) or lazy.steps != 1 or _mixes_rows(lazy):
        return None
    return _rows(lazy, _by_rows) if getattr(lazy.f, "in_shares", False) else None


def rows_of(lazy: LazyValue) -> MinibatchRows | None:
    """The minibatch of clients' work, if it can be computed for a silo's rows at once."""
    return _rows(lazy, _by_rows) if isinstance(lazy, LazyWork) and _by_rows(lazy) else None


def rows_given(lazy: LazyValue) -> MinibatchRows | None:
    """The minibatch of clients' work whose arguments are rows of it or shared by all of a silo's
    clients: it is the same for all clients without rows."""
    return _rows(lazy, lambda work: True) if isinstance(lazy, LazyWork) else None


def _by_rows(work: LazyWork) -> bool:
    if getattr(work.f, "by_rows_unless_mixed", False):
        return not _mixes_rows(work)
    return getattr(work.f, "by_rows", False)


def _mixes_rows(work: LazyWork) -> bool:
    """Whether a block among the arguments mixes a client's rows in training."""
    return any(value.mixes_rows for value in work.values)


def _rows(work: LazyWork, holds: Callable[[LazyWork], bool]) -> MinibatchRows | None:
    """The only minibatch among the work's arguments, also through other work for which `holds` is
    true."""
    minibatch_rows: MinibatchRows | None = None
    for value in work.values:
        if isinstance(value, SharedValue | TaskParts):
            continue
        if isinstance(value, ClientBatches | ScatteredRows):
            where: MinibatchRows | None = value.minibatch_rows
        else:
            where = _rows(value, holds) if isinstance(value, LazyWork) and holds(value) else None
        if where is None or where is not (minibatch_rows or where):
            return None
        minibatch_rows = where
    return minibatch_rows


class Pooling:
    """The rows of the present clients of some silos, in pieces. `mean`: for a mean over clients."""

    def __init__(
        self, axis: Axis, where: MinibatchRows, present: Bools, silos: tuple[str, ...], mean: bool
    ):
        self._axis, self._where, self._silos, self._mean = axis, where, silos, mean
        self._clients = [int(present[axis.span[silo]].sum()) for silo in silos]
        if where.size and present.all():
            self._is_present = np.ones((len(silos), where.size), dtype=bool)
            self._at = [np.arange(where.size)] * len(silos)
            return
        self._is_present = present[where.owners(silos)]
        self._at = [np.flatnonzero(rows) for rows in self._is_present]
        if mean:  # clients without rows may be present: take any row, with weight 0
            self._at = [at if len(at) else np.zeros(1, dtype=np.int64) for at in self._at]

    @property
    def rows(self) -> int:
        return sum(map(len, self._at))

    def chunks(self, pieces: int) -> Iterator[Chunk]:
        at, clients = np.stack(self._at), None
        places = np.array([self._axis.span[silo].start for silo in self._silos])
        pieces = max(1, min(pieces, at.shape[1]))
        cuts = np.array_split(at, pieces, axis=1) if pieces > 1 else [at]
        cuts = [cut for cut in cuts if cut.size]
        weights = None
        if self._mean:
            if not any(self._clients):
                return
            clients = np.array(self._clients) / len(cuts)
            weights = (
                self._is_present
                / np.where(clients, clients, 1).astype(self._where.numbers)[:, None]
            )
        for cut in cuts:
            rows = PooledRows(np.ascontiguousarray(cut), clients, weights)
            yield Chunk(self._silos, places, (1,) * len(places), pool=rows)


def first_for_all(axis: Axis, idle: Bools, silos: Iterable[str]) -> tuple[Bools, Ints]:
    """Of clients that would all compute the same: all but the first of each silo, and how many
    clients each place stands for."""
    duplicates, times = idle.copy(), np.ones(axis.size, dtype=np.int64)
    for silo in silos:
        places = np.flatnonzero(idle[axis.span[silo]])
        if len(places):
            first = axis.span[silo].start + places[0]
            duplicates[first], times[first] = False, len(places)
    return duplicates, times
