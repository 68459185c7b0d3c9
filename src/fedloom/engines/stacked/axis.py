"""One axis for all clients: silo by silo, in each silo's order.

A client's place on the axis is a number, and a set of clients is a boolean array. Clients are
computed in chunks.
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
    """The places of clients on the axis."""

    def __init__(self, names: Mapping[str, tuple[str, ...]]):
        self.names = names
        ends = np.cumsum([len(clients) for clients in names.values()])
        starts = ends - [len(clients) for clients in names.values()]
        self.size = int(ends[-1])
        self.span = {j: slice(int(a), int(b)) for j, a, b in zip(names, starts, ends, strict=True)}
        self._silos, self._ends = tuple(names), ends

    def client(self, place: int) -> Client:
        silo = self._silos[int(np.searchsorted(self._ends, place, side="right"))]
        return Client(silo, self.names[silo][place - self.span[silo].start])

    def places(self, present: Bools, silos: Iterable[str]) -> Ints:
        """The places of these silos' clients that are present."""
        if tuple(silos) == self._silos:
            return np.flatnonzero(present)
        spans = [self.span[silo] for silo in silos]
        return np.concatenate([np.flatnonzero(present[span]) + span.start for span in spans])

    def chunk(self, silos: tuple[str, ...], places: Ints) -> Chunk:
        """A chunk of clients of these silos, in the order of the axis."""
        if len(silos) == 1:
            return Chunk(silos, places, (len(places),))
        places = np.sort(places)
        edges = [(self.span[silo].start, self.span[silo].stop) for silo in silos]
        bounds = np.searchsorted(places, edges)
        return Chunk(silos, places, tuple((bounds[:, 1] - bounds[:, 0]).tolist()))


class ChunkValue(NamedTuple):
    """The value of a chunk: one tree with a leading client axis (`stacked`), or one tree that is
    the same for all its clients."""

    tree: Any
    stacked: bool

    def by_client(self, count: int) -> list[Any]:
        """One tree for each client."""
        if not self.stacked:
            return [self.tree] * count
        return [tree.map_tensors(lambda a, i=i: a[i], self.tree) for i in range(count)]

    def numbers(self, count: int) -> Tensor:
        """One number for each client, [c]."""
        return self.tree if self.stacked else self.tree.expand(count)

    def pick(self, positions: Ints) -> ChunkValue:
        """The values of some clients, by position."""
        at = on_device_of(torch.from_numpy(positions), self.tree)
        return ChunkValue(tree.map_tensors(lambda a: a[at], self.tree), True)

    def narrow(self, start: int, length: int) -> ChunkValue:
        return ChunkValue(tree.map_tensors(lambda a: a.narrow(0, start, length), self.tree), True)

    def sums(
        self, weights: Tensor | None, counts: Sequence[int], sequential_from: int = DEFAULT.lone_sum
    ) -> Any:
        """Weighted sums over the clients of each silo, [silos, ...], in double precision.
        `sequential_from`: tensors with at least so many numbers per client are added one by one."""
        if not self.stacked:
            shares = [weights.sum()] if weights is not None and len(counts) == 1 else None
            if weights is not None and shares is None:
                shares = [w.sum() for w in weights.split(list(counts))]
            return tree.map_tensors(
                lambda a: torch.stack([a.double() * share for share in shares or counts]), self.tree
            )
        return tree.map_tensors(lambda a: _sums(a, weights, counts, sequential_from), self.tree)


def _sums(a: Tensor, weights: Tensor | None, counts: Sequence[int], sequential_from: int) -> Tensor:
    if weights is None and len(a) and a[0].numel() >= sequential_from:
        return torch.stack([_sequential_sum(of_silo) for of_silo in a.split(list(counts))])
    if weights is not None:
        if len(counts) == 1:
            return torch.tensordot(weights, a.double(), 1)[None]
        a = a.double() * weights.reshape(-1, *[1] * (a.ndim - 1))
    if len(set(counts)) == 1:
        return a.unflatten(0, (len(counts), counts[0])).sum(1, dtype=torch.float64)
    return torch.stack([of_silo.sum(0, dtype=torch.float64) for of_silo in a.split(list(counts))])


def _sequential_sum(a: Tensor) -> Tensor:
    """A sum that does not need all clients in double precision at once."""
    if not len(a):
        return a.sum(0, dtype=torch.float64)
    total = a[0].double()
    for client_value in a[1:].unbind():
        total.add_(client_value)
    return total


WeightSums = Tensor | Sequence[float]  # for each silo, the sum of its clients' weights


def added_weights(a: WeightSums, b: WeightSums) -> WeightSums:
    """The weight sums of two chunks; one may be a tensor and the other not."""
    if isinstance(a, Tensor):
        return a + torch.as_tensor(b, dtype=a.dtype, device=a.device)
    if isinstance(b, Tensor):
        return added_weights(b, a)
    return [x + y for x, y in zip(a, b, strict=True)]


def have_weight(sums: WeightSums) -> list[bool]:
    """For each silo, whether its weights are positive."""
    if not isinstance(sums, Tensor):
        return [weight_sum > 0 for weight_sum in sums]
    positive = sums > 0
    return [True] * len(sums) if bool(positive.all()) else positive.tolist()


def means(totals: Any, weight_sums: WeightSums, like: Any) -> Any:
    """Means from the sums of each silo, in the precision of `like`. A silo without weight keeps its
    sum."""
    if isinstance(weight_sums, Tensor):
        divisor: Any = torch.where(weight_sums == 0, 1.0, weight_sums)
    elif len(set(weight_sums)) == 1:
        divisor = weight_sums[0] or 1.0
    else:
        divisor = on_device_of(
            torch.tensor([weight_sum or 1.0 for weight_sum in weight_sums], dtype=torch.float64),
            totals,
        )

    def mean(a: Tensor, b: Tensor) -> Tensor:
        by = divisor.reshape(-1, *[1] * (a.ndim - 1)) if isinstance(divisor, Tensor) else divisor
        result = a if by is divisor and divisor == 1 else a / by
        return result.to(b.dtype).contiguous()

    return tree.map_tensors(mean, totals, like)


def on_device_of(a: Tensor, values: Any) -> Tensor:
    """Send `a` to the device of these values."""
    tensors = tree.tensors(values)
    return tree.sent(a, tensors[0].device) if tensors else a


def sent_to(numbers: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Send numbers to a device."""
    return tree.sent(torch.from_numpy(numbers), device)


class PooledRows(NamedTuple):
    """Rows of all clients of some silos, computed as if each silo had one client. `at`: their
    positions in the minibatch, [silos, rows]. For a mean over clients, `clients`: how many of a
    silo's clients these rows represent; `weights`: for each row of the minibatch, the weight of its
    client in the mean, 0 for an absent client."""

    at: Ints
    clients: Floats | None = None
    weights: npt.NDArray[Any] | None = None

    def of(self, silos: slice) -> PooledRows:
        """The rows of some silos."""
        if self.clients is None or self.weights is None:
            return PooledRows(self.at[silos])
        return PooledRows(self.at[silos], self.clients[silos], self.weights[silos])


@dataclass
class Chunk:
    """Some clients by place, the number of each silo's clients among them, and a memo of what was
    computed for them. `named`: all are of one silo, and work may ask for its name. `pool`: each of
    them stands for a whole silo. `kept`: for the rest of the round."""

    silos: tuple[str, ...]
    places: Ints
    counts: tuple[int, ...]
    named: bool = False
    pool: PooledRows | None = None
    kept: bool = False
    memo: dict[Any, Any] = field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        return len(self.silos) > 1

    @cached_property
    def key(self) -> tuple[bytes, ...]:
        """A key of the chunk's rows in a minibatch."""
        places = self.places.tobytes()
        return (places,) if self.pool is None else (places, self.pool.at.tobytes())

    @cached_property
    def of(self) -> Ints:
        """The index of each client's silo."""
        return np.repeat(np.arange(len(self.silos)), self.counts)

    def by_silo(self) -> Iterator[tuple[int, Chunk]]:
        """The part of the chunk of each silo, and where it begins."""
        start = 0
        for silo, count in zip(self.silos, self.counts, strict=True):
            if count:
                part = slice(start, start + count)
                pool = None if self.pool is None else self.pool.of(part)
                yield start, Chunk((silo,), self.places[part], (count,), named=True, pool=pool)
            start += count
