"""The stacked engine over several processes of one owner (torchrun).

Every rank knows everything, runs the same round() and ends it with the same values at hubs, the
same ledger and the same record. Only the work of clients is divided: each client has a rank that
computes it, for the length of the run. Where a verb goes up, ranks add up what their clients bring;
what clients hold stays at their rank until somebody reads it.
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

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SpreadEngine(StackedEngine):
    """`ranks`: the processes; all else as for the stacked engine."""

    def __init__(self, *args: Any, ranks: Ranks, **options: Any):
        super().__init__(*args, **options)
        self._ranks = ranks
        rows = np.bincount(self._owner.reshape(-1), minlength=self._axis.size)
        self._mine = homes(self._axis, rows, self._sizing, ranks.size) == ranks.rank

    def __str__(self) -> str:
        return f"{super().__str__()}; over {self._ranks}"

    def fail(self, problem: BaseException) -> None:
        self._ranks.tell(problem)

    def _at_move(self, what: object) -> str:
        return f"round {self.round}, move {self.now.move}: {what}"

    def check_state(self, state: Any) -> None:
        """Also that it is the same everywhere: what hubs do is done by every rank."""
        super().check_state(state)
        at_hubs = [v.held() for v in state._asdict().values() if not isinstance(v, AtClients)]
        if not self._ranks.same(self._at_move("the state"), checksum(at_hubs)):
            raise ProtocolError(
                f"round {self.round}: hubs have different values at different ranks, which must be "
                "machines of one kind, with one version of torch"
            )

    # What is computed here

    def _computed_here(self, present: Bools) -> Bools:
        return present & self._mine

    def _single_clients(self, present: Bools) -> Iterator[Chunk]:
        """A client is looked for: whoever has it tells the others, who wait here for it."""
        yield from super()._single_clients(present & self._mine)
        self._ranks.numbers(self._at_move("looking for a client"))

    def hold(self, value: AtClients[Any]) -> AtClients[Any]:
        values = super().hold(value)
        assert isinstance(values, LazyValue)
        values.has = self._lazy(value, "hold").has & self._present()
        return values

    def keep(self, new: AtClients[Any], old: AtClients[Any]) -> AtClients[Any]:
        kept = super().keep(new, old)
        assert isinstance(kept, LazyValue)
        after, before = self._lazy(new, "keep"), self._lazy(old, "keep")
        kept.has = before.has | (after.has & self._present())
        return kept

    # What comes of it everywhere

    def _rows(
        self, kind: Kind, present: Bools, lazy: LazyValue, where: MinibatchRows
    ) -> Iterator[tuple[Silos, Tensor, Tensor | None]]:
        """A row has one client, so that what ranks add to it are zeros."""
        own: dict[str, tuple[Tensor, Tensor]] = {}
        for silos, rows, mask in super()._rows(kind, present, lazy, where):
            masks = [where.everything] * len(silos) if mask is None else mask.split(where.size)
            own.update(zip(silos, zip(rows.split(where.size), masks, strict=True), strict=True))
        flat = [part for silo in self.scope for part in own[silo]]
        found = iter(self._totals(self._at_move(kind), flat))
        for silo in self.scope:
            rows, mask = own[silo]
            yield (silo,), next(found).to(rows), next(found).to(mask)

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
        share, *found = self._totals(self._at_move(kind), flat)
        rest = iter(found)
        for silo, part in zip(self.scope, share.tolist(), strict=True):
            tensors, form = forms[silo]
            yield (silo,), tree.joined(form, [next(rest)[None] for _ in tensors]), [part]

    def _totals(self, at: str, mine: list[Tensor]) -> list[Tensor]:
        """Of many tensors at once, in the type that has room for all."""
        wide = reduce(torch.promote_types, (a.dtype for a in mine))
        found = self._ranks.total(at, torch.cat([a.flatten().to(wide) for a in mine]))
        parts = found.split([a.numel() for a in mine])
        return [part.reshape(a.shape) for part, a in zip(parts, mine, strict=True)]

    def _from_all_ranks(self, by_place: dict[int, Any]) -> dict[int, Any]:
        everyone: dict[int, Any] = {}
        for parcel in self._ranks.exchange(self._at_move("clients' values"), packed(by_place)):
            everyone |= unpacked(parcel, self.device)
        return dict(sorted(everyone.items()))


def homes(axis: Axis, rows: Ints, sizing: Mapping[str, ChunkSizing], ranks: int) -> Ints:
    """The rank of each client. Those of a silo are dealt out, the largest first, each to the rank
    with the least of this silo, of these to the one with the least of all: so that ranks are busy
    alike in a round, and in a visit of one silo."""
    home, loads = np.zeros(axis.size, dtype=np.int64), [0] * ranks
    for silo, span in axis.span.items():
        each = rows[span] * sizing[silo].row + sizing[silo].weights
        heap = [(0, load, rank) for rank, load in enumerate(loads)]
        heapq.heapify(heap)
        for place in np.argsort(-each, kind="stable").tolist():
            own, _, rank = heapq.heappop(heap)
            home[span.start + place] = rank
            loads[rank] += int(each[place])
            heapq.heappush(heap, (own + int(each[place]), loads[rank], rank))
    return home


def _zeros(a: Tensor) -> Tensor:
    return torch.zeros_like(a, dtype=torch.float64)


def checksum(values: Any) -> int:
    """A number that differs where a bit does, as good as always."""
    found = 0
    for number, a in enumerate(tree.tensors(values), 1):
        found += number * int(a.detach().contiguous().view(WORDS[a.element_size()]).sum())
    return found % 2**62
