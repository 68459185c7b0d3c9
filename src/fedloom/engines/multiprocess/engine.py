"""The stacked engine over several processes of one owner (torchrun).

Every rank has all data, runs the same round(), and ends it with the same values at hubs, the same
ledger and the same record. Only clients' work is divided: each client has one rank that computes
it, for the whole run. In a move up, ranks add up the results of their clients. Clients' own values
stay at their rank until somebody reads them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core import tree
from ...core.errors import ProtocolError
from ...core.placed import AtClients
from ...core.rng import Ints
from ...fabric.kinds import Kind
from ...fabric.schedule import Bools
from ..stacked.axis import Axis, Chunk, WeightSums
from ..stacked.engine import StackedEngine
from ..stacked.lazy import LazyValue
from ..stacked.minibatch import MinibatchRows
from ..stacked.plan import Silos
from ..stacked.sizing import ChunkSizing
from .parcels import packed, unpacked
from .ranks import Ranks

INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SpreadEngine(StackedEngine):
    """`ranks`: the processes. All other settings are those of the stacked engine."""

    def __init__(self, *args: Any, ranks: Ranks, **options: Any):
        super().__init__(*args, **options)
        self._ranks = ranks
        rows = np.bincount(self._owner.reshape(-1), minlength=self._axis.size)
        self.own_clients = assign_ranks(self._axis, rows, self._sizing, ranks.size) == ranks.rank

    def __str__(self) -> str:
        return f"{super().__str__()}; over {self._ranks}"

    def fail(self, problem: BaseException) -> None:
        self._ranks.tell(problem)

    def _at_move(self, what: object) -> str:
        return f"round {self.round}, move {self.now.move}: {what}"

    def check_state(self, state: Any) -> None:
        """Also check that all ranks have the same state: each does the work of hubs."""
        super().check_state(state)
        at_hubs = [v.held() for v in state._asdict().values() if not isinstance(v, AtClients)]
        if not self._ranks.same(self._at_move("the state"), checksum(at_hubs)):
            raise ProtocolError(
                f"round {self.round}: hubs have different values at different ranks, which must be "
                "machines of one kind, with one version of torch"
            )

    # What this rank computes

    def _computed_here(self, present: Bools) -> Bools:
        return present & self.own_clients

    def _single_clients(self, present: Bools) -> Iterator[Chunk]:
        """Yields clients one by one to find one; other ranks wait here for its rank."""
        yield from super()._single_clients(present & self.own_clients)
        self._ranks.numbers(self._at_move("looking for a client"))

    def hold(self, value: AtClients[Any]) -> AtClients[Any]:
        values = super().hold(value)
        assert isinstance(values, LazyValue)
        values.has = self._lazy(value, "hold").has & self._present()
        return values

    def keep(self, new: AtClients[Any], old: AtClients[Any]) -> AtClients[Any]:
        values = super().keep(new, old)
        assert isinstance(values, LazyValue)
        after, before = self._lazy(new, "keep"), self._lazy(old, "keep")
        values.has = before.has | (after.has & self._present())
        return values

    # Results of all ranks

    def _rows(
        self, kind: Kind, present: Bools, lazy: LazyValue, where: MinibatchRows
    ) -> Iterator[tuple[Silos, Tensor, Tensor | None]]:
        """Each row has one client, so ranks add zeros to it."""
        by_silo: dict[str, tuple[Tensor, Tensor]] = {}
        for silos, rows, mask in super()._rows(kind, present, lazy, where):
            masks = [where.everything] * len(silos) if mask is None else mask.split(where.size)
            by_silo.update(zip(silos, zip(rows.split(where.size), masks, strict=True), strict=True))
        flat = [part for silo in self.scope for part in by_silo[silo]]
        totals = iter(self._totals(self._at_move(kind), flat))
        for silo in self.scope:
            rows, mask = by_silo[silo]
            yield (silo,), next(totals).to(rows), next(totals).to(mask)

    def _sums(
        self,
        kind: Kind,
        present: Bools,
        lazy: LazyValue,
        weights: LazyValue | None,
        like: Mapping[str, Any],
    ) -> Iterator[tuple[Silos, Any, WeightSums]]:
        parts = dict.fromkeys(self.scope, 0.0)
        forms = {silo: tree.apart(like[silo]) for silo in self.scope}
        sums = {silo: list(map(_zeros, tensors)) for silo, (tensors, _) in forms.items()}
        for silos, total, shares in super()._sums(kind, present, lazy, weights, like):
            for at, silo in enumerate(silos):
                parts[silo], sums[silo] = float(shares[at]), [a[at] for a in tree.tensors(total)]
        share = torch.tensor([*parts.values()], dtype=torch.float64, device=self.device)
        flat = [share, *(a for silo in self.scope for a in sums[silo])]
        share, *totals = self._totals(self._at_move(kind), flat)
        rest = iter(totals)
        for silo, part in zip(self.scope, share.tolist(), strict=True):
            tensors, form = forms[silo]
            yield (silo,), tree.joined(form, [next(rest)[None] for _ in tensors]), [part]

    def _totals(self, at: str, tensors: list[Tensor]) -> list[Tensor]:
        """Totals over ranks of many tensors at once, in a type that has room for all."""
        dtype = reduce(torch.promote_types, (a.dtype for a in tensors))
        total = self._ranks.total(at, torch.cat([a.flatten().to(dtype) for a in tensors]))
        parts = total.split([a.numel() for a in tensors])
        return [part.reshape(a.shape) for part, a in zip(parts, tensors, strict=True)]

    def _from_all_ranks(self, own_values: dict[int, Any]) -> dict[int, Any]:
        all_values: dict[int, Any] = {}
        for parcel in self._ranks.exchange(self._at_move("clients' values"), packed(own_values)):
            all_values |= unpacked(parcel, self.device)
        return dict(sorted(all_values.items()))


def assign_ranks(axis: Axis, rows: Ints, sizing: Mapping[str, ChunkSizing], ranks: int) -> Ints:
    """The rank of each client. A silo's clients are assigned from the largest on, each to the rank
    with the least work of this silo and, among equals, of all silos. So ranks are equally busy in a
    round, and in a visit of one silo."""
    rank_of, loads = np.zeros(axis.size, dtype=np.int64), [0] * ranks
    for silo, span in axis.span.items():
        sizes = rows[span] * sizing[silo].row + sizing[silo].weights
        heap = [(0, load, rank) for rank, load in enumerate(loads)]
        heapq.heapify(heap)
        for place in np.argsort(-sizes, kind="stable").tolist():
            of_silo, _, rank = heapq.heappop(heap)
            rank_of[span.start + place] = rank
            loads[rank] += int(sizes[place])
            heapq.heappush(heap, (of_silo + int(sizes[place]), loads[rank], rank))
    return rank_of


def _zeros(a: Tensor) -> Tensor:
    return torch.zeros_like(a, dtype=torch.float64)


def checksum(values: Any) -> int:
    """A checksum of tensors that almost always differs if a bit does."""
    total = 0
    for number, a in enumerate(tree.tensors(values), 1):
        total += number * int(a.detach().contiguous().view(INTEGER_OF_SIZE[a.element_size()]).sum())
    return total % 2**62
