"""Rows of a minibatch: which client has which of them, and values by row at clients.

Ragged rows are padded and masked. Padding points at a real row, never at zeros, whose gradients may
not be finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

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
from .rows import Held, rows_at

KEPT = 2**25  # bytes of a minibatch's rows that are kept, not taken twice


class Spots(NamedTuple):
    """Where the rows of a chunk's clients are. `slots`: [c, b] or [c, Q, b] positions in the
    minibatch; `over`: the same, counted through the minibatches of the chunk's silos; `mask`: which
    of them are real; `real`: these, counted through the slots; `at`: their positions, counted
    through the minibatches; `whole`: these are all there are, in their order."""

    slots: Tensor
    over: Tensor
    mask: Tensor
    real: Tensor
    at: Tensor
    whole: bool


class Segments(RowMap):
    """Which positions of a minibatch each client fills: positions sorted by client and step.

    `ids` are [B] or [Q, B]; `owner`: by silo, the place of each row's client on the axis, which has
    `clients` places; `width`: columns for so many rows of a silo's client; `steps`: local steps
    that they are for.
    """

    def __init__(
        self,
        ids: Tensor,
        owner: Mapping[str, Ints],
        clients: int,
        width: Callable[[str, int], int],
        device: torch.device,
        dtype: torch.dtype,
        steps: int | None = None,
    ):
        self.size, self.steps = ids.numel(), steps
        self.ids = tree.sent(ids.flatten(), device)
        self._lead = tuple(ids.shape[:-1])
        self._width, self.device, self.dtype = width, device, dtype
        self._known: dict[tuple[bytes, ...], Spots] = {}
        lines = ids.shape[0] if self._lead else 1
        rows = self._rows = ids.flatten().numpy()
        self._all = len(next(iter(owner.values())))
        self._owner = np.stack([mine[rows] for mine in owner.values()])
        self._silos, self._clients = tuple(owner), clients
        group = self._owner
        if lines > 1:
            group = group * lines + np.repeat(np.arange(lines), ids.shape[-1])
        group = group.reshape(-1)
        counts = np.bincount(group, minlength=clients * lines)
        self._group = group
        self._counts = counts.reshape(-1, lines)
        self.rows = self._counts.sum(1) if lines > 1 else counts  # of each client
        self.widths = self._counts.max(1) if lines > 1 else counts  # of each client in a line

    @cached_property
    def _order(self) -> Ints:
        """Positions, counted through the silos' minibatches, sorted by client and step; pools of
        rows do not need them."""
        return np.argsort(self._group, kind="stable")

    @cached_property
    def _starts(self) -> Ints:
        """Where those of each client and step begin."""
        counts = self._counts.reshape(-1)
        return (np.cumsum(counts) - counts).reshape(self._counts.shape)

    @cached_property
    def is_all(self) -> bool:
        """Whether these are all rows, in their order."""
        return self.size == self._all and bool(np.array_equal(self._rows, np.arange(self.size)))

    @cached_property
    def everything(self) -> Tensor:
        """The mask of a minibatch of which every row came: one tensor, known by what it is."""
        return torch.ones(self.size, dtype=torch.bool, device=self.device)

    def spots(self, chunk: Chunk) -> Spots:
        """As computed before for these clients, or now."""
        if chunk.key not in self._known:
            spots = self._spots if chunk.pool is None else self._pooled
            self._known[chunk.key] = spots(chunk)
        return self._known[chunk.key]

    def _spots(self, chunk: Chunk) -> Spots:
        counts = self._counts[chunk.places][..., None]
        column = np.arange(self._width(chunk.silos[0], int(counts.max(initial=0))))
        at = self._starts[chunk.places][..., None] + column
        real = column < counts
        last = len(self._order) - 1
        over = self._order[np.minimum(np.where(real, at, at[..., :1]), last)]
        over = over.reshape(len(chunk.places), *self._lead, len(column))
        slots = over % self.size
        if chunk.silos != self._silos:
            over = slots + self._before(chunk, slots.ndim)
        flat = np.flatnonzero(real)
        return self._found(chunk, slots, over, real.reshape(over.shape), flat)

    def _before(self, chunk: Chunk, axes: int) -> Ints:
        """How many positions are before those of each client's silo."""
        return self.size * chunk.of.reshape(-1, *[1] * (axes - 1))

    def _pooled(self, chunk: Chunk) -> Spots:
        assert chunk.pool is not None
        slots = chunk.pool.at
        over = slots + self._before(chunk, 2)
        real = np.ones(slots.shape, dtype=bool)
        return self._found(chunk, slots, over, real, np.arange(slots.size))

    def _found(self, chunk: Chunk, slots: Ints, over: Ints, mask: Bools, real: Ints) -> Spots:
        at = over.reshape(-1)[real]
        every = len(at) == len(chunk.silos) * self.size
        whole = every and bool((at[1:] > at[:-1]).all())
        a, b, c, d, e = (
            tree.sent(torch.from_numpy(one), self.device) for one in (slots, over, mask, real, at)
        )
        return Spots(a, b, c, d, e, whole)

    def owners(self, silos: Sequence[str]) -> Ints:
        """The place of the client of each row of these silos' minibatches, [silos, size]."""
        return self._owner[[self._silos.index(silo) for silo in silos]]

    def shares(self, chunk: Chunk, mask: Tensor | None) -> Tensor:
        """Of the rows of a pool, what each has in a mean of clients: an equal part of what its
        client has. `mask`: which rows of the silos' minibatches count (None: all)."""
        assert chunk.pool is not None
        assert chunk.pool.whole is not None
        if mask is None and self in chunk.memo:
            return chunk.memo[self]
        whole = chunk.pool.whole.flatten()
        if mask is not None:
            whole = torch.where(mask, whole, 0)
        who = tree.sent(torch.from_numpy(self.owners(chunk.silos).reshape(-1)), self.device)
        rows = whole.new_zeros(self._clients).index_add_(0, who, (whole > 0).to(whole.dtype))
        each = whole / rows.index_select(0, who).clamp_(min=1)
        found = each.index_select(0, self.spots(chunk).at).reshape(len(chunk.silos), -1)
        if mask is None:
            chunk.memo[self] = found
        return found

    def put(self, chunk: Chunk, value: Value, rows: Tensor) -> Tensor:
        """Write a chunk's rows where they belong in the minibatches of its silos; returns them,
        without padding."""
        spots = self.spots(chunk)
        got = value.tree.shape[: spots.mask.ndim] if isinstance(value.tree, Tensor) else ()
        if not value.stacked or got != spots.mask.shape:
            raise ValueError("one entry for each of a client's rows is needed")
        own = value.tree.flatten(0, spots.mask.ndim - 1)
        if len(spots.real) < len(own):  # there is padding
            own = own.index_select(0, spots.real)
        if own.shape[1:] != rows.shape[1:] or own.dtype != rows.dtype:  # it will be refused
            return own
        if spots.whole:
            rows.copy_(own)
        else:
            rows.index_copy_(0, spots.at, own)
        return own


class Taken(Lazy):
    """Each client's rows of a silo's data, for a minibatch."""

    def __init__(self, held: Held, where: Segments, has: Bools, scope: Sequence[str]):
        super().__init__(has, scope)
        self._held, self.segments = held, where
        self._kept: dict[tuple[bytes, ...], Batch] = {}
        self._room = KEPT

    def widths(self) -> Ints:
        return self.segments.widths

    def _compute(self, chunk: Chunk) -> Value:
        batch = self._kept.get(chunk.key)  # a round takes its rows more than once
        if batch is None:
            batch = self._taken(chunk)
            if (size := tree.nbytes(batch)) <= self._room:
                self._kept[chunk.key], self._room = batch, self._room - size
        if chunk.pool is not None and chunk.pool.whole is not None:
            batch = batch._replace(mask=self.segments.shares(chunk, None))
        return Value(batch, True)

    def _taken(self, chunk: Chunk) -> Batch:
        spots = self.segments.spots(chunk)
        one_each = spots.slots.shape == (len(chunk.silos), self.segments.size)
        if one_each and spots.whole and self.segments.is_all:
            return Batch(*self._held.all(chunk.silos), spots.mask)
        rows = rows_at(self.segments.ids, spots.slots)
        return Batch(*self._held.take(chunk, rows), spots.mask)


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
        rows = rows_at(self._where.ids, spots.slots)
        each = zip(chunk.places.tolist(), rows, spots.mask, strict=True)
        found = [among_padding(self._draw(self._client(at), r[ok]), ok) for at, r, ok in each]
        return Value(stack(found), True)


class Scattered(Lazy):
    """Each client's rows of a value at its hub."""

    def __init__(self, rows: Mapping[str, Rows], where: Segments, has: Bools):
        super().__init__(has, tuple(rows))
        self._rows, self.segments = rows, where
        self._joined: dict[tuple[str, ...], tuple[Tensor, Tensor | None]] = {}

    def widths(self) -> Ints:
        return self.segments.widths

    def _compute(self, chunk: Chunk) -> Value:
        spots = self.segments.spots(chunk)
        if chunk.silos not in self._joined:
            self._joined[chunk.silos] = self._join([self._rows[silo] for silo in chunk.silos])
        value, counts = self._joined[chunk.silos]
        if chunk.pool is not None and chunk.pool.whole is not None:
            mask = self.segments.shares(chunk, counts)
        elif counts is None:
            mask = spots.mask
        else:
            mask = rows_at(counts, spots.over) & spots.mask
        return Value(Rows(rows_at(value, spots.over), mask), True)

    def _join(self, each: Sequence[Rows]) -> tuple[Tensor, Tensor | None]:
        """Silos' rows one after the other, and which of them count (None: all)."""
        value = torch.cat([rows.value for rows in each]) if len(each) > 1 else each[0].value
        if all(rows.mask is self.segments.everything for rows in each):
            return value, None
        return value, torch.cat([rows.mask for rows in each])
