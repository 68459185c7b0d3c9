"""Moves up: gather, mean and collect.

Lazy values are computed chunk by chunk over the clients that answer, and added up at once, so that
the models of all clients are never in memory together.
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
from ..execute.described import MeanRequest
from ..execute.workers import quietly
from .axis import Chunk, WeightSums, added_weights, have_weight, sent_to
from .axis import means as means_of
from .booking import Booking
from .lazy import LazyValue
from .minibatch import MinibatchRows
from .plan import Silos
from .pooling import first_for_all, rows_given, rows_of, rows_of_mean


class Reduce(Booking):
    """Reduces the values of each silo's clients."""

    _finite: AtHubs[Any] | None
    _gathered: AtHubs[Any] | None
    _means: list[tuple[Silos, list[Any], Any]]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._finite = None  # the last mean of all silos, which was checked
        self._gathered = None  # the last gathered rows
        self._means = []  # the last means: of each silo, and stacked

    def gather(self, kind: Kind, value: AtClients[Tensor], where: RowMap) -> AtHubs[Rows]:
        assert isinstance(where, MinibatchRows)
        lazy = self._lazy(value, kind.name)
        gathered: dict[str, Rows] = {}
        _, moment = self._next_up(kind)
        present = self._shrink_roster(moment, lazy.has)
        for silos, rows, mask in self._rows(kind, present & (where.rows > 0), lazy, where):
            if not tree.is_finite(rows):
                for chunk in self._single_clients(present & (where.rows > 0)):
                    rows_of_client = where.real(chunk, lazy.value(chunk))
                    self._check_finite(kind, self._client(chunk), rows_of_client)
            masks = [where.everything] * len(silos) if mask is None else mask.split(where.size)
            rows_of_silos = map(Rows, rows.split(where.size), masks)
            gathered.update(zip(silos, rows_of_silos, strict=True))
        self._book_rows("up", kind, present, where, masked=False)
        self._gathered = AtHubs({silo: gathered[silo] for silo in self.scope}, self.scope)
        return self._gathered

    def _rows(
        self, kind: Kind, present: Bools, lazy: LazyValue, where: MinibatchRows
    ) -> Iterator[tuple[Silos, Tensor, Tensor | None]]:
        """The concatenated minibatches of silos, and a mask of the rows that came (None: all)."""
        one_step = where.steps == 1  # then its rows are pooled, too
        rows_not_reused = one_step or self.executors.sums_some  # the steps need no rows in chunks
        is_worth_it = rows_not_reused or all(
            self._sizing[silo].is_worth_pooling(where.size) for silo in self.scope
        )
        pooled = self._pooling and is_worth_it and rows_of(lazy) is where
        for group in (
            self._pooled_groups(present, lazy, where, lazy.value)
            if pooled
            else self._chunk_groups(present, lazy.value, lazy)
        ):
            silo = group.silos[0]
            shape, dtype = self._spec(kind, silo)

            def checked(rows: Tensor, silo: str = silo) -> Tensor:
                self._check_rows(kind, silo, rows, silo)
                return rows

            def empty(size: int, shape: Any = shape, dtype: torch.dtype = dtype) -> Tensor:
                return torch.empty(size, *shape, dtype=dtype, device=self.device)

            size = len(group.silos) * where.size
            try:
                rows, mask = where.joined(group.chunks, lazy.value, size, checked, empty)
            except ValueError as problem:
                raise ProtocolError(f"round {self.round}: {kind}: {problem}") from None
            yield group.silos, rows, mask

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
        present = self._shrink_roster(
            moment, lazy.has if weights is None else lazy.has & weights.has
        )
        means = dict(before)
        self._means = []
        for silos, total, weight_sums in self._sums(kind, present, lazy, weights, before):
            stacked = means_of(total, weight_sums, before[silos[0]])
            if not tree.is_finite(stacked):
                for chunk in self._single_clients(present):
                    self._check_finite(kind, self._client(chunk), lazy.value(chunk).tree)
                self._check_finite(kind, silos[0], stacked)
            own_means = tree.unbound(stacked, len(silos))
            means.update(
                {
                    j: a
                    for j, a, any_ in zip(silos, own_means, have_weight(weight_sums), strict=True)
                    if any_
                }
            )
            self._means.append((silos, own_means, stacked))
        more = 0 if weights is None else self.dtype.itemsize
        self._book_all("up", kind, present, {j: self._size(j, a) + more for j, a in before.items()})
        result = AtHubs(means, self.scope)
        if all(means[silo] is not old for silo, old in before.items()):
            self._finite = result
        return result

    def _is_checked(self, value: AtHubs[Any]) -> bool:
        """A mean was just checked."""
        return value is self._finite

    def _sums(
        self,
        kind: Kind,
        present: Bools,
        lazy: LazyValue,
        weights: LazyValue | None,
        like: Mapping[str, Any],
    ) -> Iterator[tuple[Silos, Any, WeightSums]]:
        """Sums over the clients of silos; each tensor has a first axis for the silos."""
        pool = rows_of_mean(lazy) if self._pooling and weights is None else None
        if pool is None and self.executors.sums_some:
            computed = self._sums_by_executor(kind, present, lazy, weights, like)
            if computed is not None:
                yield from computed
                return
        times: Ints | None = None
        if pool is None:
            present, times = self._without_duplicates(present, lazy, weights)

        def sums(chunk: Chunk) -> tuple[Any, WeightSums]:
            if sums not in chunk.memo:
                total = self._chunk_sums(kind, chunk, lazy, weights, like, times)
                if not chunk.kept:  # free the clients' values
                    chunk.memo.clear()
                chunk.memo[sums] = total
            return chunk.memo[sums]

        small_sums = all(self._sizing[silo].has_small_sum for silo in self.scope)
        # large sums of several chunks are not kept at once
        work = sums if small_sums else lazy.value
        if pool is not None:
            chunk_groups = self._pooled_groups(present, lazy, pool, work, mean=True)
        else:
            chunk_groups = self._chunk_groups(present, work, lazy, weights)
        for group in chunk_groups:
            total: tuple[Any, WeightSums] | None = None
            for chunk in group.chunks:
                chunk_total = sums(chunk)
                if total is not None:
                    with quietly():
                        chunk_total = (
                            tree.add(total[0], chunk_total[0]),
                            added_weights(total[1], chunk_total[1]),
                        )
                total = chunk_total
            if total is not None:
                yield group.silos, *total

    def _sums_by_executor(
        self,
        kind: Kind,
        present: Bools,
        lazy: LazyValue,
        weights: LazyValue | None,
        like: Mapping[str, Any],
    ) -> list[tuple[Silos, Any, WeightSums]] | None:
        """The same by an executor that computes whole sums; None if none can."""
        present, times = self._without_duplicates(self._computed_here(present), lazy, weights)
        sums_by_silos: list[tuple[Silos, Any, WeightSums]] = []
        remaining = list(self._plan.together(self.scope))[::-1]
        while remaining:
            silos = remaining.pop()
            chunk = self._axis.chunk(silos, self._axis.places(present, silos))
            if not len(chunk.places):
                continue
            try:
                mean = MeanRequest(silos, chunk.places, chunk.of, times, lazy, weights)
                sums = self.executors.sums(mean)
            except SiloAsked:
                remaining += [(silo,) for silo in silos[::-1]]
                continue
            if sums is None:
                return None
            at = int(sums.weights.argmin())
            for silo in silos:
                lowest = float(sums.weights[at])
                self._check_mean(kind, self._client(chunk, at), sums.form, lowest, like[silo])
            sums_by_silos.append((silos, sums.total, sums.parts))
        return sums_by_silos

    def _without_duplicates(
        self, present: Bools, lazy: LazyValue, weights: LazyValue | None
    ) -> tuple[Bools, Ints | None]:
        """The clients to compute, without those that would compute the same as another; and how
        many clients each stands for."""
        where = rows_given(lazy) if self._pooling else None
        if where is None or (weights is not None and rows_given(weights) is not where):
            return present, None
        present = self._computed_here(present)
        idle = present & (where.rows == 0)
        if not idle.any():
            return present, None
        duplicates, times = first_for_all(self._axis, idle, self.scope)
        return present & ~duplicates, times

    def _chunk_sums(
        self,
        kind: Kind,
        chunk: Chunk,
        lazy: LazyValue,
        weights: LazyValue | None,
        like: Mapping[str, Any],
        times: Ints | Floats | None,
    ) -> tuple[Any, WeightSums]:
        """Weighted sums over each silo's clients in a chunk, and the sums of the weights. `times`:
        how many clients each of them stands for."""
        value = lazy.value(chunk)
        form = tree.signature(value.tree, int(value.stacked))
        client_weights, lowest, at = None, 1.0, 0
        if weights is not None:
            client_weights = weights.value(chunk).numbers(len(chunk.places)).to(self.dtype).double()
            if bool((client_weights < 0).any()):
                at = int(client_weights.argmin())
                lowest = float(client_weights[at])
        elif chunk.pool is not None and chunk.pool.clients is not None:
            times = chunk.pool.clients
        for silo in chunk.silos:
            self._check_mean(kind, self._client(chunk, at), form, lowest, like[silo])
        if times is not None and chunk.pool is None:
            times = times[chunk.places]
        if times is not None and (times != 1).any():
            more = sent_to(times, self.device).double()
            client_weights = more if client_weights is None else client_weights * more
        part = value.sums(client_weights, chunk.counts, self.limits.lone_sum)
        if client_weights is None:
            return part, chunk.counts
        return part, torch.stack(
            [of_silo.sum() for of_silo in client_weights.split(list(chunk.counts))]
        )

    def _collect_clients(self, kind: Kind, value: AtClients[Any]) -> AtHubs[dict[str, Any]]:
        lazy = self._lazy(value, kind.name)
        collected: dict[str, dict[str, Any]] = {silo: {} for silo in self.scope}
        _, moment = self._next_up(kind)
        present = self._shrink_roster(moment, lazy.has)
        values = self._from_all_ranks(self._values_by_place(lazy, present))
        for place, value_k in values.items():
            client = self._axis.client(place)
            self._check_finite(kind, client, value_k)
            collected[client.silo][client.name] = value_k
        for silo in self.scope:
            self._book(
                "up",
                kind,
                silo,
                present[self._axis.span[silo]],
                self._bytes(silo, values),
            )
        return AtHubs(collected, self.scope)
