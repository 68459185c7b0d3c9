"""The meaning of a label column: numbers, two classes or several; and labels as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.topology import Client, title
from .dataset import Goal
from .tables.columns import Cells, TextColumn, as_floats, as_text, not_numbers, number_text

FEW_NUMBERS = 20  # up to so many different whole numbers are taken for classes
MOST_CLASSES = 1000


@dataclass(frozen=True)
class Target:
    """The meaning of labels. The number of a class is its position in `classes`."""

    goal: Goal
    classes: tuple[str, ...] = ()

    def encode(self, cells: Cells, where: str) -> Tensor:
        """Labels as a tensor: float32 for numbers and for 0 or 1, int64 for classes. None may be
        missing."""
        if self.goal == "number":
            return torch.from_numpy(as_floats(cells.values, where).astype(np.float32))
        words = _flag_words(cells) if "true" in self.classes else as_text(cells.values)
        places = {name: place for place, name in enumerate(self.classes)}
        lookup = np.array([places.get(_plain(name), -1) for name in words.names] + [-1])
        codes = lookup[words.codes]
        unknown = int((codes < 0).sum())
        if unknown:
            raise DataError(f"{where}: {unknown} labels are of classes that are not known")
        y = torch.from_numpy(codes)
        return y.to(torch.float32) if self.goal == "binary" else y


def find_target(
    label: str, labels: Mapping[Client, Cells], goal: Goal | None
) -> tuple[Target, list[str]]:
    """The meaning of {client: labels}, from the set of their values, and notes on what was
    guessed."""
    kinds = {cells.kind for cells in labels.values()} - {"empty"}
    where = f"label column {label!r}"
    values: list[str] = []
    rows = sum(int(has_label(cells).sum()) for cells in labels.values())
    numbers: set[float] = set()
    if "text" in kinds or kinds == {"flag"}:
        for cells in labels.values():
            words = _flag_words(cells)
            used = np.unique(words.codes[words.codes >= 0])
            values += [_plain(words.names[code]) for code in used.tolist()]
        values = sorted(set(values))
    else:
        for cells in labels.values():
            column = as_floats(cells.values, where)
            numbers |= set(np.unique(column[~np.isnan(column)]).tolist())
        values = [number_text(number) for number in sorted(numbers)]
    if len(values) < 2:
        raise DataError(f"{where}: all {rows} labels are the same; there is nothing to learn")
    guessed = goal if goal is not None else _guess(len(values), numbers, rows)
    notes = []
    if goal is None:
        notes.append(f"goal {guessed!r} guessed: {where} has {len(values)} different values")
    if guessed == "number":
        return Target("number"), notes
    if guessed == "binary":
        if len(values) != 2:
            raise DataError(f"{where}: {len(values)} different values, not two; goal = 'classes'?")
        notes.append(f"{where}: 1 stands for {values[1]!r}, 0 for {values[0]!r}")
    if len(values) > MOST_CLASSES:
        raise DataError(
            f"{where}: {len(values)} different values are too many for classes; is it the label, "
            "or is goal = 'number' meant?"
        )
    return Target(guessed, tuple(values)), notes


def _guess(values: int, numbers: set[float], rows: int) -> Goal:
    if values == 2:
        return "binary"
    if not numbers:
        return "classes"
    whole = all(number.is_integer() for number in numbers)
    return "classes" if whole and values <= FEW_NUMBERS and 2 * values <= rows else "number"


def has_label(cells: Cells) -> npt.NDArray[np.bool_]:
    """Which rows have a label."""
    column = cells.values
    return column.codes >= 0 if isinstance(column, TextColumn) else ~np.isnan(column)


def _flag_words(cells: Cells) -> TextColumn:
    """Labels as text: flags as "true" and "false", not as 1 and 0."""
    if cells.kind != "flag" or isinstance(cells.values, TextColumn):
        return as_text(cells.values)
    codes = np.where(np.isnan(cells.values), -1, np.nan_to_num(cells.values)).astype(np.int64)
    return TextColumn(("false", "true"), codes)


def _plain(name: str) -> str:
    """The class of a label: True, TRUE and true are the same."""
    return name.lower() if name.lower() in ("true", "false") else name


def refuse_text(label: str, labels: Mapping[Client, Cells], goal: Goal | None) -> None:
    """Refuse text labels where the labels of other clients, or the goal, are numbers."""
    mixed = goal is None and any(cells.kind == "number" for cells in labels.values())
    for client, cells in labels.items():
        if isinstance(cells.values, TextColumn) and (mixed or goal == "number"):
            wrong = not_numbers(cells.values)
            raise DataError(
                f"{title(client)}: {len(wrong)} of {len(cells.values)} cells of label column "
                f"{label!r} are not numbers (the first in row {wrong[0] + 1}); correct them, or "
                "set goal = 'classes'"
            )
