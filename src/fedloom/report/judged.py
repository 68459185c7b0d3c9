"""What is drawn and said of predictions: plain numbers from scores and labels, without a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..records.metrics import Scored, smaller_is_better
from . import words
from .folder import RunFolder

Array = npt.NDArray[Any]

BINS, IN_A_BIN = 10, 10  # of a calibration curve: at most so many, of at least so many rows
NEARLY = 0.03  # probabilities that are nearly the same
Z = 1.959964  # two-sided 95 % of a normal distribution


@dataclass(frozen=True)
class Judged:
    """One model's predictions, with its name and the names of the classes."""

    name: str
    rows: Scored
    classes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.rows.labels)

    @property
    def outputs(self) -> int:
        return max(2, self.rows.scores.shape[1])

    def class_name(self, number: int) -> str:
        return self.classes[number] if number < len(self.classes) else f"class {number}"

    @cached_property
    def shares(self) -> Array:
        """How often each class is among the test rows."""
        return np.bincount(self.rows.labels, minlength=self.outputs)[: self.outputs] / self.size

    @cached_property
    def likely(self) -> Array:
        """The probability that is given to class 1; of several classes, to the one that is said."""
        z = self.rows.scores
        if self.rows.goal == "binary":
            return 0.5 * (1 + np.tanh(z[:, 0] / 2))
        return np.exp(z.max(1) - np.logaddexp.reduce(z, axis=1))

    @cached_property
    def came_true(self) -> Array:
        """Whether that happened."""
        if self.rows.goal == "binary":
            return self.rows.labels == 1
        return self.rows.predicted == self.rows.labels

    @cached_property
    def confusion(self) -> Array:
        """Rows by true class, and by the class that is said."""
        cells = self.rows.labels * self.outputs + self.rows.predicted
        return np.bincount(cells, minlength=self.outputs**2).reshape(self.outputs, self.outputs)


def judged(run: RunFolder) -> dict[str, Judged]:
    """The parts whose predictions are there, the main one first; of silos that train alone, the
    best one."""
    found, metric = {}, run.headline
    classes = tuple(map(str, run.data.get("classes") or ()))
    for part, own in run.predictions.items():
        if part not in run.records:
            continue
        scored = {hub: own.scored(z, hub) for hub, z in own.by_hub.items()}
        name, (hub, rows) = words.part_name(run, part), next(iter(scored.items()))
        if own.alone:
            last = run.result(part)["by_silo"]
            hub = _best(metric, {h: words.number((last.get(h) or {}).get(metric)) for h in scored})
            name, rows = f"the best silo alone ({hub})", scored[hub]
        found[part] = Judged(name, rows, classes)
    return found


def _best(metric: str, values: dict[str, float | None]) -> str:
    sign = -1 if smaller_is_better(metric) else 1
    return max(values, key=lambda hub: -np.inf if (v := values[hub]) is None else sign * v)


class Bin(NamedTuple):
    """Rows that are given about the same probability: how many, how likely they are said to be, how
    often it came true, and a 95 % interval of that (Wilson's)."""

    rows: int
    said: float
    true: float
    low: float
    high: float


def bins(of: Judged) -> list[Bin]:
    """Rows in the order of what they are given, in groups of equal size; groups that are given
    nearly the same are one."""
    order = np.argsort(of.likely, kind="stable")
    said, true = of.likely[order], of.came_true[order].astype(float)
    count = max(1, min(BINS, of.size // IN_A_BIN))
    cuts = [round(of.size * k / count) for k in range(1, count)]
    ends = sorted({int(np.searchsorted(said, said[cut], "left")) for cut in cuts} | {0, of.size})
    groups = [(start, end) for start, end in pairwise(ends)]
    merged = groups[:1]
    for start, end in groups[1:]:
        first, last = merged[-1]
        if said[start:end].mean() - said[first:last].mean() < NEARLY:
            merged[-1] = (first, end)
        else:
            merged.append((start, end))
    made = []
    for start, end in merged:
        share, rows = float(true[start:end].mean()), end - start
        low, high = wilson(share, rows)
        made.append(Bin(rows, float(said[start:end].mean()), share, low, high))
    return made


def wilson(share: float, rows: int) -> tuple[float, float]:
    """A 95 % interval of a share of so many rows."""
    centre = (share + Z**2 / (2 * rows)) / (1 + Z**2 / rows)
    half = Z / (1 + Z**2 / rows) * np.sqrt(share * (1 - share) / rows + Z**2 / (4 * rows**2))
    return float(max(0.0, centre - half)), float(min(1.0, centre + half))


def miscalibrated(groups: Sequence[Bin]) -> float:
    """By how much what is said is off, on average over rows."""
    total = sum(group.rows for group in groups)
    return sum(group.rows * abs(group.said - group.true) for group in groups) / total


class Points(NamedTuple):
    """A curve of a classifier, and its level where chance is."""

    x: Array
    y: Array


def roc(positive: Array, scores: Array) -> Points:
    """False alarms and hits, at every threshold."""
    true, false = thresholds(positive, scores)
    return Points(np.append(0.0, false / false[-1]), np.append(0.0, true / true[-1]))


def precision_recall(positive: Array, scores: Array) -> Points:
    true, false = thresholds(positive, scores)
    return Points(true / true[-1], true / (true + false))


def thresholds(positive: Array, scores: Array) -> tuple[Array, Array]:
    """At every threshold, from the highest: how many rows of the class reach it, and how many
    others."""
    order = np.argsort(-scores, kind="stable")
    ordered, of = scores[order], positive[order].astype(int)
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    true = of.cumsum()[last]
    return true, last + 1 - true


def two_sided(of: Judged) -> bool:
    """Whether both classes are among the test rows, so that there are curves."""
    return bool(of.rows.by_class) and bool(np.isfinite(of.rows.scores).all())
