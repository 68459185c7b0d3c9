"""Things seen from several sides, cut so that a client holds some classes and some views.

    federated = class_view_cut(load("modelnet10"), classes, views)

A client holds the training rows of its classes, with its own views; the others are zeros, which is
how a view that is not there is written ([rows, views, ...] everywhere). One thing may be at several
clients, with different views: each copy is a row of its own, its id that of the thing and of the
client. Test rows are there once and carry all views.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ...core.errors import DataError, SettingError, nearest
from ..dataset import Dataset
from ..federated import Federated
from ..placement import Placement, Shard

# The HyFEM paper's second experiment: M = 8 clients, D = 12 views, 40 classes (Figure 2).
HYFEM_VIEWS: dict[str, tuple[int, ...]] = {
    "0": (0, 1, 2, 3, 4, 5),
    "1": (3, 4, 5, 6, 7, 8),
    "2": (6, 7, 8, 9, 10, 11),
    "3": (0, 1, 2, 9, 10, 11),
    "4": (0, 1, 2, 6, 7, 8),
    "5": (3, 4, 5, 9, 10, 11),
    "6": (0, 2, 4, 6, 8, 10),
    "7": (1, 3, 5, 7, 9, 11),
}
HYFEM_CLASSES: dict[str, tuple[int, ...]] = {
    "0": (1, 2, 3, 4, 11, 15, 18, 21, 24, 26, 27, 30, 31, 37, 38),
    "1": (0, 5, 12, 13, 17, 20, 21, 24, 25, 28, 29, 31, 33, 34, 35),
    "2": (0, 3, 6, 10, 11, 15, 18, 22, 25, 26, 29, 30, 31, 32, 34),
    "3": (6, 7, 8, 13, 14, 19, 20, 23, 25, 28, 29, 30, 31, 35, 36),
    "4": (2, 7, 9, 11, 17, 18, 19, 22, 27, 28, 32, 33, 36, 38, 39),
    "5": (1, 4, 8, 10, 13, 14, 15, 16, 18, 19, 23, 29, 31, 36, 38),
    "6": (1, 4, 6, 7, 8, 9, 11, 17, 18, 20, 21, 24, 29, 33, 36),
    "7": (2, 6, 7, 8, 9, 13, 14, 23, 25, 29, 30, 31, 34, 35, 39),
}

SILO = "views"

Lists = Mapping[str, Sequence[int]]


def class_view_cut(
    data: Dataset, classes: Lists, views: Lists, *, overlap: bool = True, silo: str = SILO
) -> Federated:
    """Training rows by class and views by client: {client: numbers}. A class that several clients
    hold goes to all of them whole, or, without `overlap`, its rows are dealt out in turn. Test rows
    are dealt out in turn to all clients."""
    x = _stacked(data)
    if data.goal != "classes":
        raise DataError(f"data set {data.name} has no classes to cut by")
    if set(classes) != set(views) or not views:
        raise SettingError("classes and views must be given for the same clients, one at least")
    check_lists("classes", classes, data.outputs)
    check_held(views, list(views), x.shape[1])
    train, labels = np.flatnonzero(~data.test), data.y.numpy()
    held: dict[str, list[int]] = {name: [] for name in views}
    for each in range(data.outputs):
        holders = [name for name in views if each in classes[name]]
        mine = train[labels[train] == each]
        for place, name in enumerate(holders):
            held[name] += (mine if overlap else mine[place :: len(holders)]).tolist()
    shards = {name: _copies(data, x, name, rows, views[name]) for name, rows in held.items()}
    tests, test = np.flatnonzero(data.test), {}
    for place, name in enumerate(views):
        at = torch.from_numpy(tests[place :: len(views)])
        test[name] = Shard(data.ids[at.numpy()], x[at], data.y[at])
    unused, cells = (
        unused_cells(classes, views, data.outputs, x.shape[1]),
        data.outputs * x.shape[1],
    )
    told = f"{unused} of {cells} cells of class and view are at no client ({unused / cells:.2%})"
    return Federated(
        name=data.name,
        goal=data.goal,
        train=Placement.of({silo: shards}),
        test=Placement.of({silo: test}) if len(tests) else None,
        classes=data.classes,
        notes=(*([data.note] if data.note else []), told),
        sources=data.sources,
    )


def unused_cells(classes: Lists, views: Lists, of_classes: int, of_views: int) -> int:
    """How many pairs of a class and a view are at no client."""
    used = {(c, v) for name in views for c in classes[name] for v in views[name]}
    return of_classes * of_views - len(used)


def check_lists(what: str, lists: Mapping[str, Iterable[int]], count: int) -> None:
    """Every client some, none twice, and only numbers below `count`."""
    for name, numbers in lists.items():
        mine = list(numbers)
        if not mine:
            raise SettingError(f"{what}: client {name!r} holds none; give it one or leave it out")
        for number in mine:
            if not isinstance(number, int) or not 0 <= number < count:
                raise SettingError(f"{what}: {name!r} has {number!r}; there are 0 to {count - 1}")
        if len(set(mine)) != len(mine):
            raise SettingError(f"{what}: {name!r} has a number twice")


def check_held(views: Lists, clients: Sequence[str], count: int) -> None:
    """Views by client: of all clients and of no others, and all views at someone."""
    for name in views:
        if name not in clients:
            raise SettingError(f"views: there is no client {name!r}{nearest(name, clients)}")
    for name in clients:
        if name not in views:
            raise SettingError(f"views: nothing for client {name!r}; say which views it holds")
    check_lists("views", views, count)
    nobody = sorted(set(range(count)) - {view for mine in views.values() for view in mine})
    if nobody:
        raise SettingError(
            f"views: nobody holds {', '.join(map(str, nobody))}; give them to a client, or leave "
            "them out of the rows and of the model"
        )


def only(x: Tensor, views: Sequence[int]) -> Tensor:
    """Rows of [views, ...] with these views alone, the others zero."""
    kept = torch.zeros_like(x)
    at = torch.tensor(list(views))
    kept[:, at] = x[:, at]
    return kept


def _copies(
    data: Dataset, x: Tensor, name: str, rows: Sequence[int], views: Sequence[int]
) -> Shard:
    """A client's copies of some rows."""
    at = torch.tensor(sorted(rows), dtype=torch.int64)
    ids = np.array([f"{one}@{name}" for one in data.ids[at.numpy()].tolist()], dtype=str)
    return Shard(ids, only(x[at], views), data.y[at])


def _stacked(data: Dataset) -> Tensor:
    """[rows, views, ...] from the set's blocks, in their order."""
    shapes = {tuple(block.shape[1:]) for block in data.blocks.values()}
    if len(data.blocks) < 2 or len(shapes) != 1:
        raise DataError(
            f"data set {data.name} has {len(data.blocks)} blocks of shapes {sorted(shapes)}: views "
            "are several blocks of one shape"
        )
    return torch.stack(list(data.blocks.values()), 1)


def small_set(views: Sequence[Sequence[int]], seed: int = 0) -> Placement:
    """48 made-up rows of three views at ragged clients "0", "1", ..., of which the third has none
    if it is not the last: something to test on."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(48, 3, 4, generator=draw, dtype=torch.float64)
    y = (x @ torch.randn(4, 3, generator=draw, dtype=torch.float64)).sum(1).argmax(1)
    shares = [0 if k == 2 and len(views) > 3 else 1 + k for k in range(len(views))]
    at = np.split(np.arange(48), np.rint(np.cumsum(shares)[:-1] / sum(shares) * 48).astype(int))
    return Placement.of(
        {
            SILO: {
                str(k): Shard(
                    rows, only(x[torch.from_numpy(rows)], mine), y[torch.from_numpy(rows)]
                )
                for k, (rows, mine) in enumerate(zip(at, views, strict=True))
            }
        }
    )
