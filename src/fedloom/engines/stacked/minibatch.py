"""Rows of a minibatch: which client has which of them, and values by row at clients.

Ragged rows are padded and masked. Padding points at a real row, never at zeros, whose gradients may
not be finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core import tree
from ...core.placed import Batch, Noise, RowMap, Rows
from ...core.rng import Ints
from ...core.topology import Client
from ...fabric.noise import among_padding
from ...fabric.schedule import Bools
from ..execute.described import Flat, Given
from .axis import Chunk, Value
from .client_axis import Lazy, stack
from .store import Store, rows_at


class Spots(NamedTuple):
    """Where the rows of a chunk's clients are. `slots`: [c, b] or [c, Q, b] positions in the
    minibatch; `over`: the same, counted through the minibatches of the chunk's silos; `mask`: which
    of them are real; `real`: these, counted through the slots; `at`: their positions, counted
    through the minibatches; `back`: if these are all positions, where each of them is among the
    slots; `whole`: they are all, in their order."""

    slots: Tensor
    over: Tensor
    mask: Tensor
    real: Tensor
    at: Tensor
    back: Tensor | None
    whole: bool


class Segments(RowMap):
    """Which positions of a minibatch each client fills: positions sorted by client and step.

    `ids` are [B] or [Q, B]; `owner`: the place of each row's client on the axis, which has
    `clients` places, [silos, rows]; `width`: columns for so many rows of a silo's client; `steps`:
    local steps that they are for.
    """

    def __init__(
        self,
        ids: Tensor,
        silos: tuple[str, ...],
        owner: Ints,
        clients: int,
        width: Callable[[str, int], int],
        device: torch.device,
        dtype: torch.dtype,
        steps: int | None = None,
    ):
        self.size, self.steps = ids.numel(), steps
        self.ids = tree.sent(ids.flatten(), device)
        self._lead = tuple(ids.shape[:-1])
        self._width, self.device = width, device
        self.numbers = np.float64 if dtype == torch.float64 else np.float32
        self._known: dict[tuple[bytes, ...], Spots] = {}
        lines = ids.shape[0] if self._lead else 1
        rows = self._rows = ids.flatten().numpy()
        self._all = owner.shape[1]
        self._owner = owner.take(rows, axis=1)
        self._silos = silos
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
        few = len(self._counts) * self._counts.shape[1] <= 2**16  # numpy sorts short ones faster
        return np.argsort(self._group.astype(np.uint16) if few else self._group, kind="stable")

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
        at, back = over.reshape(-1)[real], None
        every = len(at) == len(chunk.silos) * self.size
        whole = every and bool((at[1:] > at[:-1]).all())
        if every:
            back = np.empty_like(at)
            back[at] = real
        a, b, c, d, e = map(self._sent, (slots, over, mask, real, at))
        return Spots(a, b, c, d, e, None if back is None else self._sent(back), whole)

    def _sent(self, a: npt.NDArray[Any]) -> Tensor:
        return tree.sent(torch.from_numpy(a), self.device)

    @property
    def several(self) -> bool:
        """Whether there are several minibatches at once."""
        return bool(self._lead)

    def flat(self, silos: tuple[str, ...], places: Ints, of: Ints) -> Flat:
        """The rows of these clients, without padding (`of`: which of the silos each is in), of one
        minibatch."""
        rows = self.rows[places]
        starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(rows, out=starts[1:])
        over = self._order
        if len(over) > starts[-1]:
            begins = self._starts[places, 0] - starts[:-1]
            over = over[np.repeat(begins, rows) + np.arange(starts[-1])]
        slots = over % self.size
        if silos != self._silos:
            over = slots + np.repeat(of * self.size, rows)
        counts = np.bincount(of, rows, minlength=len(silos)).astype(np.int64)
        sent = self._sent(over), self.ids.index_select(0, self._sent(slots))
        return Flat(
            *sent, tuple(counts.tolist()), starts, tuple(np.flatnonzero(np.bincount(rows)).tolist())
        )

    def owners(self, silos: Sequence[str]) -> Ints:
        """The place of the client of each row of these silos' minibatches, [silos, size]."""
        if tuple(silos) == self._silos:
            return self._owner
        return self._owner[[self._silos.index(silo) for silo in silos]]

    def shares(self, chunk: Chunk, mask: Tensor | None) -> Tensor:
        """Of the rows of a pool, what each has in a mean of clients: an equal part of what its
        client has. `mask`: which rows of the silos' minibatches count (None: all)."""
        assert chunk.pool is not None
        assert chunk.pool.whole is not None
        if mask is None and self in chunk.memo:
            return chunk.memo[self]
        owners, whole = self.owners(chunk.silos), chunk.pool.whole
        counts, rows = whole > 0, self.rows
        if mask is not None:
            counts &= mask.cpu().numpy().reshape(whole.shape)
        if not counts.all():
            rows = np.bincount(owners[counts], minlength=len(rows))
            whole = np.where(counts, whole, 0)
        each = whole / np.maximum(rows.take(owners), 1).astype(whole.dtype)
        found = self._sent(np.take_along_axis(each, chunk.pool.at, axis=1))
        if mask is None:
            chunk.memo[self] = found
        return found

    def joined(
        self,
        chunks: Iterable[Chunk],
        value: Callable[[Chunk], Value],
        size: int,
        checked: Callable[[Tensor], Tensor],
        empty: Callable[[int], Tensor],
    ) -> tuple[Tensor, Tensor | None]:
        """The minibatches of silos, `size` rows in all, by the rows that chunks have of them; and
        which of them came (None: all)."""
        rows, came = None, []
        for chunk in chunks:
            spots, mine = self.spots(chunk), value(chunk)
            if spots.back is not None:
                own = self._flat(chunk, mine)
                in_order = spots.whole and len(own) == size
                return checked(own if in_order else own.index_select(0, spots.back)), None
            rows = empty(size) if rows is None else rows
            rows.index_copy_(0, spots.at, checked(self.real(chunk, mine)))
            came.append(spots.at)
        rows = empty(size) if rows is None else rows
        if sum(map(len, came)) == size:
            return rows, None
        mask = torch.zeros(size, dtype=torch.bool, device=self.device)
        for at in came:
            mask.index_fill_(0, at, True)
        rows[~mask] = 0
        return rows, mask

    def real(self, chunk: Chunk, value: Value) -> Tensor:
        """A chunk's rows, one after the other, without padding."""
        spots, own = self.spots(chunk), self._flat(chunk, value)
        return own.index_select(0, spots.real) if len(spots.real) < len(own) else own

    def _flat(self, chunk: Chunk, value: Value) -> Tensor:
        mask = self.spots(chunk).mask
        got = value.tree.shape[: mask.ndim] if isinstance(value.tree, Tensor) else ()
        if not value.stacked or got != mask.shape:
            raise ValueError("one entry for each of a client's rows is needed")
        return value.tree.flatten(0, mask.ndim - 1)


class Taken(Lazy):
    """Each client's rows of a silo's data, for a minibatch. `room`: bytes of them that are kept."""

    is_shared = True
    segments: Segments

    def __init__(self, store: Store, where: Segments, has: Bools, scope: Sequence[str], room: int):
        super().__init__(has, scope)
        self._store, self.segments = store, where
        self._taken: dict[tuple[bytes, ...], Batch] = {}
        self._room = room

    def widths(self) -> Ints:
        return self.segments.widths

    def _compute(self, chunk: Chunk) -> Value:
        batch = self._taken.get(chunk.key)  # a round takes its rows more than once
        if batch is None:
            batch = self._take(chunk)
            if (size := tree.nbytes(batch)) <= self._room:
                self._taken[chunk.key], self._room = batch, self._room - size
        if chunk.pool is not None and chunk.pool.whole is not None:
            batch = batch._replace(mask=self.segments.shares(chunk, None))
        return Value(batch, True)

    def given(self, silos: tuple[str, ...], flat: Flat, named: bool) -> Given:
        x, y = self._store.flat(silos, flat.ids, flat.counts)
        mask = torch.ones(len(x), dtype=torch.bool, device=x.device)
        return Given(Batch(x, y, mask), "rows")

    def _take(self, chunk: Chunk) -> Batch:
        spots = self.segments.spots(chunk)
        one_each = spots.slots.shape == (len(chunk.silos), self.segments.size)
        if one_each and spots.whole and self.segments.is_all:
            return Batch(*self._store.all(chunk.silos), spots.mask)
        rows = rows_at(self.segments.ids, spots.slots)
        return Batch(*self._store.take(chunk, rows), spots.mask)


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

    is_shared = True
    segments: Segments

    def __init__(self, rows: Mapping[str, Rows], where: Segments, has: Bools):
        super().__init__(has, tuple(rows))
        self._rows, self.segments = rows, where
        self._joined: dict[tuple[str, ...], tuple[Tensor, Tensor | None]] = {}

    def widths(self) -> Ints:
        return self.segments.widths

    def given(self, silos: tuple[str, ...], flat: Flat, named: bool) -> Given:
        value, counts = self._together(silos)
        if counts is None:
            mask = torch.ones(len(flat.over), dtype=torch.bool, device=value.device)
        else:
            mask = counts.index_select(0, flat.over)
        return Given(Rows(value.index_select(0, flat.over), mask), "rows")

    def _together(self, silos: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
        if silos not in self._joined:
            self._joined[silos] = self._join([self._rows[silo] for silo in silos])
        return self._joined[silos]

    def _compute(self, chunk: Chunk) -> Value:
        spots = self.segments.spots(chunk)
        value, counts = self._together(chunk.silos)
        if chunk.pool is not None and chunk.pool.whole is not None:
            mask = self.segments.shares(chunk, counts)
        elif counts is None:
            mask = spots.mask
        else:
            mask = rows_at(counts, spots.over) & spots.mask
        if spots.whole and len(spots.over.flatten()) == len(value):
            return Value(Rows(value.unflatten(0, spots.over.shape), mask), True)
        return Value(Rows(rows_at(value, spots.over), mask), True)

    def _join(self, each: Sequence[Rows]) -> tuple[Tensor, Tensor | None]:
        """Silos' rows one after the other, and which of them count (None: all)."""
        value = torch.cat([rows.value for rows in each]) if len(each) > 1 else each[0].value
        if all(rows.mask is self.segments.everything for rows in each):
            return value, None
        return value, torch.cat([rows.mask for rows in each])
