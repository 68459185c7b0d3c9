"""Moves up: clients' values gathered by row, averaged, or collected.

Lazy values are computed chunk by chunk over the clients that answer, and added up as they come: the
copies of all clients' models are never resident together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ...core import tree
from ...core.errors import ProtocolError
from ...core.placed import AtClients, AtHubs, RowMap, Rows
from ...core.rng import Floats, Ints
from ...fabric.kinds import Kind
from ...fabric.local_work import argument
from ...fabric.schedule import Bools
from ...models.task import SiloAsked
from ..execute.described import Mean
from ..execute.workers import quietly
from .axis import Chunk, Shares, added, fixed, some
from .axis import means as means_of
from .booking import Booking
from .client_axis import Lazy
from .minibatch import Segments
from .plan import Silos
from .pooling import one_for_all, rows_given, rows_of, rows_of_mean


class Reduce(Booking):
    """Over the clients of each silo."""

    _finite: AtHubs[Any] | None
    _gathered: AtHubs[Any] | None
    _means: list[tuple[Silos, list[Any], Any]]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._finite = None  # the last mean of all silos
        self._gathered = None  # the last rows
        self._means = []  # the last: one by one, and stacked

    def gather(self, kind: Kind, value: AtClients[Tensor], where: RowMap) -> AtHubs[Rows]:
        assert isinstance(where, Segments)
        lazy = self._lazy(value, kind.name)
        gathered: dict[str, Rows] = {}
        _, moment = self._next_up(kind)
        there = self._shrink(moment, lazy.has)
        for silos, rows, mask in self._rows(kind, there & (where.rows > 0), lazy, where):
            if not tree.is_finite(rows):
                for chunk in self._one_by_one(there & (where.rows > 0)):
                    own = where.real(chunk, lazy.value(chunk))
                    self._check_finite(kind, self._client(chunk), own)
            masks = [where.everything] * len(silos) if mask is None else mask.split(where.size)
            each = map(Rows, rows.split(where.size), masks)
            gathered.update(zip(silos, each, strict=True))
        self._book_rows("up", kind, there, where, masked=False)
        self._gathered = AtHubs({silo: gathered[silo] for silo in self.scope}, self.scope)
        return self._gathered

    def _rows(
        self, kind: Kind, there: Bools, lazy: Lazy, where: Segments
    ) -> Iterator[tuple[Silos, Tensor, Tensor | None]]:
        """The minibatches of silos, one after the other, and which rows came (None: all)."""
        one_step = where.steps == 1  # rows will be taken at once for it, too
        taken_apart = one_step or self.executors.sums_some  # steps take no rows in chunks
        worth = taken_apart or all(self._cost[silo].many(where.size) for silo in self.scope)
        pooled = self._pooling and worth and rows_of(lazy) is where
        for lot in (
            self._pools(there, lazy, where, lazy.value)
            if pooled
            else self._lots(there, lazy.value, lazy)
        ):
            silo = lot.silos[0]
            shape, dtype = self._spec(kind, silo)

            def checked(rows: Tensor, silo: str = silo) -> Tensor:
                self._check_rows(kind, silo, rows, silo)
                return rows

            def empty(size: int, shape: Any = shape, dtype: torch.dtype = dtype) -> Tensor:
                return torch.empty(size, *shape, dtype=dtype, device=self.device)

            size = len(lot.silos) * where.size
            try:
                rows, mask = where.joined(lot.chunks, lazy.value, size, checked, empty)
            except ValueError as problem:
                raise ProtocolError(f"round {self.round}: {kind}: {problem}") from None
            yield lot.silos, rows, mask

    def mean(
        self,
        kind: Kind,
        value: AtClients[Any],
        *,
        otherwise: AtHubs[Any],
        weight: AtClients[Tensor] | None = None,
    ) -> AtHubs[Any]:
        lazy = self._lazy(value, kind.name)
        weights = None if weight is None else self._lazy(weight, kind.name)
        _, moment = self._next_up(kind)
        before = {silo: argument(otherwise, silo, kind.name) for silo in self.scope}
        there = self._shrink(moment, lazy.has if weights is None else lazy.has & weights.has)
        means = dict(before)
        self._means = []
        for silos, total, parts in self._sums(kind, there, lazy, weights, before):
            stacked = means_of(total, parts, before[silos[0]])
            if not tree.is_finite(stacked):
                for chunk in self._one_by_one(there):
                    self._check_finite(kind, self._client(chunk), lazy.value(chunk).tree)
                self._check_finite(kind, silos[0], stacked)
            each = tree.unbound(stacked, len(silos))
            means.update(
                {j: a for j, a, any_ in zip(silos, each, some(parts), strict=True) if any_}
            )
            self._means.append((silos, each, stacked))
        more = 0 if weights is None else self.dtype.itemsize
        self._book_all("up", kind, there, {j: self._size(j, a) + more for j, a in before.items()})
        result = AtHubs(means, self.scope)
        if all(means[silo] is not old for silo, old in before.items()):
            self._finite = result
        return result

    def check_state(self, state: Any) -> None:
        """But for a mean that was just checked."""
        if any(value is not self._finite for value in state):
            super().check_state(state)

    def _sums(
        self,
        kind: Kind,
        there: Bools,
        lazy: Lazy,
        weights: Lazy | None,
        like: Mapping[str, Any],
    ) -> Iterator[tuple[Silos, Any, Shares]]:
        """Sums over the clients of silos, each tensor with a first axis for these silos."""
        pool = rows_of_mean(lazy) if self._pooling and weights is None else None
        if pool is None and self.executors.sums_some:
            computed = self._computed(kind, there, lazy, weights, like)
            if computed is not None:
                yield from computed
                return
        times: Ints | None = None
        if pool is None:
            there, times = self._spared(there, lazy, weights)

        def sums(chunk: Chunk) -> tuple[Any, Shares]:
            if sums not in chunk.memo:
                total = self._sum_of(kind, chunk, lazy, weights, like, times)
                if not chunk.kept:  # what its clients have is not held any longer
                    chunk.memo.clear()
                chunk.memo[sums] = total
            return chunk.memo[sums]

        light = all(self._cost[silo].adds_little for silo in self.scope)
        work = sums if light else lazy.value  # large sums are not held beside each other
        if pool is not None:
            lots = self._pools(there, lazy, pool, work, mean=True)
        else:
            lots = self._lots(there, work, lazy, weights)
        for lot in lots:
            total: tuple[Any, Shares] | None = None
            for chunk in lot.chunks:
                more = sums(chunk)
                if total is not None:
                    with quietly():
                        more = tree.add(total[0], more[0]), added(total[1], more[1])
                total = more
            if total is not None:
                yield lot.silos, *total

    def _computed(
        self, kind: Kind, there: Bools, lazy: Lazy, weights: Lazy | None, like: Mapping[str, Any]
    ) -> list[tuple[Silos, Any, Shares]] | None:
        """The same, by an executor that computes sums; None if it cannot."""
        there, times = self._spared(self._here(there), lazy, weights)
        lots: list[tuple[Silos, Any, Shares]] = []
        left = list(self._plan.together(self.scope))[::-1]
        while left:
            silos = left.pop()
            chunk = self._axis.chunk(silos, self._axis.places(there, silos))
            if not len(chunk.places):
                continue
            try:
                mean = Mean(silos, chunk.places, chunk.of, times, lazy, weights)
                sums = self.executors.sums(mean)
            except SiloAsked:
                left += [(silo,) for silo in silos[::-1]]
                continue
            if sums is None:
                return None
            at = int(sums.weights.argmin())
            for silo in silos:
                lowest = float(sums.weights[at])
                self._check_mean(kind, self._client(chunk, at), sums.form, lowest, like[silo])
            lots.append((silos, sums.total, sums.parts))
        return lots

    def _spared(self, there: Bools, lazy: Lazy, weights: Lazy | None) -> tuple[Bools, Ints | None]:
        """Without those for whom another client computes the same, and for how many each does."""
        where = rows_given(lazy) if self._pooling else None
        if where is None or (weights is not None and rows_given(weights) is not where):
            return there, None
        there = self._here(there)
        idle = there & (where.rows == 0)
        if not idle.any():
            return there, None
        spared, times = one_for_all(self._axis, idle, self.scope)
        return there & ~spared, times

    def _sum_of(
        self,
        kind: Kind,
        chunk: Chunk,
        lazy: Lazy,
        weights: Lazy | None,
        like: Mapping[str, Any],
        times: Ints | Floats | None,
    ) -> tuple[Any, Shares]:
        """Weighted sums over each silo's clients of one chunk, and the sums of the weights.
        `times`: how many clients each of them stands for."""
        value = lazy.value(chunk)
        form, w, lowest, at = tree.signature(value.tree, int(value.stacked)), None, 1.0, 0
        if weights is not None:
            w = weights.value(chunk).numbers(len(chunk.places)).to(self.dtype).double()
            if bool((w < 0).any()):
                at = int(w.argmin())
                lowest = float(w[at])
        elif chunk.pool is not None and chunk.pool.parts is not None:
            times = chunk.pool.parts
        for silo in chunk.silos:
            self._check_mean(kind, self._client(chunk, at), form, lowest, like[silo])
        if times is not None and chunk.pool is None:
            times = times[chunk.places]
        if times is not None and (times != 1).any():
            more = fixed(times, self.device).double()
            w = more if w is None else w * more
        part = value.sums(w, chunk.counts, self.limits.lone_sum)
        if w is None:
            return part, chunk.counts
        return part, torch.stack([of_silo.sum() for of_silo in w.split(list(chunk.counts))])

    def _collect_clients(self, kind: Kind, value: AtClients[Any]) -> AtHubs[dict[str, Any]]:
        lazy = self._lazy(value, kind.name)
        collected: dict[str, dict[str, Any]] = {silo: {} for silo in self.scope}
        _, moment = self._next_up(kind)
        there = self._shrink(moment, lazy.has)
        came = self._everyones(self._forced(lazy, there))
        for place, value_k in came.items():
            client = self._axis.client(place)
            self._check_finite(kind, client, value_k)
            collected[client.silo][client.name] = value_k
        for silo in self.scope:
            self._book("up", kind, silo, there[self._axis.span[silo]], self._bytes(silo, came))
        return AtHubs(collected, self.scope)
