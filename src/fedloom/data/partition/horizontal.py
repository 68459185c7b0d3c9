"""Horizontal partitions: which client of a silo gets which rows.

Every function returns the owner of every row: the index of its client in the silo's order. Training
and test rows are partitioned separately by the same rule, so that both have the same proportions.
`placement` names the random streams: silos with the same name get the same partition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...core.errors import SettingError, nearest
from ...core.registry import horizontal_partitioners
from ...core.rng import Ints, Stream, Streams
from ..dataset import Dataset
from .arrays import cut_rows

BINS = 10  # a numeric label is replaced by its quantile


@horizontal_partitioners.register("sizes")
def in_proportion(data: Dataset, shares: Sequence[float], seed: int, placement: str) -> Ints:
    """A random permutation split in blocks of given `sizes`, which are proportions. Training rows
    are assigned as by `partition` with the same seed."""
    owner = np.zeros(data.size, dtype=np.int64)
    for rows, more in _split(data):
        stream = Streams(seed).common("partition", placement, *more)
        _assign(owner, rows, shares, stream)
    return owner


@horizontal_partitioners.register("random")
def in_blocks(data: Dataset, clients: int, seed: int, placement: str) -> Ints:
    """A random permutation split in equal blocks."""
    return in_proportion(data, [1.0] * clients, seed, placement)


@horizontal_partitioners.register("dirichlet")
def by_label(data: Dataset, clients: int, alpha: float, seed: int, placement: str) -> Ints:
    """The clients' shares of each class are drawn from Dirichlet(alpha, ..., alpha): the smaller
    alpha, the fewer clients have most of a class. Test rows have the same shares."""
    if not 0 < alpha < math.inf:
        raise SettingError(f"alpha must be above 0, not {alpha}")
    owner = np.zeros(data.size, dtype=np.int64)
    group = _groups(data)
    draw = np.random.default_rng(Streams(seed).common("dirichlet", placement).seed())
    for label in range(int(group.max()) + 1):
        shares = draw.dirichlet([alpha] * clients)
        for rows, more in _split(data):
            stream = Streams(seed).common("dirichlet", placement, label, *more)
            _assign(owner, rows[group[rows] == label], shares.tolist(), stream)
    return owner


@horizontal_partitioners.register("key")
def by_key(data: Dataset, key: str) -> tuple[tuple[str, ...], Ints]:
    """One client for each value of a key, named by it, in the order of the values."""
    if key not in data.keys:
        tail = nearest(key, data.keys) if data.keys else "; it has none"
        raise SettingError(f"data set {data.name} has no key {key!r}{tail}")
    values = data.keys[key]
    known, owner = np.unique(
        values.astype(str) if values.dtype == object else values, return_inverse=True
    )
    return tuple(map(str, known.tolist())), owner.reshape(-1).astype(np.int64)


def _split(data: Dataset) -> list[tuple[Ints, tuple[str, ...]]]:
    """Training and test rows, with a suffix for the names of their streams."""
    return [(np.flatnonzero(~data.test), ()), (np.flatnonzero(data.test), ("test",))]


def _assign(owner: Ints, rows: Ints, shares: Sequence[float], stream: Stream) -> None:
    """Assign rows to clients, in random order."""
    order = rows[stream.permutation(len(rows))]
    for place, client_rows in enumerate(cut_rows(len(rows), shares, order)):
        owner[client_rows] = place


def _groups(data: Dataset) -> Ints:
    """Classes; for numeric labels (the first of several), deciles of the training labels."""
    y = data.y.reshape(data.size, -1).numpy()
    if data.goal != "number":
        return np.unique(y, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    edges = np.quantile(y[~data.test, 0], np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(edges, y[:, 0], side="right").astype(np.int64)
