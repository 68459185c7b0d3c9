"""Cutting one table both ways: columns across silos, rows across the clients of each silo.

Rows are placed independently in every silo: one sample may sit with the third client of one silo
and the first of another, and silos may have different numbers of clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..errors import SettingError, nearest
from ..rng import Ints, Streams
from .placement import Placement, Shard


def contiguous(columns: int, silos: int) -> list[range]:
    """Neighbouring columns to each silo; the first `columns mod silos` get one more."""
    if not 1 <= silos <= columns:
        raise SettingError(f"{columns} columns cannot be cut for {silos} silos")
    each, more = divmod(columns, silos)
    starts = [j * each + min(j, more) for j in range(silos + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def cut_rows(size: int, clients: int | Sequence[float], order: Ints) -> list[Ints]:
    """Contiguous blocks of `order`: equal (as the papers do), or in the given proportions."""
    if isinstance(clients, int | np.integer):
        clients = [1.0] * int(clients)
    shares = np.asarray(clients, dtype=float)
    wrong = shares.ndim != 1 or not len(shares) or not np.isfinite(shares).all()
    if wrong or (shares < 0).any() or not shares.sum():
        raise SettingError(
            f"rows cannot be cut by {list(shares.flat)}: a number of clients, or their proportions"
        )
    ends = np.rint(np.cumsum(shares) / shares.sum() * size).astype(int)
    return np.split(order[:size], ends[:-1])


def partition(
    x: Mapping[str, Tensor],
    y: Tensor | None,
    clients: Mapping[str, int | Sequence[float]],
    *,
    ids: Sequence[object] | None = None,
    labels_at: str | Sequence[str] | None = None,
    seed: int = 0,
    mirrored: bool = False,
) -> Placement:
    """Place rows: {silo: features [M, ...]}, {silo: number of clients, or their proportions}.

    `labels_at` names the silos that hold labels (all, by default). `mirrored` gives every silo
    the same cut, as the TDCD authors' code does.
    """
    x = {silo: torch.as_tensor(rows) for silo, rows in x.items()}
    y = None if y is None else torch.as_tensor(y)
    if set(x) != set(clients):
        raise SettingError(f"silos {sorted(x)} have features, {sorted(clients)} have clients")
    sizes = {len(rows) for rows in x.values()} | ({len(y)} if y is not None else set())
    if len(sizes) != 1:
        raise SettingError(f"silos and labels differ in their number of rows: {sorted(sizes)}")
    size = sizes.pop()
    names = np.arange(size) if ids is None else np.asarray(ids)
    if len(names) != size:
        raise SettingError(f"{len(names)} ids for {size} rows")
    labelled = [labels_at] if isinstance(labels_at, str) else labels_at
    holders = set(x if labelled is None else labelled)
    for silo in sorted(holders - set(x)):
        raise SettingError(f"labels_at: {silo!r}{nearest(silo, x)}")
    shards: dict[str, dict[str, Shard]] = {}
    for silo, rows in x.items():
        stream = Streams(seed).common("partition", "" if mirrored else silo)
        blocks = cut_rows(size, clients[silo], stream.permutation(size))
        shards[silo] = {}
        for name, mine in enumerate(blocks):
            pick = torch.from_numpy(mine)
            labels = y[pick] if y is not None and silo in holders else None
            shards[silo][str(name)] = Shard(names[mine], rows[pick], labels)
    return Placement.of(shards)
