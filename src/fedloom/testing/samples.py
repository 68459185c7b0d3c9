"""Small federations to test algorithms on: ragged, with a client that has no rows."""

from __future__ import annotations

import torch

from ..algorithms.contract import Algorithm
from ..algorithms.verification.battery_cases import cases
from ..data.partition.arrays import partition
from ..data.placement import Placement
from ..models.library import linear, lstm, mlp
from ..models.task import Task

ROWS = 36
CLASSES = 3

# Proportions in which the clients of a silo hold rows: unequal numbers of clients, one without any.
CLIENTS: list[list[float]] = [[1, 2, 0, 3], [1, 1], [2, 1, 1]]


def features(seed: int = 0) -> dict[str, torch.Tensor]:
    """Three silos: two tables of different width and a short series."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"ash": (4,), "birch": (3,), "cedar": (4, 2)}
    return {
        silo: torch.randn(ROWS, *shape, generator=draw, dtype=torch.float64)
        for silo, shape in shapes.items()
    }


def labels(x: dict[str, torch.Tensor]) -> torch.Tensor:
    """Three classes that depend on every silo."""
    whole = torch.cat([rows.flatten(1) for rows in x.values()], 1)
    draw = torch.Generator().manual_seed(7)
    weights = torch.randn(whole.shape[1], CLASSES, generator=draw, dtype=torch.float64)
    return (whole @ weights).argmax(1)


def placement(silos: int = 3, clients: int | None = None, seed: int = 0) -> Placement:
    """Rows placed independently in every silo; `clients` of equal size, or the ragged ones."""
    x = dict(list(features(seed).items())[:silos])
    counts = {
        silo: ragged if clients is None else [1.0] * clients
        for silo, ragged in zip(x, CLIENTS, strict=False)
    }
    return partition(x, labels(features(seed)), counts, seed=seed)


def task(silos: int = 3, head: bool = False, middle: bool = False) -> Task:
    """A different architecture in every silo; `head` adds a trainable one on a concatenation, and
    `middle` something before it."""
    widths = (4, 5, 3) if head else (CLASSES,) * 3
    blocks = {
        "ash": mlp(4, [5], widths[0]),
        "birch": linear(3, widths[1]),
        "cedar": lstm(2, 3, widths[2]),
    }
    chosen = dict(list(blocks.items())[:silos])
    if not head:
        return Task(chosen, "cross-entropy")
    total = sum(widths[:silos])
    if middle:
        head_, before = linear(4, CLASSES), mlp(total, [6], 4)
        return Task(chosen, "cross-entropy", head=head_, middle=before, combine="concat")
    return Task(chosen, "cross-entropy", head=linear(total, CLASSES), combine="concat")


def alike(seed: int = 0) -> tuple[Task, Placement]:
    """The same, where silos have columns of one kind and one architecture."""
    draw = torch.Generator().manual_seed(seed)
    x = {j: torch.randn(ROWS, 4, generator=draw, dtype=torch.float64) for j in features()}
    rows = partition(x, labels(x), dict(zip(x, CLIENTS, strict=True)), seed=seed)
    return Task(dict.fromkeys(x, mlp(4, [5], CLASSES)), "cross-entropy"), rows


def sample_of(
    algorithm: Algorithm, silos: int = 3, clients: int | None = None, head: bool = False
) -> tuple[Task, Placement]:
    """What an algorithm is tested on: something of its own, or what all others are: one silo, or
    with a server, where it wants that."""
    own = cases.of(type(algorithm)).sample
    if own is not None:
        return own(silos, clients, head)
    silos = 1 if algorithm.one_silo else silos
    rows = placement(silos, clients)
    if algorithm.needs_server:
        return task(silos, head=True, middle=True), rows.with_server()
    return task(silos, head), rows


def examples_of(kind: type[Algorithm]) -> list[Algorithm]:
    """The small settings that are registered for an algorithm, or for its parent."""
    return list(cases.of(kind).examples)
