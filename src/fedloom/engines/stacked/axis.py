"""One axis for all clients: those of every silo, silo by silo, in their order.

A client's place on it is a number; who is there is one array. Clients are computed in chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core import tree
from ...core.rng import Floats, Ints
from ...core.topology import Client
from ...fabric.schedule import Bools
from ..limits import DEFAULT


class Axis:
    """Who is where."""

    def __init__(self, names: Mapping[str, tuple[str, ...]]):
        self.names = names
        ends = np.cumsum([len(mine) for mine in names.values()])
        starts = ends - [len(mine) for mine in names.values()]
        self.size = int(ends[-1])
        self.span = {j: slice(int(a), int(b)) for j, a, b in zip(names, starts, ends, strict=True)}
        self._silos, self._ends = tuple(names), ends

    def client(self, place: int) -> Client:
        silo = self._silos[int(np.searchsorted(self._ends, place, side="right"))]
        return Client(silo, self.names[silo][place - self.span[silo].start])

    def places(self, there: Bools, silos: Iterable[str]) -> Ints:
        """Those who are there, of these silos."""
        if tuple(silos) == self._silos:
            return np.flatnonzero(there)
        spans = [self.span[silo] for silo in silos]
        return np.concatenate([np.flatnonzero(there[span]) + span.start for span in spans])

    def chunk(self, silos: tuple[str, ...], places: Ints) -> Chunk:
        """Clients of these silos, in the order of the axis."""
        if len(silos) == 1:
            return Chunk(silos, places, (len(places),))
        places = np.sort(places)
        edges = [(self.span[silo].start, self.span[silo].stop) for silo in silos]
        found = np.searchsorted(places, edges)
        return Chunk(silos, places, tuple((found[:, 1] - found[:, 0]).tolist()))


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

    def pick(self, positions: Ints) -> Value:
        """Some of the clients, by position."""
        at = beside(torch.from_numpy(positions), self.tree)
        return Value(tree.map_tensors(lambda a: a[at], self.tree), True)

    def narrow(self, start: int, length: int) -> Value:
        return Value(tree.map_tensors(lambda a: a.narrow(0, start, length), self.tree), True)

    def sums(
        self, weights: Tensor | None, counts: Sequence[int], lone: int = DEFAULT.lone_sum
    ) -> Any:
        """Weighted sums over the clients of each silo, [silos, ...], in double precision. `lone`:
        from so many numbers of a client, clients are added one by one."""
        if not self.stacked:
            shares = [weights.sum()] if weights is not None and len(counts) == 1 else None
            if weights is not None and shares is None:
                shares = [w.sum() for w in weights.split(list(counts))]
            return tree.map_tensors(
                lambda a: torch.stack([a.double() * share for share in shares or counts]), self.tree
            )
        return tree.map_tensors(lambda a: _sums(a, weights, counts, lone), self.tree)


def _sums(a: Tensor, weights: Tensor | None, counts: Sequence[int], lone: int) -> Tensor:
    if weights is None and len(a) and a[0].numel() >= lone:
        return torch.stack([_one_by_one(mine) for mine in a.split(list(counts))])
    if weights is not None:
        if len(counts) == 1:
            return torch.tensordot(weights, a.double(), 1)[None]
        a = a.double() * weights.reshape(-1, *[1] * (a.ndim - 1))
    if len(set(counts)) == 1:
        return a.unflatten(0, (len(counts), counts[0])).sum(1, dtype=torch.float64)
    return torch.stack([mine.sum(0, dtype=torch.float64) for mine in a.split(list(counts))])


def _one_by_one(a: Tensor) -> Tensor:
    """A sum that does not hold all of them in double precision at once."""
    if not len(a):
        return a.sum(0, dtype=torch.float64)
    total = a[0].double()
    for mine in a[1:].unbind():
        total.add_(mine)
    return total


Shares = Tensor | Sequence[float]  # of silos in their sums: what clients' weights add up to


def added(a: Shares, b: Shares) -> Shares:
    """Of two chunks, of which one may have weights and the other none."""
    if isinstance(a, Tensor):
        return a + torch.as_tensor(b, dtype=a.dtype, device=a.device)
    if isinstance(b, Tensor):
        return added(b, a)
    return [mine + theirs for mine, theirs in zip(a, b, strict=True)]


def some(parts: Shares) -> list[bool]:
    """Whether anybody has a part."""
    if not isinstance(parts, Tensor):
        return [part > 0 for part in parts]
    positive = parts > 0
    return [True] * len(parts) if bool(positive.all()) else positive.tolist()


def means(totals: Any, parts: Shares, like: Any) -> Any:
    """Sums of each silo as means in the precision of another tree; where nobody has a part in one,
    it stays as it is."""
    if isinstance(parts, Tensor):
        by: Any = torch.where(parts == 0, 1.0, parts)
    elif len(set(parts)) == 1:
        by = parts[0] or 1.0
    else:
        by = beside(torch.tensor([part or 1.0 for part in parts], dtype=torch.float64), totals)

    def mean(a: Tensor, b: Tensor) -> Tensor:
        each = by.reshape(-1, *[1] * (a.ndim - 1)) if isinstance(by, Tensor) else by
        found = a if each is by and by == 1 else a / each
        return found.to(b.dtype).contiguous()

    return tree.map_tensors(mean, totals, like)


def beside(a: Tensor, values: Any) -> Tensor:
    """Where these are."""
    there = tree.tensors(values)
    return tree.sent(a, there[0].device) if there else a


def fixed(numbers: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Numbers that depend on who is computed together, and on nothing else of a round."""
    return tree.sent(torch.from_numpy(numbers), device)


class Pool(NamedTuple):
    """Rows of all clients of silos, as if each silo had one client. `at`: their positions in the
    minibatch, [silos, rows]. For a mean of clients, `parts`: how many of a silo's clients these
    rows stand for, `whole`: what the client of each row of the minibatch has in their mean, 0 if
    it is not there."""

    at: Ints
    parts: Floats | None = None
    whole: npt.NDArray[Any] | None = None

    def of(self, some: slice) -> Pool:
        """Of some silos."""
        if self.parts is None or self.whole is None:
            return Pool(self.at[some])
        return Pool(self.at[some], self.parts[some], self.whole[some])


@dataclass
class Chunk:
    """Some clients, by place, so many of each of these silos, and what was computed for them.
    `named`: they are all of one silo, and work may know which. `pool`: each of them stands for a
    silo. `kept`: for the rest of the round."""

    silos: tuple[str, ...]
    places: Ints
    counts: tuple[int, ...]
    named: bool = False
    pool: Pool | None = None
    kept: bool = False
    memo: dict[Any, Any] = field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        return len(self.silos) > 1

    @cached_property
    def key(self) -> tuple[bytes, ...]:
        """Differs where the rows of a minibatch do."""
        places = self.places.tobytes()
        return (places,) if self.pool is None else (places, self.pool.at.tobytes())

    @cached_property
    def of(self) -> Ints:
        """Which of the silos each client is in."""
        return np.repeat(np.arange(len(self.silos)), self.counts)

    def by_silo(self) -> Iterator[tuple[int, Chunk]]:
        """The clients of each silo by themselves, and where among these they begin."""
        start = 0
        for silo, count in zip(self.silos, self.counts, strict=True):
            if count:
                some = slice(start, start + count)
                pool = None if self.pool is None else self.pool.of(some)
                yield start, Chunk((silo,), self.places[some], (count,), named=True, pool=pool)
            start += count
