"""The rows of a minibatch by client, and values by row at clients.

Clients have different numbers of rows, so rows are padded and masked. Padding repeats a real row,
never zeros, whose gradients may not be finite.
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
from ...models.dropout import row_keys
from ..execute.described import Argument, FlatRows
from .axis import Chunk, ChunkValue
from .lazy import LazyValue, stack
from .store import RowStore, rows_at


class RowPositions(NamedTuple):
    """Where the rows of a chunk's clients are. `slots`: [c, b] or [c, Q, b] positions in the
    minibatch; `over`: the same, as indices into the concatenated minibatches of the chunk's silos;
    `mask`: which are real; `real`: indices of the real ones in the flattened slots; `at`: their
    `over`; `back`: the inverse of `at`, if these are all positions; `whole`: whether they are all,
    in order."""

    slots: Tensor
    over: Tensor
    mask: Tensor
    real: Tensor
    at: Tensor
    back: Tensor | None
    whole: bool


class MinibatchRows(RowMap):
    """The positions of a minibatch that each client has, sorted by client and step.

    `ids` are [B] or [Q, B]. `owner`: the place of each row's client on the axis of `clients`
    places, [silos, rows]. `width`: the number of columns for a client of a silo with so many rows.
    `steps`: the local steps that they are for.
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
        self._known: dict[tuple[bytes, ...], RowPositions] = {}
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
        """Indices into the concatenated minibatches of the silos, sorted by client and step. Pooled
        rows do not need them."""
        few = len(self._counts) * self._counts.shape[1] <= 2**16  # numpy sorts short ones faster
        return np.argsort(self._group.astype(np.uint16) if few else self._group, kind="stable")

    @cached_property
    def _starts(self) -> Ints:
        """Where the positions of each client and step begin."""
        counts = self._counts.reshape(-1)
        return (np.cumsum(counts) - counts).reshape(self._counts.shape)

    @cached_property
    def is_all(self) -> bool:
        """Whether these are all rows, in order."""
        return self.size == self._all and bool(np.array_equal(self._rows, np.arange(self.size)))

    @cached_property
    def everything(self) -> Tensor:
        """The mask of a complete minibatch: one tensor, compared by identity."""
        return torch.ones(self.size, dtype=torch.bool, device=self.device)

    def positions(self, chunk: Chunk) -> RowPositions:
        """The positions of a chunk's rows, computed once."""
        if chunk.key not in self._known:
            positions = self._positions if chunk.pool is None else self._pooled
            self._known[chunk.key] = positions(chunk)
        return self._known[chunk.key]

    def _positions(self, chunk: Chunk) -> RowPositions:
        counts = self._counts[chunk.places][..., None]
        column = np.arange(self._width(chunk.silos[0], int(counts.max(initial=0))))
        at = self._starts[chunk.places][..., None] + column
        real = column < counts
        last = len(self._order) - 1
        over = self._order[np.minimum(np.where(real, at, at[..., :1]), last)]
        over = over.reshape(len(chunk.places), *self._lead, len(column))
        slots = over % self.size
        if chunk.silos != self._silos:
            over = slots + self._silo_offsets(chunk, slots.ndim)
        flat = np.flatnonzero(real)
        return self._row_positions(chunk, slots, over, real.reshape(over.shape), flat)

    def _silo_offsets(self, chunk: Chunk, axes: int) -> Ints:
        """The offset of each client's silo in the concatenated minibatches."""
        return self.size * chunk.of.reshape(-1, *[1] * (axes - 1))

    def _pooled(self, chunk: Chunk) -> RowPositions:
        assert chunk.pool is not None
        slots = chunk.pool.at
        over = slots + self._silo_offsets(chunk, 2)
        real = np.ones(slots.shape, dtype=bool)
        return self._row_positions(chunk, slots, over, real, np.arange(slots.size))

    def _row_positions(
        self, chunk: Chunk, slots: Ints, over: Ints, mask: Bools, real: Ints
    ) -> RowPositions:
        at, back = over.reshape(-1)[real], None
        every = len(at) == len(chunk.silos) * self.size
        whole = every and bool((at[1:] > at[:-1]).all())
        if every:
            back = np.empty_like(at)
            back[at] = real
        a, b, c, d, e = map(self._sent, (slots, over, mask, real, at))
        return RowPositions(a, b, c, d, e, None if back is None else self._sent(back), whole)

    def _sent(self, a: npt.NDArray[Any]) -> Tensor:
        return tree.sent(torch.from_numpy(a), self.device)

    @property
    def several(self) -> bool:
        """Whether every local step has a minibatch of its own."""
        return bool(self._lead)

    def flat(self, silos: tuple[str, ...], places: Ints, of: Ints) -> FlatRows:
        """The rows of these clients in one minibatch, without padding. `of`: the index of each
        client's silo."""
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
        return FlatRows(
            *sent, tuple(counts.tolist()), starts, tuple(np.flatnonzero(np.bincount(rows)).tolist())
        )

    def owners(self, silos: Sequence[str]) -> Ints:
        """The place of each row's client in these silos' minibatches, [silos, size]."""
        if tuple(silos) == self._silos:
            return self._owner
        return self._owner[[self._silos.index(silo) for silo in silos]]

    def shares(self, chunk: Chunk, mask: Tensor | None) -> Tensor:
        """The weight of each pooled row in a mean over clients: a client's weight, shared equally
        by its rows. `mask`: the rows of the silos' minibatches that count (None: all)."""
        assert chunk.pool is not None
        assert chunk.pool.weights is not None
        if mask is None and self in chunk.memo:
            return chunk.memo[self]
        owners, weights = self.owners(chunk.silos), chunk.pool.weights
        counts, rows = weights > 0, self.rows
        if mask is not None:
            counts &= mask.cpu().numpy().reshape(weights.shape)
        if not counts.all():
            rows = np.bincount(owners[counts], minlength=len(rows))
            weights = np.where(counts, weights, 0)
        row_weights = weights / np.maximum(rows.take(owners), 1).astype(weights.dtype)
        shares = self._sent(np.take_along_axis(row_weights, chunk.pool.at, axis=1))
        if mask is None:
            chunk.memo[self] = shares
        return shares

    def joined(
        self,
        chunks: Iterable[Chunk],
        value: Callable[[Chunk], ChunkValue],
        size: int,
        checked: Callable[[Tensor], Tensor],
        empty: Callable[[int], Tensor],
    ) -> tuple[Tensor, Tensor | None]:
        """The minibatches of silos, `size` rows in all, put together from the rows of chunks; and a
        mask of the rows that came (None: all)."""
        rows, positions_seen = None, []
        for chunk in chunks:
            positions, chunk_value = self.positions(chunk), value(chunk)
            if positions.back is not None:
                flat_rows = self._flat(chunk, chunk_value)
                in_order = positions.whole and len(flat_rows) == size
                return checked(
                    flat_rows if in_order else flat_rows.index_select(0, positions.back)
                ), None
            rows = empty(size) if rows is None else rows
            rows.index_copy_(0, positions.at, checked(self.real(chunk, chunk_value)))
            positions_seen.append(positions.at)
        rows = empty(size) if rows is None else rows
        if sum(map(len, positions_seen)) == size:
            return rows, None
        mask = torch.zeros(size, dtype=torch.bool, device=self.device)
        for at in positions_seen:
            mask.index_fill_(0, at, True)
        rows[~mask] = 0
        return rows, mask

    def real(self, chunk: Chunk, value: ChunkValue) -> Tensor:
        """The rows of a chunk without padding, concatenated."""
        positions, flat_rows = self.positions(chunk), self._flat(chunk, value)
        return (
            flat_rows.index_select(0, positions.real)
            if len(positions.real) < len(flat_rows)
            else flat_rows
        )

    def _flat(self, chunk: Chunk, value: ChunkValue) -> Tensor:
        mask = self.positions(chunk).mask
        shape = value.tree.shape[: mask.ndim] if isinstance(value.tree, Tensor) else ()
        if not value.stacked or shape != mask.shape:
            raise ValueError("one entry for each of a client's rows is needed")
        return value.tree.flatten(0, mask.ndim - 1)


class ClientBatches(LazyValue):
    """Each client's rows of the data in a minibatch. `dropout`: what silos' masks are named by
    (None: they have none); `room`: bytes of rows to keep."""

    is_shared = True
    minibatch_rows: MinibatchRows

    def __init__(
        self,
        store: RowStore,
        where: MinibatchRows,
        dropout: Mapping[str, int | None],
        has: Bools,
        scope: Sequence[str],
        room: int,
    ):
        super().__init__(has, scope)
        self._store, self.minibatch_rows, self._dropout = store, where, dropout
        self._batches: dict[tuple[bytes, ...], Batch] = {}
        self._room = room

    def widths(self) -> Ints:
        return self.minibatch_rows.widths

    def _compute(self, chunk: Chunk) -> ChunkValue:
        batch = self._batches.get(chunk.key)  # a round uses its rows more than once
        if batch is None:
            batch = self._take(chunk)
            if (size := tree.nbytes(batch)) <= self._room:
                self._batches[chunk.key], self._room = batch, self._room - size
        if chunk.pool is not None and chunk.pool.weights is not None:
            batch = batch._replace(mask=self.minibatch_rows.shares(chunk, None))
        return ChunkValue(batch, True)

    def argument(self, silos: tuple[str, ...], flat: FlatRows, named: bool) -> Argument:
        x, y = self._store.flat(silos, flat.ids, flat.counts)
        mask = torch.ones(len(x), dtype=torch.bool, device=x.device)
        return Argument(Batch(x, y, mask), "rows")

    def _take(self, chunk: Chunk) -> Batch:
        positions = self.minibatch_rows.positions(chunk)
        one_each = positions.slots.shape == (len(chunk.silos), self.minibatch_rows.size)
        if one_each and positions.whole and self.minibatch_rows.is_all:
            keys = self._keys(chunk, self.minibatch_rows.ids.expand(positions.slots.shape))
            return Batch(*self._store.all(chunk.silos), positions.mask, keys=keys)
        rows = rows_at(self.minibatch_rows.ids, positions.slots)
        keys = self._keys(chunk, rows)
        return Batch(*self._store.take(chunk, rows), positions.mask, keys=keys)

    def _keys(self, chunk: Chunk, rows: Tensor) -> Tensor | None:
        """What the masks of these rows are named by. Silos of a chunk are alike."""
        numbers = [number for silo in chunk.silos if (number := self._dropout[silo]) is not None]
        if not numbers:
            return None
        each = torch.tensor(numbers, device=rows.device)[torch.from_numpy(chunk.of)]
        return row_keys(each.reshape(-1, *[1] * (rows.ndim - 1)), rows)


class RowNoise(LazyValue):
    """Noise for each client's rows; padding has none. `draw`: for some rows of a client."""

    def __init__(
        self,
        draw: Callable[[Client, Tensor], Noise],
        client: Callable[[int], Client],
        where: MinibatchRows,
        has: Bools,
        scope: Sequence[str],
    ):
        super().__init__(has, scope)
        self._draw, self._client, self._where = draw, client, where

    def _compute(self, chunk: Chunk) -> ChunkValue:
        positions = self._where.positions(chunk)
        rows = rows_at(self._where.ids, positions.slots)
        clients = zip(chunk.places.tolist(), rows, positions.mask, strict=True)
        noise = [among_padding(self._draw(self._client(at), r[ok]), ok) for at, r, ok in clients]
        return ChunkValue(stack(noise), True)


class ScatteredRows(LazyValue):
    """Each client's rows of a value at its hub."""

    is_shared = True
    minibatch_rows: MinibatchRows

    def __init__(self, rows: Mapping[str, Rows], where: MinibatchRows, has: Bools):
        super().__init__(has, tuple(rows))
        self._rows, self.minibatch_rows = rows, where
        self._joined: dict[tuple[str, ...], tuple[Tensor, Tensor | None]] = {}

    def widths(self) -> Ints:
        return self.minibatch_rows.widths

    def argument(self, silos: tuple[str, ...], flat: FlatRows, named: bool) -> Argument:
        value, counts = self._together(silos)
        if counts is None:
            mask = torch.ones(len(flat.over), dtype=torch.bool, device=value.device)
        else:
            mask = counts.index_select(0, flat.over)
        return Argument(Rows(value.index_select(0, flat.over), mask), "rows")

    def _together(self, silos: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
        if silos not in self._joined:
            self._joined[silos] = self._join([self._rows[silo] for silo in silos])
        return self._joined[silos]

    def _compute(self, chunk: Chunk) -> ChunkValue:
        positions = self.minibatch_rows.positions(chunk)
        value, counts = self._together(chunk.silos)
        if chunk.pool is not None and chunk.pool.weights is not None:
            mask = self.minibatch_rows.shares(chunk, counts)
        elif counts is None:
            mask = positions.mask
        else:
            mask = rows_at(counts, positions.over) & positions.mask
        if positions.whole and len(positions.over.flatten()) == len(value):
            return ChunkValue(Rows(value.unflatten(0, positions.over.shape), mask), True)
        return ChunkValue(Rows(rows_at(value, positions.over), mask), True)

    def _join(self, by_silo: Sequence[Rows]) -> tuple[Tensor, Tensor | None]:
        """The concatenated rows of silos, and a mask of those that count (None: all)."""
        first = by_silo[0].value
        value = torch.cat([rows.value for rows in by_silo]) if len(by_silo) > 1 else first
        if all(rows.mask is self.minibatch_rows.everything for rows in by_silo):
            return value, None
        return value, torch.cat([rows.mask for rows in by_silo])
