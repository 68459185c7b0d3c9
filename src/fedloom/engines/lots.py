"""Who is computed together: the clients of silos in lots, cut into chunks.

A lot is what the chunks of one or more silos that are alike add up to: a small model is computed
for the clients of all such silos at once. How long chunks are, chunks.py says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..federation.schedule import Bools
from ..rng import Ints
from .axis import Axis, Chunk
from .chunks import Cost
from .clientaxis import Lazy, can_mix, together, widest
from .pools import Pools
from .segments import Segments
from .threads import ahead

MEMO = 32  # values of clients that are kept: asynchronous rounds have very many
Silos = tuple[str, ...]


@dataclass
class Lot:
    """Silos whose clients are computed together, and the chunks to do it in."""

    silos: Silos
    chunks: Iterable[Chunk]


class Cuts:
    """`alike`: all silos, those that are alike together; `cost`: by silo."""

    def __init__(
        self, axis: Axis, alike: Sequence[Silos], cost: Mapping[str, Cost], device: torch.device
    ):
        self._axis, self.alike, self._cost, self._device = axis, alike, cost, device
        self._known: dict[tuple[Silos, bytes], tuple[Ints | None, Chunk]] = {}

    def begin(self) -> None:
        """A new round: what was computed in the last one is not needed any more."""
        self._known.clear()

    def lots(self, scope: Sequence[str], there: Bools, values: Sequence[Lazy]) -> Iterator[Lot]:
        """Silos with the chunks of those of their clients who are there, never two of different
        shapes together. Silos that are alike make one lot if their clients' models are small."""
        shapes = together([value.shapes() for value in values])
        widths = widest([value.widths() for value in values])
        for silos in self._together(scope):
            places = self._axis.places(there, silos)
            one_shape = shapes is None or len(set(shapes[places].tolist())) < 2
            small = len(silos) > 1 and one_shape and self._cost[silos[0]].small(len(places))
            if small and all(can_mix(value, silos) for value in values):
                yield Lot(silos, self._cut(silos, places, None, widths, values))
                continue
            for silo in silos:
                places = self._axis.places(there, (silo,))
                yield Lot((silo,), self._cut((silo,), places, shapes, widths, values))

    def pools(
        self, scope: Sequence[str], there: Bools, lazy: Lazy, where: Segments, mean: bool
    ) -> Iterator[Lot]:
        """Silos as lots in which each silo has one client, with all rows."""
        for alike in self._together(scope):
            cost, all_there = self._cost[alike[0]], bool(there[where.owners(alike)].all())
            mixed = all_there and cost.tiny(len(alike)) and can_mix(lazy, alike)
            for silos in [alike] if mixed else [(silo,) for silo in alike]:
                pools = Pools(self._axis, where, there, silos, mean)
                pieces = cost.pieces(pools.rows)
                chunks = pools.chunks(pieces)
                heavy = pieces > 1 and cost.heavy(pools.rows // pieces)
                yield Lot(silos, self._ahead(chunks, [lazy]) if heavy else chunks)

    def _together(self, scope: Sequence[str]) -> Sequence[Silos]:
        """Silos that may share a lot: some of them alone never do."""
        return self.alike if len(scope) == len(self._cost) else [(silo,) for silo in scope]

    def _cut(
        self,
        silos: Silos,
        places: Ints,
        shapes: Ints | None,
        widths: Ints | None,
        values: Sequence[Lazy],
    ) -> Iterator[Chunk]:
        """Chunks of these clients. What is heavy to compute is computed ahead."""
        cost, groups, key = self._cost[silos[0]], [places], (silos, places.tobytes())
        if shapes is None and key in self._known:  # what a round computes for them, it does once
            rows, chunk = self._known[key]
            if rows is widths and len(chunk.memo) <= MEMO:
                return iter([chunk])
        if shapes is not None:
            groups = [places[shapes[places] == kind] for kind in np.unique(shapes[places])]
        cuts = [
            cut
            for group in groups
            for cut in cost.cut(group, None if widths is None else widths[group])
        ]
        if len(cuts) == 1 and self._device.type == "cpu" and cost.little(places, widths):
            self._known[key] = widths, self._axis.chunk(silos, cuts[0])
            return iter([self._known[key][1]])
        chunks = (self._axis.chunk(silos, cut) for cut in cuts)
        heavy = len(cuts) > 1 and widths is not None and cost.heavy(int(widths[cuts[0]].sum()))
        return self._ahead(chunks, values) if heavy else chunks

    def _ahead(self, chunks: Iterator[Chunk], values: Sequence[Lazy]) -> Iterator[Chunk]:
        """Computed by as many threads as torch has."""
        if self._device.type != "cpu":
            return chunks
        return ahead(chunks, lambda chunk: [value.value(chunk) for value in values])
