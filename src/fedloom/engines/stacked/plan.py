"""Who is computed together: the clients of silos in lots, cut into chunks.

A lot is what the chunks of one or more silos that are alike add up to: a small model is computed
for the clients of all such silos at once. How long chunks are, chunks.py says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from ...core.rng import Ints
from ...fabric.schedule import Bools
from ..execute.workers import ahead
from ..limits import DEFAULT
from .axis import Axis, Chunk
from .chunks import Cost
from .client_axis import Lazy, together, widest
from .minibatch import Segments
from .pooling import Pools

Silos = tuple[str, ...]
Work = Callable[[Chunk], object]  # kept in the chunk's memo


@dataclass
class Lot:
    """Silos whose clients are computed together, and the chunks to do it in."""

    silos: Silos
    chunks: Iterable[Chunk]


class Plan:
    """`alike`: all silos, those that are alike together; `cost`: by silo; `most`: values kept of a
    chunk's clients."""

    def __init__(
        self,
        axis: Axis,
        alike: Sequence[Silos],
        cost: Mapping[str, Cost],
        device: torch.device,
        most: int = DEFAULT.chunk_values,
    ):
        self._axis, self.alike, self._cost, self._device = axis, alike, cost, device
        self._most = most
        self._known: dict[tuple[Silos, bytes], tuple[Ints | None, Chunk]] = {}

    def begin(self) -> None:
        """A new round: what was computed in the last one is not needed any more."""
        self._known.clear()

    def lots(
        self, scope: Sequence[str], there: Bools, values: Sequence[Lazy], work: Work
    ) -> Iterator[Lot]:
        """Silos with the chunks of those of their clients who are there, never two of different
        shapes together. Silos that are alike make one lot if their clients' models are small. What
        is heavy is done ahead, whichever lot it is in (`work`: what will be asked of a chunk)."""
        shapes = together([value.shapes() for value in values])
        widths = widest([value.widths() for value in values])
        found: list[tuple[Silos, list[Ints | Chunk]]] = []
        for silos in self.together(scope):
            places = self._axis.places(there, silos)
            one_shape = shapes is None or len(set(shapes[places].tolist())) < 2
            small = len(silos) > 1 and one_shape and self._cost[silos[0]].small(len(places))
            if small and all(value.mixes(silos) for value in values):
                found.append((silos, self._cut(silos, places, None, widths)))
                continue
            for silo in silos:
                places = self._axis.places(there, (silo,))
                found.append(((silo,), self._cut((silo,), places, shapes, widths)))
        chunks = self._chunks(found)
        if self._heavy(found, widths):
            chunks = self._ahead(chunks, work)
        for silos, cuts in found:
            yield Lot(silos, islice(chunks, len(cuts)))

    def pools(
        self,
        scope: Sequence[str],
        there: Bools,
        lazy: Lazy,
        where: Segments,
        mean: bool,
        work: Work,
    ) -> Iterator[Lot]:
        """Silos as lots in which each silo has one client, with all rows."""
        for alike in self.together(scope):
            cost, all_there = self._cost[alike[0]], bool(there[where.owners(alike)].all())
            mixed = all_there and cost.tiny(len(alike)) and lazy.mixes(alike)
            for silos in [alike] if mixed else [(silo,) for silo in alike]:
                pools = Pools(self._axis, where, there, silos, mean)
                pieces = cost.pieces(pools.rows, mean)
                chunks = pools.chunks(pieces)
                heavy = pieces > 1 and cost.heavy(pools.rows // pieces)
                yield Lot(silos, self._ahead(chunks, work) if heavy else chunks)

    def together(self, scope: Sequence[str]) -> Sequence[Silos]:
        """Silos that may share a lot: some of them alone never do."""
        return self.alike if len(scope) == len(self._cost) else [(silo,) for silo in scope]

    def _cut(
        self, silos: Silos, places: Ints, shapes: Ints | None, widths: Ints | None
    ) -> list[Ints | Chunk]:
        """These clients, cut into chunks; one that is there already if there are few of them: what
        a round computes for the same clients, it does once."""
        cost, groups, key = self._cost[silos[0]], [places], (silos, places.tobytes())
        if shapes is None and key in self._known:
            rows, chunk = self._known[key]
            if rows is widths and len(chunk.memo) <= self._most:
                return [chunk]
        if shapes is not None:
            groups = [places[shapes[places] == kind] for kind in np.unique(shapes[places])]
        cuts = [
            cut
            for group in groups
            for cut in cost.cut(group, None if widths is None else widths[group])
        ]
        if len(cuts) == 1 and self._device.type == "cpu" and cost.little(places, widths):
            chunk = self._axis.chunk(silos, cuts[0])
            chunk.kept = True
            self._known[key] = widths, chunk
            return [chunk]
        return [*cuts]

    def _chunks(self, found: Sequence[tuple[Silos, list[Ints | Chunk]]]) -> Iterator[Chunk]:
        """One after the other, as they are asked for: what is computed for one goes with it."""
        for silos, cuts in found:
            for cut in cuts:
                yield cut if isinstance(cut, Chunk) else self._axis.chunk(silos, cut)

    def _heavy(
        self, found: Sequence[tuple[Silos, list[Ints | Chunk]]], widths: Ints | None
    ) -> bool:
        """Whether at least two chunks are worth a thread each: those that are kept are not."""
        if widths is None:
            return False
        each = ((self._cost[silos[0]], cut) for silos, cuts in found for cut in cuts)
        heavy = (
            cost.heavy(int(widths[cut].sum())) for cost, cut in each if not isinstance(cut, Chunk)
        )
        return sum(heavy) > 1

    def _ahead(self, chunks: Iterator[Chunk], work: Work) -> Iterator[Chunk]:
        """By as many threads as torch has."""
        return ahead(chunks, work) if self._device.type == "cpu" else chunks
