"""The rows of silos' data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...core import tree
from ...data.placement import Placement
from ...models.task import Shapes, Task
from ..limits import DEFAULT
from .axis import Chunk

Pair = tuple[Tensor, Tensor | None]  # features and labels


class RowStore:
    """Features and labels of silos, on the engine's device. Silos that are alike are concatenated
    if they are small (`joined`: bytes), so that a minibatch's rows are taken from all at once."""

    def __init__(
        self,
        task: Task,
        shapes: Shapes,
        placement: Placement,
        device: torch.device,
        joined: int = DEFAULT.joined_rows,
    ):
        self._placed, self._most = placement, joined
        self.x = {
            silo: x.to(dtype=shapes.features[silo][1], device=device)
            for silo, x in placement.x.items()
        }
        self.y = {
            silo: None if y is None else task.loss.labels(y, shapes.dtype).to(device)
            for silo, y in placement.y.items()
        }
        self._joined: dict[tuple[str, ...], Pair] = {}

    def holds(self, placement: Placement) -> bool:
        """Whether these are the rows of a placement, whichever clients own them."""
        own = self._placed
        return all(
            a.get(silo) is b[silo]
            for a, b in ((own.x, placement.x), (own.y, placement.y))
            for silo in b
        )

    def all(self, silos: tuple[str, ...]) -> Pair:
        """All rows, [silos, rows, ...]."""
        if len(silos) > 1 and (joined := self._together(silos)) is not None:
            x, y = (None if a is None else a.unflatten(0, (len(silos), -1)) for a in joined)
            assert x is not None
            return x, y
        x, y = self._of(silos)
        return torch.stack(x), torch.stack(y) if y else None

    def take(self, chunk: Chunk, rows: Tensor) -> Pair:
        """The rows of each client of a chunk, by their numbers."""
        if chunk.mixed and (joined := self._together(chunk.silos)) is not None:
            x, y = joined
            before = tree.sent(torch.from_numpy(chunk.of * len(self.x[chunk.silos[0]])), x.device)
            rows = rows + before.reshape(-1, *[1] * (rows.ndim - 1))
            return rows_at(x, rows), None if y is None else rows_at(y, rows)
        features, labels = self._of(chunk.silos)
        return _rows_of_silos(chunk, features, rows), _rows_of_silos(
            chunk, labels, rows
        ) if labels else None

    def flat(self, silos: tuple[str, ...], ids: Tensor, counts: Sequence[int]) -> Pair:
        """Rows by their numbers, concatenated; `counts`: of each silo."""
        if len(silos) > 1 and (joined := self._together(silos)) is not None:
            before = np.arange(len(silos)) * len(self.x[silos[0]])
            ids = ids + tree.sent(torch.from_numpy(before.repeat(counts)), ids.device)
            x, y = (None if a is None else a.index_select(0, ids) for a in joined)
            assert x is not None
            return x, y
        features, labels = self._of(silos)
        split = ids.split(list(counts))
        x = torch.cat([a.index_select(0, at) for a, at in zip(features, split, strict=True)])
        if not labels:
            return x, None
        return x, torch.cat([a.index_select(0, at) for a, at in zip(labels, split, strict=True)])

    def _together(self, silos: tuple[str, ...]) -> Pair | None:
        """The silos' rows concatenated; None if they are too large."""
        if silos not in self._joined:
            x, y = self._of(silos)
            if tree.nbytes([x, y]) > self._most:
                return None
            self._joined[silos] = torch.cat(x), torch.cat(y) if y else None
        return self._joined[silos]

    def _of(self, silos: tuple[str, ...]) -> tuple[list[Tensor], list[Tensor]]:
        labels = [y for silo in silos if (y := self.y[silo]) is not None]
        return [self.x[silo] for silo in silos], labels


def _rows_of_silos(chunk: Chunk, values: Sequence[Tensor], rows: Tensor) -> Tensor:
    """Rows of each silo's values, written into one tensor."""
    if not chunk.mixed:
        return rows_at(values[0], rows)
    result = values[0].new_empty(*rows.shape, *values[0].shape[1:])
    counts = list(chunk.counts)
    parts = rows.split_with_sizes(counts), result.split_with_sizes(counts)
    for silo_values, silo_rows, part in zip(values, *parts, strict=True):
        torch.index_select(
            silo_values, 0, silo_rows.flatten(), out=part.flatten(0, silo_rows.ndim - 1)
        )
    return result


def rows_at(values: Tensor, at: Tensor) -> Tensor:
    """values[at], but several times faster."""
    return values.index_select(0, at.flatten()).unflatten(0, at.shape)
