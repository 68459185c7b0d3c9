"""The rows of a silo's clients at once, where their work is the same as one client's with all rows.

As long as clients have the same weights, embeddings of rows are those of one model. And a mean over
clients of one step from these weights is a step along one weighted sum of rows' losses. Local work
says of itself that this holds for it (`by_rows`, `in_shares`); then each silo is computed as if it
had one client, in pieces of rows where these are many: no padding, and no weights of clients.

Clients without rows in a minibatch all do the same: one of a silo does it for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ...core.rng import Ints
from ...fabric.schedule import Bools
from .axis import Axis, Chunk, Pool
from .client_axis import Lazy, Mapped, Parts, Same
from .minibatch import Scattered, Segments, Taken


def rows_of_mean(lazy: Lazy) -> Segments | None:
    """The minibatch that clients' work is about, if its mean is that of a silo's rows at once."""
    if not isinstance(lazy, Mapped) or lazy.steps != 1:
        return None
    return _rows(lazy, _by_rows) if getattr(lazy.f, "in_shares", False) else None


def rows_of(lazy: Lazy) -> Segments | None:
    """The minibatch that clients' work is about, if it may be done for a silo's rows at once."""
    return _rows(lazy, _by_rows) if isinstance(lazy, Mapped) and _by_rows(lazy) else None


def rows_given(lazy: Lazy) -> Segments | None:
    """The minibatch of clients' work that is given rows of it and what is the same for all of a
    silo's clients: it gives the same at all of those who have no rows."""
    return _rows(lazy, lambda work: True) if isinstance(lazy, Mapped) else None


def _by_rows(work: Mapped) -> bool:
    return getattr(work.f, "by_rows", False)


def _rows(work: Mapped, holds: Callable[[Mapped], bool]) -> Segments | None:
    """The one minibatch that work is given rows of, perhaps by other work for which that holds."""
    found: Segments | None = None
    for value in work.values:
        if isinstance(value, Same | Parts):
            continue
        if isinstance(value, Taken | Scattered):
            where: Segments | None = value.segments
        else:
            where = _rows(value, holds) if isinstance(value, Mapped) and holds(value) else None
        if where is None or where is not (found or where):
            return None
        found = where
    return found


class Pools:
    """Of some silos, the rows of those who are there, in pieces. `mean`: for a mean of clients."""

    def __init__(
        self, axis: Axis, where: Segments, there: Bools, silos: tuple[str, ...], mean: bool
    ):
        self._axis, self._where, self._silos, self._mean = axis, where, silos, mean
        self._clients = [int(there[axis.span[silo]].sum()) for silo in silos]
        if where.size and there.all():
            self._here = np.ones((len(silos), where.size), dtype=bool)
            self._at = [np.arange(where.size)] * len(silos)
            return
        self._here = there[where.owners(silos)]
        self._at = [np.flatnonzero(mine) for mine in self._here]
        if mean:  # some may be there who have none of the rows: any one, which counts nothing
            self._at = [at if len(at) else np.zeros(1, dtype=np.int64) for at in self._at]

    @property
    def rows(self) -> int:
        return sum(map(len, self._at))

    def chunks(self, pieces: int) -> Iterator[Chunk]:
        at, parts = np.stack(self._at), None
        places = np.array([self._axis.span[silo].start for silo in self._silos])
        pieces = max(1, min(pieces, at.shape[1]))
        cuts = np.array_split(at, pieces, axis=1) if pieces > 1 else [at]
        cuts = [cut for cut in cuts if cut.size]
        whole = None
        if self._mean:
            if not any(self._clients):
                return
            parts = np.array(self._clients) / len(cuts)
            whole = self._here / np.where(parts, parts, 1).astype(self._where.numbers)[:, None]
        for cut in cuts:
            pool = Pool(np.ascontiguousarray(cut), parts, whole)
            yield Chunk(self._silos, places, (1,) * len(places), pool=pool)


def one_for_all(axis: Axis, idle: Bools, silos: Iterable[str]) -> tuple[Bools, Ints]:
    """Of clients who would all compute the same, those who need not, because the first of their
    silo does; and how many each client stands for."""
    spared, times = idle.copy(), np.ones(axis.size, dtype=np.int64)
    for silo in silos:
        mine = np.flatnonzero(idle[axis.span[silo]])
        if len(mine):
            first = axis.span[silo].start + mine[0]
            spared[first], times[first] = False, len(mine)
    return spared, times
