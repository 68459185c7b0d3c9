"""Rows of a minibatch: which client has which of them, and values by row at clients.

Ragged rows are padded and masked. Padding points at a real row, never at zeros, whose gradients may
not be finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import tree
from ..federation.placed import Batch, Noise, RowMap, Rows
from ..federation.releases import among_padding
from ..federation.schedule import Bools
from ..federation.topology import Client
from ..rng import Ints
from .axis import Chunk, Value
from .clientaxis import Lazy, stack

SIXTEEN = 16
KEPT = 2**25  # bytes of a minibatch's rows that are kept, not taken twice


class Spots(NamedTuple):
    """Where the rows of a chunk's clients are. `slots`: [c, b] or [c, Q, b] positions in the
    minibatch; `mask`: which of them are real; `real`: these, counted through the slots; `at`: their
    positions, counted through the minibatches of the chunk's silos."""

    slots: Tensor
    mask: Tensor
    real: Tensor
    at: Tensor


class Segments(RowMap):
    """Which positions of a minibatch each client fills: positions sorted by client and step.

    `ids` are [B] or [Q, B]; `owner`: by silo, the place of each row's client on the axis, which has
    `clients` places; `padding` adds columns that mean nothing (a test uses it).
    """

    def __init__(
        self,
        ids: Tensor,
        owner: Mapping[str, Ints],
        clients: int,
        padding: int,
        device: torch.device,
    ):
        self.size = ids.numel()
        self.ids = ids.flatten().to(device)
        self._lead = tuple(ids.shape[:-1])
        self._padding, self._device = padding, device
        self._known: dict[bytes, Spots] = {}
        steps = ids.shape[0] if self._lead else 1
        rows = ids.flatten().numpy()
        group = np.stack([mine[rows] for mine in owner.values()])
        if steps > 1:
            group = group * steps + np.repeat(np.arange(steps), ids.shape[-1])
        group = group.reshape(-1)
        counts = np.bincount(group, minlength=clients * steps)
        self._order = np.argsort(group, kind="stable") % self.size
        self._counts = counts.reshape(-1, steps)
        self._starts = (np.cumsum(counts) - counts).reshape(-1, steps)
        self.rows = self._counts.sum(1) if steps > 1 else counts  # of each client
        self.widths = self._counts.max(1) if steps > 1 else counts  # of each client in a step

    def spots(self, chunk: Chunk) -> Spots:
        """As computed before for these clients, or now."""
        key = chunk.places.tobytes()
        if key not in self._known:
            self._known[key] = self._spots(chunk)
        return self._known[key]

    def _spots(self, chunk: Chunk) -> Spots:
        counts = self._counts[chunk.places][..., None]
        column = np.arange(self._width(int(counts.max(initial=0))))
        at = self._starts[chunk.places][..., None] + column
        real = column < counts
        last = len(self._order) - 1
        slots = self._order[np.minimum(np.where(real, at, at[..., :1]), last)]
        shape = (len(chunk.places), *self._lead, len(column))
        flat = np.flatnonzero(real)
        through = slots.reshape(-1)[flat]
        if chunk.mixed:
            through = through + self.size * np.repeat(chunk.of, self.rows[chunk.places])
        found = (slots.reshape(shape), real.reshape(shape), flat, through)
        return Spots(*(torch.from_numpy(a).to(self._device) for a in found))

    def _width(self, rows: int) -> int:
        """Columns for so many rows."""
        rows = few_sizes(rows) if self._device.type == "cuda" else rows
        return max(1, rows) + self._padding

    def put(self, chunk: Chunk, value: Value, rows: Tensor, mask: Tensor) -> Tensor:
        """Write a chunk's rows where they belong in the minibatches of its silos; returns them,
        without padding."""
        spots = self.spots(chunk)
        got = value.tree.shape[: spots.mask.ndim] if isinstance(value.tree, Tensor) else ()
        if not value.stacked or got != spots.mask.shape:
            raise ValueError("one entry for each of a client's rows is needed")
        own = value.tree.flatten(0, spots.mask.ndim - 1)
        if len(spots.real) < len(own):  # there is padding
            own = own.index_select(0, spots.real)
        if own.shape[1:] == rows.shape[1:] and own.dtype == rows.dtype:  # else it will be refused
            rows.index_copy_(0, spots.at, own)
            mask.index_fill_(0, spots.at, True)
        return own


class Taken(Lazy):
    """Each client's rows of a silo's data, for a minibatch."""

    def __init__(
        self,
        x: Mapping[str, Tensor],
        y: Mapping[str, Tensor | None],
        where: Segments,
        has: Bools,
        scope: Sequence[str],
    ):
        super().__init__(has, scope)
        self._x, self._y, self._where = x, y, where
        self._kept: dict[bytes, Value] = {}
        self._room = KEPT

    def widths(self) -> Ints:
        return self._where.widths

    def _compute(self, chunk: Chunk) -> Value:
        key = chunk.places.tobytes()
        if key in self._kept:  # a round takes the rows of its minibatch more than once
            return self._kept[key]
        spots = self._where.spots(chunk)
        rows = _rows(self._where.ids, spots.slots)
        x, y = self._of(chunk, self._x, rows), None
        if self._y[chunk.silos[0]] is not None:
            y = self._of(chunk, self._y, rows)
        batch = Value(Batch(x, y, spots.mask), True)
        if (size := tree.nbytes(batch.tree)) <= self._room:
            self._kept[key], self._room = batch, self._room - size
        return batch

    def _of(self, chunk: Chunk, values: Mapping[str, Any], rows: Tensor) -> Tensor:
        if not chunk.mixed:
            return _rows(values[chunk.silos[0]], rows)
        like = values[chunk.silos[0]]
        found = like.new_empty(*rows.shape, *like.shape[1:])
        counts = list(chunk.counts)
        each = zip(chunk.silos, rows.split(counts), found.split(counts), strict=True)
        for silo, mine, into in each:  # without a copy in between
            torch.index_select(values[silo], 0, mine.flatten(), out=into.flatten(0, mine.ndim - 1))
        return found


class RowNoise(Lazy):
    """Noise for each client's rows; padding gets none. `draw`: of some rows of a client."""

    def __init__(
        self,
        draw: Callable[[Client, Tensor], Noise],
        client: Callable[[int], Client],
        where: Segments,
        has: Bools,
        scope: Sequence[str],
    ):
        super().__init__(has, scope)
        self._draw, self._client, self._where = draw, client, where

    def _compute(self, chunk: Chunk) -> Value:
        spots = self._where.spots(chunk)
        rows = _rows(self._where.ids, spots.slots)
        each = zip(chunk.places.tolist(), rows, spots.mask, strict=True)
        found = [among_padding(self._draw(self._client(at), r[ok]), ok) for at, r, ok in each]
        return Value(stack(found), True)


class Scattered(Lazy):
    """Each client's rows of a value at its hub."""

    def __init__(self, rows: Mapping[str, Rows], where: Segments, has: Bools):
        super().__init__(has, tuple(rows))
        self._rows, self._where = rows, where
        self._joined: dict[tuple[str, ...], Rows] = {}

    def widths(self) -> Ints:
        return self._where.widths

    def _compute(self, chunk: Chunk) -> Value:
        spots = self._where.spots(chunk)
        slots = spots.slots
        if chunk.silos not in self._joined:
            mine = [self._rows[silo] for silo in chunk.silos]
            self._joined[chunk.silos] = (
                Rows(*map(torch.cat, zip(*mine, strict=True))) if chunk.mixed else mine[0]
            )
        if chunk.mixed:
            before = torch.from_numpy(chunk.of * self._where.size).to(slots.device)
            slots = slots + before.reshape(-1, *[1] * (slots.ndim - 1))
        value, counts = self._joined[chunk.silos]
        return Value(Rows(_rows(value, slots), _rows(counts, slots) & spots.mask), True)


def few_sizes(rows: int) -> int:
    """A little more than so many rows, so that there are few different numbers: a GPU's kernels are
    chosen by size. An even one up to 63 rows, from there on at most a sixteenth more."""
    step = 1 << max(1, (rows // SIXTEEN).bit_length() - 1)
    return -(-rows // step) * step


def _rows(values: Tensor, at: Tensor) -> Tensor:
    """values[at], several times faster."""
    return values.index_select(0, at.flatten()).unflatten(0, at.shape)
