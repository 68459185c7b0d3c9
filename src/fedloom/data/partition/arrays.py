"""Partitions of arrays: the features of each silo are given, rows are assigned to its clients.

Rows are assigned independently in every silo: one sample may be at the third client of one silo and
at the first of another. Silos may have different numbers of clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.checked import checked
from ...core.errors import DataError, SettingError, nearest
from ...core.rng import Ints, Streams
from ...core.settings import shown
from ...core.topology import Topology
from ..placement import Ids, Placement, Shard, as_rows

ClientSizes = int | Sequence[float] | npt.NDArray[Any]  # how many, or their proportions


def contiguous(columns: int, silos: int) -> list[range]:
    """Adjacent columns for each silo; the first `columns mod silos` silos get one more."""
    if not 1 <= silos <= columns:
        raise SettingError(f"{columns} columns cannot be cut for {silos} silos")
    least, more = divmod(columns, silos)
    starts = [j * least + min(j, more) for j in range(silos + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def cut_rows(size: int, clients: ClientSizes, order: Ints) -> list[Ints]:
    """Contiguous blocks of `order`: of equal size (as in the papers), or in given proportions."""
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


@checked("y", "ids")
def partition(
    x: Mapping[str, Any],
    y: Any,
    clients: Mapping[str, ClientSizes],
    *,
    ids: Sequence[object] | None = None,
    labels_at: str | Sequence[str] | None = None,
    seed: int = 0,
    mirrored: bool = False,
) -> Placement:
    """Assign rows to clients: {silo: features [M, ...]}, {silo: number of clients, or proportions}.

    `labels_at`: the silos that have labels (by default all). `mirrored`: the same assignment in
    every silo, as in the TDCD authors' code."""
    x = {silo: as_rows(f"features of silo {silo}", rows) for silo, rows in x.items()}
    y = None if y is None else as_rows("labels", y)
    if set(x) != set(clients):
        raise SettingError(f"silos {sorted(x)} have features, {sorted(clients)} have clients")
    sizes = {len(rows) for rows in x.values()} | ({len(y)} if y is not None else set())
    if len(sizes) != 1:
        raise SettingError(f"silos and labels differ in their number of rows: {sorted(sizes)}")
    size = sizes.pop()
    names = np.arange(size) if ids is None else np.asarray(ids)
    if names.ndim != 1:
        raise SettingError(f"ids: a list is expected, one a row, not {shown(ids)}")
    if len(names) != size:
        raise SettingError(f"{len(names)} ids for {size} rows")
    labelled = [labels_at] if isinstance(labels_at, str) else labels_at
    holders = set(x if labelled is None else labelled)
    for silo in sorted(holders - set(x)):
        raise SettingError(f"labels_at: {silo!r}{nearest(silo, x)}")
    blocks = {}
    for silo in x:
        stream = Streams(seed).common("partition", "" if mirrored else silo)
        blocks[silo] = cut_rows(size, clients[silo], stream.permutation(size))
    labels_of = {silo: y if silo in holders else None for silo in x}
    try:
        return _placed(names, x, labels_of, blocks)
    except DataError:  # raise it again with the name of the client
        shards: dict[str, dict[str, Shard]] = {silo: {} for silo in x}
        for silo, rows in x.items():
            for name, numbers in enumerate(blocks[silo]):
                pick, labels = torch.from_numpy(numbers), labels_of[silo]
                own = None if labels is None else labels[pick]
                shards[silo][str(name)] = Shard(names[numbers], rows[pick], own)
        return Placement.of(shards)


def _placed(
    names: Ids,
    x: Mapping[str, Tensor],
    y: Mapping[str, Tensor | None],
    blocks: Mapping[str, Sequence[Ints]],
) -> Placement:
    """A placement made from whole silos, so that the time does not grow with the number of
    clients."""
    whole = Placement.of({silo: {"0": Shard(names, rows, y[silo])} for silo, rows in x.items()})
    by_id = np.argsort(names, kind="stable")
    owner = {}
    for silo, client_rows in blocks.items():
        owners = np.empty(len(names), dtype=np.int64)
        owners[np.concatenate(client_rows)] = np.repeat(
            np.arange(len(client_rows)), [len(rows) for rows in client_rows]
        )
        owner[silo] = torch.from_numpy(owners[by_id])
    clients = {
        silo: tuple(map(str, range(len(client_rows)))) for silo, client_rows in blocks.items()
    }
    return replace(whole, topology=Topology(clients), owner=owner)
