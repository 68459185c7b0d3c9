"""Vertical partitions: which silo gets which columns.

Columns are numbered over all blocks of a set, in order: the columns of a table, the features of a
sequence (its last axis), the pixels of images, flattened. `patches`, `strips` and `blocks` give
silos images; the other rules give them flat pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...core.errors import DataError, SettingError, nearest
from ...core.registry import vertical_partitioners
from ...core.rng import Floats, Ints, Streams
from ..dataset import Dataset
from .arrays import contiguous

SAMPLE = 10_000  # correlations are computed from about so many training rows at most


@dataclass(frozen=True)
class Region:
    """A rectangle of an image: rows top..bottom-1, columns left..right-1."""

    top: int
    bottom: int
    left: int
    right: int


Selection = tuple[int, ...] | Region | None  # columns of a block, a rectangle, or all of it
Selections = dict[str, dict[str, Selection]]  # {silo: {block: selection}}


def images(block: Tensor) -> bool:
    """Whether a block is images: [rows, channels, height, width]."""
    return block.ndim == 4


def columns(data: Dataset) -> list[tuple[str, int]]:
    """Every column of the set: its block, and its number in the block."""
    numbered: list[tuple[str, int]] = []
    for name, block in data.blocks.items():
        if block.ndim < 2:
            raise DataError(f"data set {data.name}: block {name} has no columns")
        width = block[0].numel() if block.ndim > 3 else block.shape[-1]
        numbered += [(name, k) for k in range(width)]
    return numbered


def _in_runs(data: Dataset, silos: Sequence[str], order: Iterable[int]) -> Selections:
    """Equal runs of the columns in this order. Each silo keeps the order of the set."""
    order, known = list(order), columns(data)
    runs = contiguous(len(order), len(silos))
    picks = [sorted(order[run.start : run.stop]) for run in runs]
    return {silo: grouped(known, pick) for silo, pick in zip(silos, picks, strict=True)}


def grouped(known: Sequence[tuple[str, int]], pick: Iterable[int]) -> dict[str, Selection]:
    """Columns by their numbers over all blocks, block by block."""
    parts: dict[str, list[int]] = {}
    for number in pick:
        block, k = known[number]
        parts.setdefault(block, []).append(k)
    return {block: tuple(numbers) for block, numbers in parts.items()}


@vertical_partitioners.register("contiguous")
def in_order(data: Dataset, silos: Sequence[str]) -> Selections:
    """Adjacent columns together; the first D mod N silos get one more."""
    return _in_runs(data, silos, range(len(columns(data))))


@vertical_partitioners.register("random")
def at_random(data: Dataset, silos: Sequence[str], seed: int) -> Selections:
    """Columns in random order."""
    return _in_runs(data, silos, Streams(seed).common("columns").permutation(len(columns(data))))


@vertical_partitioners.register("importance")
def by_importance(data: Dataset, silos: Sequence[str]) -> Selections:
    """The first silo gets the columns that are most informative about the label, the last silo the
    least informative ones: by the share of a column's variance that the label explains."""
    x, y = _sample(data)
    if data.goal == "number":
        targets = [y[:, k] for k in range(y.shape[1])]
        share = np.max([_explained(x, target) for target in targets], axis=0)
    else:
        share = _between_classes(x, np.unique(y, axis=0, return_inverse=True)[1].reshape(-1))
    return _in_runs(data, silos, np.argsort(-share, kind="stable").tolist())


@vertical_partitioners.register("correlated")
def by_correlation(data: Dataset, silos: Sequence[str]) -> Selections:
    """Correlated columns together, greedily. Each silo starts with the column most correlated with
    all remaining ones. Then it takes the column most correlated with its own until it has
    enough."""
    x, _ = _sample(data)
    unit = _centred(x)
    near = np.abs(unit.T @ unit)
    left = np.ones(len(near), dtype=bool)
    order: list[int] = []
    for run in contiguous(len(near), len(silos)):
        score = near[:, left].sum(axis=1)
        for taken in range(len(run)):
            best = int(np.where(left, score, -np.inf).argmax())
            order.append(best)
            left[best] = False
            score = near[best] if not taken else score + near[best]
    return _in_runs(data, silos, order)


def _sample(data: Dataset) -> tuple[Floats, Floats]:
    """Training rows as a table, and their labels. A sequence is replaced by its mean over time."""
    train = np.flatnonzero(~data.test)
    some = torch.from_numpy(train[:: 1 + len(train) // SAMPLE])
    rows = [block[some].double() for block in data.blocks.values()]
    flat = [block.mean(1) if block.ndim == 3 else block.flatten(1) for block in rows]
    return torch.cat(flat, 1).numpy(), data.y[some].double().reshape(len(some), -1).numpy()


def _centred(x: Floats) -> Floats:
    """Columns with mean 0 and norm 1; constant ones become 0."""
    centred = x - x.mean(axis=0)
    length = np.sqrt((centred**2).sum(axis=0))
    length[x.min(axis=0) == x.max(axis=0)] = np.inf
    unit: Floats = centred / length
    return unit


def _explained(x: Floats, target: Floats) -> Floats:
    """The squared correlation of each column with a numeric target."""
    return (_centred(target[:, None]).T @ _centred(x))[0] ** 2


def _between_classes(x: Floats, group: Ints) -> Floats:
    """The share of each column's variance that lies between classes."""
    unit = _centred(x)
    share = np.zeros(x.shape[1])
    for label in range(int(group.max()) + 1):
        rows = unit[group == label]
        share += rows.sum(axis=0) ** 2 / len(rows)
    return share


@vertical_partitioners.register("columns")
def by_lists(data: Dataset, lists: Mapping[str, Sequence[str | int]]) -> Selections:
    """Columns by name, or by number over all blocks. Columns in no list are left out."""
    known = columns(data)
    numbers: dict[str, list[int]] = {}
    for number, (block, k) in enumerate(known):
        if block in data.columns:
            numbers.setdefault(data.columns[block][k], []).append(number)
    parts: Selections = {}
    seen: set[int] = set()
    for silo, wanted in lists.items():
        pick = [_number(column, len(known), numbers) for column in wanted]
        for column, number in zip(wanted, pick, strict=True):
            if number in seen:
                raise SettingError(f"columns: {column!r} is listed twice")
            seen.add(number)
        parts[silo] = grouped(known, pick)
    return parts


def _number(column: str | int, count: int, numbers: Mapping[str, Sequence[int]]) -> int:
    if isinstance(column, str):
        matching = numbers.get(column, ())
        if not matching:
            tail = (
                nearest(column, numbers) if numbers else f"; they have numbers only, below {count}"
            )
            raise SettingError(f"columns: no column {column!r}{tail}")
        if len(matching) > 1:
            raise SettingError(f"columns: several blocks have a {column!r}; give its number")
        return matching[0]
    if not 0 <= column < count:
        raise SettingError(f"columns: no column {column}; they are numbered 0 to {count - 1}")
    return column


@vertical_partitioners.register("views")
def blocks(
    data: Dataset, silos: Sequence[str], lists: Mapping[str, Sequence[str | int]] | None = None
) -> Selections:
    """Whole blocks: adjacent ones together, or those that `columns` lists."""
    return _blocks_in_order(data, silos) if lists is None else _blocks_by_lists(data, lists)


def _blocks_in_order(data: Dataset, silos: Sequence[str]) -> Selections:
    names = list(data.blocks)
    if len(silos) > len(names):
        raise SettingError(
            f"vertical = 'views': data set {data.name} has {len(names)} block(s), "
            f"too few for {len(silos)} silos"
        )
    runs = contiguous(len(names), len(silos))
    return {
        silo: dict.fromkeys(names[run.start : run.stop])
        for silo, run in zip(silos, runs, strict=True)
    }


def _blocks_by_lists(data: Dataset, lists: Mapping[str, Sequence[str | int]]) -> Selections:
    """Blocks in no list are left out."""
    seen: set[str] = set()
    for name in (str(block) for wanted in lists.values() for block in wanted):
        if name not in data.blocks:
            raise SettingError(f"columns: no block {name!r}{nearest(name, data.blocks)}")
        if name in seen:
            raise SettingError(f"columns: block {name!r} is listed twice")
        seen.add(name)
    return {silo: {str(block): None for block in wanted} for silo, wanted in lists.items()}


@vertical_partitioners.register("halves")
def strips(data: Dataset, silos: Sequence[str]) -> Selections:
    """A strip of every image, side by side."""
    return _patches(data, silos, (1, len(silos)), "halves")


@vertical_partitioners.register("grid")
def patches(data: Dataset, silos: Sequence[str], grid: Sequence[int]) -> Selections:
    """A patch of every image, row by row, as `grid` says."""
    return _patches(data, silos, (grid[0], grid[1]), "grid")


def _patches(
    data: Dataset, silos: Sequence[str], grid: tuple[int, int], vertical: str
) -> Selections:
    """Images in a grid of rectangles. A silo gets the same patch of every block."""
    parts: Selections = {silo: {} for silo in silos}
    for name, block in data.blocks.items():
        if not images(block):
            raise SettingError(
                f"vertical = {vertical!r} cuts images; block {name!r} of {data.name} has shape "
                f"{list(block.shape[1:])}"
            )
        height, width = block.shape[2:]
        if grid[0] > height or grid[1] > width:
            raise SettingError(
                f"images of {height} x {width} pixels cannot be cut in {grid[0]} x {grid[1]}"
            )
        rows, across = contiguous(height, grid[0]), contiguous(width, grid[1])
        cells = [Region(a.start, a.stop, b.start, b.stop) for a in rows for b in across]
        for silo, cell in zip(silos, cells, strict=True):
            parts[silo][name] = cell
    return parts


def features(data: Dataset, silo: str, parts: Mapping[str, Selection]) -> Tensor:
    """The features of a silo: tables side by side, sequences joined along their features, images of
    one size along their channels."""
    taken = [_take(data, name, part) for name, part in parts.items()]
    axis = 2 if taken[0].ndim == 3 else 1
    shapes = {(*block.shape[1:axis], -1, *block.shape[axis + 1 :]) for block in taken}
    if len(shapes) > 1:
        shown = ", ".join(str(list(block.shape[1:])) for block in taken)
        raise SettingError(f"silo {silo}: features of shapes {shown} cannot be joined")
    return taken[0] if len(taken) == 1 else torch.cat(taken, axis)


def _take(data: Dataset, name: str, part: Selection) -> Tensor:
    if name not in data.blocks:
        raise DataError(f"data set {data.name} has no block {name!r}{nearest(name, data.blocks)}")
    block = data.blocks[name]
    if part is None:
        return block
    if isinstance(part, Region):
        if not images(block) or part.bottom > block.shape[2] or part.right > block.shape[3]:
            raise DataError(f"data set {data.name}: block {name} has no such region")
        return block[:, :, part.top : part.bottom, part.left : part.right]
    flat = block.flatten(1) if block.ndim > 3 else block
    if min(part) < 0 or max(part) >= flat.shape[-1]:
        raise DataError(f"data set {data.name}: block {name} lacks columns of the cut")
    return flat[..., torch.tensor(part)]


def names(data: Dataset, parts: Mapping[str, Selection]) -> tuple[str, ...]:
    """Names of a silo's columns; empty where one of its blocks has none."""
    if not all(name in data.columns for name in parts):
        return ()
    titles: list[str] = []
    for name, part in parts.items():
        numbers = part if isinstance(part, tuple) else range(len(data.columns[name]))
        titles += [data.columns[name][k] for k in numbers]
    return tuple(titles)
