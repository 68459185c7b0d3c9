"""Which clients are computed together: groups of silos, cut into chunks.

The silos of a group are alike, and a small model is computed for all their clients at once.
sizing.py decides how large chunks are.
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
from .lazy import LazyValue, combined, widest
from .minibatch import MinibatchRows
from .pooling import Pooling
from .sizing import ChunkSizing

Silos = tuple[str, ...]
ChunkWork = Callable[[Chunk], object]  # its result is kept in the chunk's memo


@dataclass
class ChunkGroup:
    """Silos whose clients are computed together, and the chunks to do it in."""

    silos: Silos
    chunks: Iterable[Chunk]


class Plan:
    """`alike`: the silos, grouped by what is alike; `sizing`: by silo; `most`: values kept for a
    chunk."""

    def __init__(
        self,
        axis: Axis,
        alike: Sequence[Silos],
        sizing: Mapping[str, ChunkSizing],
        device: torch.device,
        most: int = DEFAULT.chunk_values,
    ):
        self._axis, self.alike, self._sizing, self._device = axis, alike, sizing, device
        self._most = most
        self._known: dict[tuple[Silos, bytes], tuple[Ints | None, Chunk]] = {}

    def begin(self) -> None:
        """Begin a round: drop what the last one computed."""
        self._known.clear()

    def chunk_groups(
        self, scope: Sequence[str], present: Bools, values: Sequence[LazyValue], work: ChunkWork
    ) -> Iterator[ChunkGroup]:
        """The chunks of the present clients of silos. Clients of different shapes never share a
        chunk. Silos that are alike are one group if their clients' models are small. Heavy chunks
        are computed ahead in threads, whichever group they are in (`work`: what will be asked of a
        chunk)."""
        shapes = combined([value.shapes() for value in values])
        widths = widest([value.widths() for value in values])
        cuts_by_silos: list[tuple[Silos, list[Ints | Chunk]]] = []
        for silos in self.together(scope):
            places = self._axis.places(present, silos)
            one_shape = shapes is None or len(set(shapes[places].tolist())) < 2
            small = (
                len(silos) > 1
                and one_shape
                and self._sizing[silos[0]].models_share_chunks(len(places))
            )
            if small and all(value.mixes(silos) for value in values):
                cuts_by_silos.append((silos, self._cut(silos, places, None, widths)))
                continue
            for silo in silos:
                places = self._axis.places(present, (silo,))
                cuts_by_silos.append(((silo,), self._cut((silo,), places, shapes, widths)))
        chunks = self._chunks(cuts_by_silos)
        if self._has_heavy_chunks(cuts_by_silos, widths):
            chunks = self._ahead(chunks, work)
        for silos, cuts in cuts_by_silos:
            yield ChunkGroup(silos, islice(chunks, len(cuts)))

    def pooled_groups(
        self,
        scope: Sequence[str],
        present: Bools,
        lazy: LazyValue,
        where: MinibatchRows,
        mean: bool,
        work: ChunkWork,
    ) -> Iterator[ChunkGroup]:
        """Groups of silos, each computed as one client with all rows."""
        for alike in self.together(scope):
            sizing, all_there = self._sizing[alike[0]], bool(present[where.owners(alike)].all())
            mixed = all_there and sizing.pools_share_chunks(len(alike)) and lazy.mixes(alike)
            for silos in [alike] if mixed else [(silo,) for silo in alike]:
                pooling = Pooling(self._axis, where, present, silos, mean)
                pieces = sizing.pieces(pooling.rows, mean)
                chunks = pooling.chunks(pieces)
                heavy = pieces > 1 and sizing.is_worth_thread(pooling.rows // pieces)
                yield ChunkGroup(silos, self._ahead(chunks, work) if heavy else chunks)

    def together(self, scope: Sequence[str]) -> Sequence[Silos]:
        """Silos that may be one group. A scope of some silos has a group for each."""
        return self.alike if len(scope) == len(self._sizing) else [(silo,) for silo in scope]

    def _cut(
        self, silos: Silos, places: Ints, shapes: Ints | None, widths: Ints | None
    ) -> list[Ints | Chunk]:
        """These clients in chunks. If they are few, the chunk is kept, so that a round computes
        values of the same clients once."""
        sizing, groups, key = self._sizing[silos[0]], [places], (silos, places.tobytes())
        if shapes is None and key in self._known:
            rows, chunk = self._known[key]
            if rows is widths and len(chunk.memo) <= self._most:
                return [chunk]
        if shapes is not None:
            groups = [places[shapes[places] == kind] for kind in np.unique(shapes[places])]
        cuts = [
            cut
            for group in groups
            for cut in sizing.cut(group, None if widths is None else widths[group])
        ]
        if len(cuts) == 1 and self._device.type == "cpu" and sizing.is_small(places, widths):
            chunk = self._axis.chunk(silos, cuts[0])
            chunk.kept = True
            self._known[key] = widths, chunk
            return [chunk]
        return [*cuts]

    def _chunks(self, cuts_by_silos: Sequence[tuple[Silos, list[Ints | Chunk]]]) -> Iterator[Chunk]:
        """Chunks, made when asked for: their memos go with them."""
        for silos, cuts in cuts_by_silos:
            for cut in cuts:
                yield cut if isinstance(cut, Chunk) else self._axis.chunk(silos, cut)

    def _has_heavy_chunks(
        self, cuts_by_silos: Sequence[tuple[Silos, list[Ints | Chunk]]], widths: Ints | None
    ) -> bool:
        """Whether at least two chunks are worth a thread each; kept chunks are not."""
        if widths is None:
            return False
        chunks = ((self._sizing[silos[0]], cut) for silos, cuts in cuts_by_silos for cut in cuts)
        heavy = (
            sizing.is_worth_thread(int(widths[cut].sum()))
            for sizing, cut in chunks
            if not isinstance(cut, Chunk)
        )
        return sum(heavy) > 1

    def _ahead(self, chunks: Iterator[Chunk], work: ChunkWork) -> Iterator[Chunk]:
        """Compute chunks ahead, in as many threads as torch has."""
        return ahead(chunks, work) if self._device.type == "cpu" else chunks
