"""Feature preparation: scaling of numbers, one-hot encoding of text.

Each client summarises the columns of its own training rows (`Summary`). Its silo adds the summaries
up and fits a `SiloPreparation` from the sum. No row leaves its client for this. The preparation is
saved with the model (`Preparation.to_json`), so that new rows are prepared in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.errors import DataError, nearest
from ...core.rng import Floats
from ..dataset import Goal
from .columns import Column, Table, TextColumn, as_column, as_floats, as_text

FORMAT = "fedloom preparation 1"
MOST_CATEGORIES = 100
CONSTANT = 1e-12  # deviations below this share of the mean are rounding


@dataclass(frozen=True)
class NumberSummary:
    """Summary of a column of numbers. `spread`: the sum of squared distances from the mean."""

    count: int = 0
    mean: float = 0.0
    spread: float = 0.0
    missing: int = 0

    @staticmethod
    def of(values: Floats) -> NumberSummary:
        seen = values[~np.isnan(values)]
        missing = len(values) - len(seen)
        if not len(seen):
            return NumberSummary(missing=missing)
        with np.errstate(over="ignore", invalid="ignore"):  # overflow: refused by `fit`
            mean = seen.mean()
            off = seen - mean
            spread = (off**2).sum() - off.sum() ** 2 / len(seen)
        return NumberSummary(len(seen), float(mean), float(np.maximum(spread, 0.0)), missing)

    def __add__(self, other: NumberSummary) -> NumberSummary:
        """By Chan's formula, which takes no difference of large squares."""
        missing = self.missing + other.missing
        if not self.count or not other.count:
            some = self if self.count else other
            return NumberSummary(some.count, some.mean, some.spread, missing)
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        between = apart * apart * (self.count * other.count / count)
        return NumberSummary(count, mean, self.spread + other.spread + between, missing)


@dataclass(frozen=True)
class CategorySummary:
    """Summary of a column of text: how often each category occurs."""

    counts: Mapping[str, int] = field(default_factory=dict)
    missing: int = 0

    @staticmethod
    def of(words: TextColumn) -> CategorySummary:
        seen = words.codes[words.codes >= 0]
        counts = np.bincount(seen, minlength=len(words.names)).tolist()
        present = {name: n for name, n in zip(words.names, counts, strict=True) if n}
        return CategorySummary(present, len(words) - len(seen))

    def __add__(self, other: CategorySummary) -> CategorySummary:
        counts = dict(self.counts)
        for name, n in other.counts.items():
            counts[name] = counts.get(name, 0) + n
        return CategorySummary(counts, self.missing + other.missing)


@dataclass(frozen=True)
class Summary:
    """What a client sends to its hub about its training rows, column by column. Summaries can be
    added."""

    columns: Mapping[str, NumberSummary | CategorySummary]

    @staticmethod
    def of(table: Table) -> Summary:
        return Summary(
            {
                name: CategorySummary.of(column)
                if isinstance(column, TextColumn)
                else NumberSummary.of(column)
                for name, column in table.items()
            }
        )

    def __add__(self, other: Summary) -> Summary:
        if set(self.columns) != set(other.columns):
            raise DataError("summaries of different columns cannot be added up")
        both: dict[str, NumberSummary | CategorySummary] = {}
        for name, first in self.columns.items():
            second = other.columns[name]
            if type(first) is not type(second):
                raise DataError(f"column {name!r} is text at one client and numbers at another")
            both[name] = first + second  # type: ignore[operator]
        return Summary(both)


@dataclass(frozen=True)
class Scaled:
    """A column of numbers: (x - mean) / std, and 0 (the mean) where a cell is missing.

    With `missing`, a second column flags missing cells. Where std is 0, it is the only one."""

    name: str
    mean: float
    std: float
    missing: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,) * (self.std > 0) + (f"{self.name} is missing",) * self.missing

    @property
    def title(self) -> str:
        return self.name

    def encode(self, column: Column, out: npt.NDArray[np.float32], where: str) -> None:
        values = as_floats(column, f"{where}, column {self.name!r}")
        if self.std > 0:
            out[:, 0] = np.where(np.isnan(values), 0.0, (values - self.mean) / self.std)
        if self.missing:
            out[:, -1] = np.isnan(values)


@dataclass(frozen=True)
class OneHot:
    """A column of text: one column for each category; with `other`, one for all other categories;
    with `missing`, one for missing cells. A row of none of these is all zeros."""

    name: str
    categories: tuple[str, ...]
    other: bool
    missing: bool

    @property
    def columns(self) -> tuple[str, ...]:
        named = tuple(f"{self.name} = {category}" for category in self.categories)
        other = (f"{self.name} is other",) * self.other
        return named + other + (f"{self.name} is missing",) * self.missing

    @property
    def title(self) -> str:
        """For manifests and reports, without the categories: they are content of cells."""
        return f"{self.name} ({len(self.categories)} categories)"

    def encode(self, column: Column, out: npt.NDArray[np.float32], where: str) -> None:
        words = as_text(column)
        places = {category: place for place, category in enumerate(self.categories)}
        otherwise = len(places) if self.other else -1
        missing = len(places) + self.other if self.missing else -1
        lookup = np.array([places.get(name, otherwise) for name in words.names] + [missing])
        at = lookup[words.codes]
        out[:] = 0
        rows = np.flatnonzero(at >= 0)
        out[rows, at[rows]] = 1


@dataclass(frozen=True)
class SiloPreparation:
    """How one silo's columns are prepared, in this order."""

    steps: tuple[Scaled | OneHot, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the resulting columns."""
        return tuple(name for step in self.steps for name in step.columns)

    def check(self, names: Collection[str], where: str) -> None:
        """Refuse a table that lacks a needed column."""
        lacking = [step.name for step in self.steps if step.name not in names]
        if lacking:
            raise DataError(
                f"{where} lacks {', '.join(map(repr, lacking))}, which the model was trained with"
                f"{nearest(lacking[0], names)}"
            )

    def apply(self, table: Mapping[str, Any], where: str) -> Tensor:
        """Rows as float32 [rows, columns]; columns that are not needed are ignored."""
        self.check(table, where)
        columns = [as_column(table[step.name]) for step in self.steps]
        sizes = {len(column) for column in columns}
        if len(sizes) > 1:
            raise DataError(f"{where}: columns differ in length: {sorted(sizes)}")
        out = np.empty((sizes.pop() if sizes else 0, len(self.columns)), dtype=np.float32)
        at = 0
        for step, column in zip(self.steps, columns, strict=True):
            width = len(step.columns)
            step.encode(column, out[:, at : at + width], where)
            at += width
        return torch.from_numpy(out)


@dataclass(frozen=True)
class Preparation:
    """The preparation of each silo, the meaning of the labels, and the name of the id column."""

    silos: Mapping[str, SiloPreparation]
    goal: Goal
    classes: tuple[str, ...] = ()
    id: str = "id"  # the column of ids

    def __getitem__(self, silo: str) -> SiloPreparation:
        if silo not in self.silos:
            raise DataError(f"there is no preparation for silo {silo!r}{nearest(silo, self.silos)}")
        return self.silos[silo]

    def apply(self, silo: str, table: Mapping[str, Any], where: str = "") -> Tensor:
        """A silo's rows, {column: values}, as float32 [rows, columns]."""
        return self[silo].apply(table, where or f"silo {silo}")

    def to_json(self) -> str:
        silos = {silo: [asdict(step) for step in made.steps] for silo, made in self.silos.items()}
        return json.dumps(
            {
                "format": FORMAT,
                "id": self.id,
                "goal": self.goal,
                "classes": self.classes,
                "silos": silos,
            },
            indent=1,
            ensure_ascii=False,
        )

    @staticmethod
    def from_json(text: str) -> Preparation:
        try:
            saved = json.loads(text)
            if saved["format"] != FORMAT:
                raise DataError(f"a preparation of another format: {FORMAT!r} is expected")
            silos = {
                silo: SiloPreparation(tuple(_step(step) for step in steps))
                for silo, steps in saved["silos"].items()
            }
            return Preparation(silos, saved["goal"], tuple(saved["classes"]), saved["id"])
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            if isinstance(problem, DataError):
                raise
            raise DataError("this is not a saved preparation, or it is damaged") from None


def _step(saved: dict[str, Any]) -> Scaled | OneHot:
    if "categories" in saved:
        return OneHot(**{**saved, "categories": tuple(saved["categories"])})
    return Scaled(**saved)


def fit(silo: str, summary: Summary, rare: int = 1) -> tuple[SiloPreparation, list[str]]:
    """A silo's preparation from the sum of its clients' summaries, and notes on dropped columns.

    Categories in fewer than `rare` training rows become "other"."""
    steps: list[Scaled | OneHot] = []
    notes: list[str] = []
    for name, column in summary.columns.items():
        where = f"silo {silo}, column {name!r}"
        step: Scaled | OneHot
        if isinstance(column, NumberSummary):
            step, seen = _scaled(name, column, where), column.count > 0
            constant = step.std == 0
        else:
            step, seen = _one_hot(name, column, rare, where), bool(column.counts)
            constant = len(step.columns) < 2
        if constant:
            why = "it has one value only" if seen else "it is empty"
            notes.append(f"{silo}: column {name!r} dropped: {why} in the training rows")
        if not constant or step.missing:
            steps.append(step)
    return SiloPreparation(tuple(steps)), notes


def _scaled(name: str, column: NumberSummary, where: str) -> Scaled:
    if not np.isfinite([column.mean, column.spread]).all():
        raise DataError(f"{where}: numbers are too large to scale; change its unit or drop it")
    std = (column.spread / column.count) ** 0.5 if column.count else 0.0
    if std <= CONSTANT * abs(column.mean):
        std = 0.0
    return Scaled(name, column.mean, std, column.count > 0 and column.missing > 0)


def _one_hot(name: str, column: CategorySummary, rare: int, where: str) -> OneHot:
    frequent = sorted(category for category, n in column.counts.items() if n >= rare)
    other = len(frequent) < len(column.counts)
    if len(frequent) > MOST_CATEGORIES:
        raise DataError(
            f"{where}: {len(frequent)} categories (at most {MOST_CATEGORIES}): it looks like free "
            "text or an id; name it in `drop`, or lump what is seldom with `rare`"
        )
    missing = column.missing > 0 and bool(column.counts)
    return OneHot(name, tuple(frequent), other, missing)
