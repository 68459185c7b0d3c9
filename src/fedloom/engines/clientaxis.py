"""The client axis: the only file that knows that clients lie along the first axis of a tensor.

A value at clients is lazy: a description of what each client would compute. It is computed for a
chunk of a silo's clients at a time. Ragged rows are padded and masked, and local work is
`torch.func.vmap` over the chunk; a chunk of one client is a plain call, and so is each client's
work with an argument that says `loop_only`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from .. import tree
from ..federation.local import Local, giving_tensors
from ..federation.placed import AtClients, Batch, Noise, RowMap, Rows
from ..federation.releases import among_padding
from ..federation.schedule import Bools
from ..rng import Ints
from .replay import Player

KEPT = 2**22  # bytes of a chunk's rows that are not worth taking twice
Call = Callable[[Local, str, Sequence[Any]], Any]


class Value(NamedTuple):
    """A chunk's value: one tree with a leading client axis, or one for all its clients alike."""

    tree: Any
    stacked: bool

    def each(self, count: int) -> list[Any]:
        """One tree a client."""
        if not self.stacked:
            return [self.tree] * count
        return [tree.map_tensors(lambda a, i=i: a[i], self.tree) for i in range(count)]

    def numbers(self, count: int) -> Tensor:
        """One number a client, [c]."""
        return self.tree if self.stacked else self.tree.expand(count)

    def sum(self, weights: Tensor | None, count: int) -> Any:
        """Weighted sum over the clients, in double precision."""
        if not self.stacked:
            return tree.scale(tree.widened(self.tree), count if weights is None else weights.sum())
        if weights is None:
            return tree.map_tensors(lambda a: a.sum(0, dtype=torch.float64), self.tree)
        return tree.map_tensors(lambda a: torch.tensordot(weights, a.double(), 1), self.tree)

    def pick(self, positions: Ints) -> Value:
        """Some of the clients, by position."""
        at = torch.from_numpy(positions)
        return Value(tree.map_tensors(lambda a: a[at.to(a.device)], self.tree), True)


@dataclass
class Chunk:
    """Some clients of a silo, by their place in it, and what was computed for them so far."""

    silo: str
    places: Ints
    memo: dict[int, Value] = field(default_factory=dict)


class Lazy(AtClients):
    """What each client would compute. `has` says which clients have it."""

    has: Mapping[str, Bools]

    def shapes(self, silo: str) -> Ints | None:
        """For each client a number that differs where shapes do: clients of different shapes
        cannot share a chunk. None where all are alike."""
        return None

    def widths(self, silo: str) -> Ints | None:
        """How many rows each client's value has; None where it has none."""
        return None

    def value(self, chunk: Chunk) -> Value:
        if id(self) not in chunk.memo:
            chunk.memo[id(self)] = self._compute(chunk)
        return chunk.memo[id(self)]

    @abstractmethod
    def _compute(self, chunk: Chunk) -> Value: ...


class Same(Lazy):
    """One value for all clients of a silo: passed to vmap as it is."""

    def __init__(self, values: Mapping[str, Any], has: Mapping[str, Bools]):
        self._values, self.has = values, has

    def _compute(self, chunk: Chunk) -> Value:
        return Value(self._values[chunk.silo], False)


Groups = Sequence[tuple[Ints, Value]]  # clients by place, and their value


class Stacked(Lazy):
    """Values computed already, in groups of clients with equal shapes."""

    def __init__(self, groups: Mapping[str, Groups], clients: Mapping[str, int]):
        self._groups = groups
        self._group: dict[str, Ints] = {}  # silo -> [K] which group a client is in, -1: none
        self._position: dict[str, Ints] = {}  # silo -> [K] where in it
        for silo, parts in groups.items():
            self._group[silo] = np.full(clients[silo], -1)
            self._position[silo] = np.full(clients[silo], -1)
            for number, (places, _) in enumerate(parts):
                self._group[silo][places] = number
                self._position[silo][places] = np.arange(len(places))
        self.has = {silo: group >= 0 for silo, group in self._group.items()}

    def shapes(self, silo: str) -> Ints:
        return self._group[silo]

    def _compute(self, chunk: Chunk) -> Value:
        places, value = self._groups[chunk.silo][int(self._group[chunk.silo][chunk.places[0]])]
        if np.array_equal(places, chunk.places) or not value.stacked:
            return value
        return value.pick(self._position[chunk.silo][chunk.places])


def stacked_by_shape(each: Mapping[int, Any]) -> Groups:
    """Values by place, as groups that can share a chunk."""
    alike: dict[Any, list[int]] = {}
    for place, mine in each.items():
        alike.setdefault(tree.signature(mine), []).append(place)
    return [
        (np.array(places), Value(_stack([each[place] for place in places]), True))
        for places in alike.values()
    ]


def _stack(each: Sequence[Any]) -> Any:
    return tree.map_tensors(lambda *mine: torch.stack(mine), *each)


def together(shapes: Sequence[Ints | None]) -> Ints | None:
    """One number for each combination of numbers."""
    known = [mine for mine in shapes if mine is not None]
    if len(known) < 2:
        return known[0] if known else None
    return np.unique(np.stack(known), axis=1, return_inverse=True)[1].reshape(-1)


def widest(widths: Sequence[Ints | None]) -> Ints | None:
    """The largest number of rows of each client."""
    known = [mine for mine in widths if mine is not None]
    return np.maximum.reduce(known) if known else None


class Mapped(Lazy):
    """Local work on lazy values. What depends on no client is computed once for all."""

    def __init__(
        self, call: Call, play: Player, f: Local, values: Sequence[Lazy], silos: Sequence[str]
    ):
        self._call, self._play, self._f, self._values = call, play, f, values
        self.has = {
            silo: np.logical_and.reduce([value.has[silo] for value in values]) for silo in silos
        }

    def shapes(self, silo: str) -> Ints | None:
        return together([value.shapes(silo) for value in self._values])

    def widths(self, silo: str) -> Ints | None:
        return widest([value.widths(silo) for value in self._values])

    def _compute(self, chunk: Chunk) -> Value:
        args = [value.value(chunk) for value in self._values]
        trees = [arg.tree for arg in args]
        where = f"clients of {chunk.silo}"
        stacked = tuple(arg.stacked for arg in args)
        if not any(stacked):
            return Value(self._call(giving_tensors(self._f), where, trees), False)
        count = len(chunk.places)
        loop = any(getattr(arg, "loop_only", False) for arg in trees)
        if count > 1 and not loop:
            return Value(self._call(self._together(stacked), where, trees), True)
        each = zip(*(arg.each(count) for arg in args), strict=True)
        alone = giving_tensors(self._f) if loop else self._alone()
        return Value(_stack([self._call(alone, where, mine) for mine in each]), True)

    def _together(self, stacked: tuple[bool, ...]) -> Local:
        """f for all clients of a chunk at once."""
        f = giving_tensors(self._f)

        def mapped(*trees: Any) -> Any:
            along = (0 if axis else None for axis in stacked)
            return vmap(f, in_dims=tuple(map(tree.axes, trees, along)))(*trees)

        return wraps(f)(lambda *trees: self._play((self._f, stacked), mapped, trees))

    def _alone(self) -> Local:
        """f for one client by itself."""
        f = giving_tensors(self._f)
        return wraps(f)(lambda *trees: self._play((self._f, None), f, trees))


class Segments(RowMap):
    """Which positions of a minibatch each client fills: positions sorted by client and step.

    `ids` are [B] or [Q, B]; `padding` adds columns that mean nothing (a test uses it).
    """

    def __init__(
        self,
        ids: Tensor,
        owner: Mapping[str, Ints],
        clients: Mapping[str, int],
        padding: int,
        device: torch.device,
    ):
        self.size = ids.numel()
        self.ids = ids.flatten().to(device)
        self._lead = tuple(ids.shape[:-1])
        self._padding, self._device = padding, device
        self._known: dict[tuple[str, bytes], tuple[Tensor, Tensor]] = {}
        steps = ids.shape[0] if self._lead else 1
        step = np.repeat(np.arange(steps), ids.shape[-1])
        rows = ids.flatten().numpy()
        self._order: dict[str, Ints] = {}
        self._starts: dict[str, Ints] = {}
        self._counts: dict[str, Ints] = {}
        for silo, owners in owner.items():
            group = owners[rows] * steps + step
            counts = np.bincount(group, minlength=clients[silo] * steps)
            self._order[silo] = np.argsort(group, kind="stable")
            self._counts[silo] = counts.reshape(-1, steps)
            self._starts[silo] = (np.cumsum(counts) - counts).reshape(-1, steps)

    def rows(self, silo: str) -> Ints:
        """How many rows each client has here."""
        return self._counts[silo].sum(1)

    def widths(self, silo: str) -> Ints:
        """How many rows each client has in one step, at most."""
        return self._counts[silo].max(1)

    def positions(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """As computed before for these clients, or now."""
        key = (chunk.silo, chunk.places.tobytes())
        if key not in self._known:
            self._known[key] = self._positions(chunk)
        return self._known[key]

    def _positions(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """[c, b] or [c, Q, b] positions, and which of them are real. There is at least one column;
        padding points at a real row, never at zeros, whose gradients may not be finite."""
        counts = self._counts[chunk.silo][chunk.places][..., None]
        column = np.arange(max(1, int(counts.max(initial=0))) + self._padding)
        at = np.minimum(self._starts[chunk.silo][chunk.places][..., None] + column, self.size - 1)
        real = column < counts
        slots = self._order[chunk.silo][np.where(real, at, at[..., :1])]
        shape = (len(chunk.places), *self._lead, len(column))
        return self._tensor(slots.reshape(shape)), self._tensor(real.reshape(shape))

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def put(self, chunk: Chunk, value: Value, rows: Tensor, mask: Tensor) -> None:
        """Write a chunk's rows where they belong in the minibatch."""
        slots, real = self.positions(chunk)
        rows[slots[real]], mask[slots[real]] = value.tree[real], True

    def real_rows(self, chunk: Chunk, value: Value) -> Tensor:
        """A chunk's rows without padding, [rows, ...]."""
        _, real = self.positions(chunk)
        got = value.tree.shape[: real.ndim] if isinstance(value.tree, Tensor) else ()
        if not value.stacked or got != real.shape:
            raise ValueError("one entry for each of a client's rows is needed")
        return value.tree[real]


class Taken(Lazy):
    """Each client's rows of a silo's data, for a minibatch."""

    def __init__(
        self,
        x: Mapping[str, Tensor],
        y: Mapping[str, Tensor | None],
        where: Segments,
        has: Mapping[str, Bools],
    ):
        self._x, self._y, self._where, self.has = x, y, where, has
        self._kept: dict[tuple[str, bytes], Value] = {}

    def widths(self, silo: str) -> Ints:
        return self._where.widths(silo)

    def _compute(self, chunk: Chunk) -> Value:
        key = (chunk.silo, chunk.places.tobytes())
        if key in self._kept:  # a round takes the rows of its minibatch more than once
            return self._kept[key]
        slots, mask = self._where.positions(chunk)
        rows, y = self._where.ids[slots], self._y[chunk.silo]
        batch = Batch(_rows(self._x[chunk.silo], rows), None if y is None else _rows(y, rows), mask)
        if tree.nbytes(batch) < KEPT:
            self._kept[key] = Value(batch, True)
        return Value(batch, True)


class RowNoise(Lazy):
    """Noise for each client's rows; padding gets none. `draw`: of some rows of a client."""

    def __init__(
        self,
        draw: Callable[[str, int, Tensor], Noise],
        where: Segments,
        has: Mapping[str, Bools],
    ):
        self._draw, self._where, self.has = draw, where, has

    def _compute(self, chunk: Chunk) -> Value:
        slots, real = self._where.positions(chunk)
        rows = self._where.ids[slots]
        each = zip(chunk.places.tolist(), rows, real, strict=True)
        found = [among_padding(self._draw(chunk.silo, at, r[ok]), ok) for at, r, ok in each]
        return Value(_stack(found), True)


class OwnNoise(Lazy):
    """Noise of one shape for each client of a silo."""

    def __init__(self, draw: Callable[[str, int], Tensor], has: Mapping[str, Bools]):
        self._draw, self.has = draw, has

    def _compute(self, chunk: Chunk) -> Value:
        return Value(_stack([self._draw(chunk.silo, at) for at in chunk.places.tolist()]), True)


class Scattered(Lazy):
    """Each client's rows of a value at its hub."""

    def __init__(self, rows: Mapping[str, Rows], where: Segments, has: Mapping[str, Bools]):
        self._rows, self._where, self.has = rows, where, has

    def widths(self, silo: str) -> Ints:
        return self._where.widths(silo)

    def _compute(self, chunk: Chunk) -> Value:
        slots, mask = self._where.positions(chunk)
        value, counts = self._rows[chunk.silo]
        return Value(Rows(_rows(value, slots), _rows(counts, slots) & mask), True)


def _rows(values: Tensor, at: Tensor) -> Tensor:
    """values[at], several times faster."""
    return values.index_select(0, at.flatten()).unflatten(0, at.shape)
