"""Multi-view data, partitioned so that a client has some classes and some views (HyFEM).

    federated = class_view_cut(load("modelnet10"), classes, views)

A client has the training rows of its classes, with its own views. Features are [rows, views, ...]
everywhere; a missing view is zeros. One object may be at several clients, with different views:
each copy is a row of its own, whose id names the object and the client. Test rows exist once and
have all views.
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

NumbersByClient = Mapping[str, Sequence[int]]


def class_view_cut(
    data: Dataset,
    classes: NumbersByClient,
    views: NumbersByClient,
    *,
    overlap: bool = True,
    silo: str = SILO,
) -> Federated:
    """Partition training rows by {client: classes} and {client: views}. All clients of a class get
    all of its rows; without `overlap`, they take turns. Test rows go to all clients in turn."""
    x = _stacked(data)
    if data.goal != "classes":
        raise DataError(f"data set {data.name} has no classes to cut by")
    if set(classes) != set(views) or not views:
        raise SettingError("classes and views must be given for the same clients, one at least")
    check_lists("classes", classes, data.outputs)
    check_views(views, list(views), x.shape[1])
    train, labels = np.flatnonzero(~data.test), data.y.numpy()
    rows_of: dict[str, list[int]] = {name: [] for name in views}
    for label in range(data.outputs):
        holders = [name for name in views if label in classes[name]]
        rows_of_class = train[labels[train] == label]
        for place, name in enumerate(holders):
            rows_of[name] += (
                rows_of_class if overlap else rows_of_class[place :: len(holders)]
            ).tolist()
    shards = {name: _copies(data, x, name, rows, views[name]) for name, rows in rows_of.items()}
    tests, test = np.flatnonzero(data.test), {}
    for place, name in enumerate(views):
        at = torch.from_numpy(tests[place :: len(views)])
        test[name] = Shard(data.ids[at.numpy()], x[at], data.y[at])
    unused, cells = (
        unused_cells(classes, views, data.outputs, x.shape[1]),
        data.outputs * x.shape[1],
    )
    note = f"{unused} of {cells} cells of class and view are at no client ({unused / cells:.2%})"
    return Federated(
        name=data.name,
        goal=data.goal,
        train=Placement.of({silo: shards}),
        test=Placement.of({silo: test}) if len(tests) else None,
        classes=data.classes,
        notes=(*([data.note] if data.note else []), note),
        sources=data.sources,
    )


def unused_cells(
    classes: NumbersByClient, views: NumbersByClient, of_classes: int, of_views: int
) -> int:
    """The number of pairs of a class and a view that no client has."""
    used = {(c, v) for name in views for c in classes[name] for v in views[name]}
    return of_classes * of_views - len(used)


def check_lists(what: str, lists: Mapping[str, Iterable[int]], count: int) -> None:
    """Refuse an empty list, a repeated number, or a number that is not below `count`."""
    for name, numbers in lists.items():
        own = list(numbers)
        if not own:
            raise SettingError(f"{what}: client {name!r} holds none; give it one or leave it out")
        for number in own:
            if not isinstance(number, int) or not 0 <= number < count:
                raise SettingError(f"{what}: {name!r} has {number!r}; there are 0 to {count - 1}")
        if len(set(own)) != len(own):
            raise SettingError(f"{what}: {name!r} has a number twice")


def check_views(views: NumbersByClient, clients: Sequence[str], count: int) -> None:
    """Refuse views that are not {client: views} of exactly these clients, or a view at no
    client."""
    for name in views:
        if name not in clients:
            raise SettingError(f"views: there is no client {name!r}{nearest(name, clients)}")
    for name in clients:
        if name not in views:
            raise SettingError(f"views: nothing for client {name!r}; say which views it holds")
    check_lists("views", views, count)
    nobody = sorted(set(range(count)) - {view for own in views.values() for view in own})
    if nobody:
        raise SettingError(
            f"views: nobody holds {', '.join(map(str, nobody))}; give them to a client, or leave "
            "them out of the rows and of the model"
        )


def masked_to(x: Tensor, views: Sequence[int]) -> Tensor:
    """Rows of [views, ...] with all other views set to zero."""
    masked = torch.zeros_like(x)
    at = torch.tensor(list(views))
    masked[:, at] = x[:, at]
    return masked


def _copies(
    data: Dataset, x: Tensor, name: str, rows: Sequence[int], views: Sequence[int]
) -> Shard:
    """A client's copies of some rows, with its views."""
    at = torch.tensor(sorted(rows), dtype=torch.int64)
    ids = np.array([f"{id}@{name}" for id in data.ids[at.numpy()].tolist()], dtype=str)
    return Shard(ids, masked_to(x[at], views), data.y[at])


def _stacked(data: Dataset) -> Tensor:
    """[rows, views, ...], from the set's blocks in their order."""
    shapes = {tuple(block.shape[1:]) for block in data.blocks.values()}
    if len(data.blocks) < 2 or len(shapes) != 1:
        raise DataError(
            f"data set {data.name} has {len(data.blocks)} blocks of shapes {sorted(shapes)}: views "
            "are several blocks of one shape"
        )
    return torch.stack(list(data.blocks.values()), 1)


def small_set(views: Sequence[Sequence[int]], seed: int = 0) -> Placement:
    """48 random rows of three views, for tests, at clients "0", "1", ... of different sizes. The
    third client has no rows, where it is not the last."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(48, 3, 4, generator=draw, dtype=torch.float64)
    y = (x @ torch.randn(4, 3, generator=draw, dtype=torch.float64)).sum(1).argmax(1)
    shares = [0 if k == 2 and len(views) > 3 else 1 + k for k in range(len(views))]
    at = np.split(np.arange(48), np.rint(np.cumsum(shares)[:-1] / sum(shares) * 48).astype(int))
    return Placement.of(
        {
            SILO: {
                str(k): Shard(
                    rows, masked_to(x[torch.from_numpy(rows)], own), y[torch.from_numpy(rows)]
                )
                for k, (rows, own) in enumerate(zip(at, views, strict=True))
            }
        }
    )
