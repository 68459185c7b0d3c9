"""Test metrics. Where one is undefined (an AUROC with one class) it is None, never a made-up
number.

A metric is one function, registered with the goals of models that it is for:

    @metric("balanced-accuracy", goals=("binary", "classes"))
    def balanced_accuracy(rows: Scored) -> float | None:
        \"""Mean of the classes' recalls.\"""
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from inspect import getdoc
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..core.errors import SettingError
from ..core.registry import metrics as registered
from ..data.dataset import Goal
from ..models.threshold import HALF
from . import scoring
from .thresholds import sigmoid

Metrics = dict[str, float | None]
Array = npt.NDArray[Any]

NAMES: dict[Goal, tuple[str, ...]] = {
    "classes": ("accuracy", "f1", "precision", "recall", "top5", "auroc", "auprc"),
    "binary": ("accuracy", "f1", "precision", "recall", "auroc", "auprc"),
    "number": ("r2", "mse"),
}  # what is always measured
LOSS = "loss"  # of validation rows, beside their metrics
HEADLINE: dict[Goal, str] = {"classes": "accuracy", "binary": "auroc", "number": "r2"}


@dataclass(frozen=True)
class Scored:
    """Rows with labels that a model has scored. `scores` are logits or, of numbers, predictions in
    the labels' own unit, [rows, outputs]; `labels` are numbers of classes, or [rows, outputs].
    `threshold`: the probability above which a row is said to be of class 1."""

    goal: Goal
    scores: Array
    labels: Array
    threshold: float = HALF

    @staticmethod
    def of(goal: Goal, scores: Tensor, labels: Tensor, threshold: float = HALF) -> Scored:
        rows = len(labels)
        z, y = scores.detach().double().cpu().numpy(), labels.cpu().numpy()
        return Scored(goal, z.reshape(rows, -1), _as_labels(goal, y), threshold)

    @cached_property
    def predicted(self) -> Array:
        """The class that the scores say; where the goal is a number, the scores."""
        if self.goal == "number":
            return self.scores
        if self.goal == "binary":
            return (self.probabilities > self.threshold).astype(int)
        return self.scores.argmax(1)

    @cached_property
    def probabilities(self) -> Array:
        """Of class 1, [rows]; of several classes, [rows, classes]."""
        if self.goal == "binary":
            return sigmoid(self.scores[:, 0])
        return np.exp(self.scores - np.logaddexp.reduce(self.scores, axis=1)[:, None])

    @cached_property
    def by_class(self) -> list[tuple[Array, Array]]:
        """(whether a row is of a class, how likely it is said to be) for every class that has rows
        and is not all there is; of two classes, for the second."""
        if self.goal == "binary":
            cases = [(self.labels, self.scores[:, 0])]
        else:  # logarithms of the softmax
            odds = self.scores - np.logaddexp.reduce(self.scores, axis=1)[:, None]
            cases = [(self.labels == c, odds[:, c]) for c in range(self.scores.shape[1])]
        return [(y, z) for y, z in cases if 0 < y.sum() < len(y)]

    @cached_property
    def precision_recall_f1(self) -> tuple[float, float, float]:
        """Of class 1 or, of several classes, their means over the classes."""
        if self.goal == "binary":
            return scoring.precision_recall_f1(self.labels, self.predicted, 1)
        return scoring.macro(self.labels, self.predicted)


def _as_labels(goal: Goal, y: Array) -> Array:
    return y.reshape(len(y), -1) if goal == "number" else y.astype(int)


Compute = Callable[[Scored], float | None]


@dataclass(frozen=True)
class Metric:
    """A registered metric. `outputs`: where a model has fewer scores a row, it says nothing."""

    name: str
    compute: Compute
    goals: tuple[Goal, ...]
    smaller_is_better: bool = False
    outputs: int = 1

    def __post_init__(self) -> None:
        if not self.goals or not set(self.goals) <= set(NAMES):
            known = ", ".join(NAMES)
            raise SettingError(f"metric {self.name}: name its goals ({known}), not {self.goals}")

    @property
    def about(self) -> str:
        return " ".join((getdoc(self.compute) or "").split("\n\n")[0].split())

    def __call__(self, rows: Scored) -> float | None:
        try:
            value = self.compute(rows)
            return float(value) if value is not None and math.isfinite(value) else None
        except Exception as problem:  # anybody's function
            why = f"{type(problem).__name__}: {problem}"
            raise SettingError(f"the metric {self.name} failed ({why})") from problem


def metric(
    name: str, *goals: Goal, smaller_is_better: bool = False, outputs: int = 1
) -> Callable[[Compute], Metric]:
    """Register a metric of models with these goals."""

    def add(compute: Compute) -> Metric:
        made = Metric(name, compute, goals, smaller_is_better, outputs)
        return registered.register(name)(made)

    return add


def metrics(
    goal: Goal,
    scores: Tensor,
    labels: Tensor,
    more: Collection[str | Metric] = (),
    threshold: float = HALF,
) -> Metrics:
    """The usual metrics of a goal, and `more` of them."""
    if not len(labels):
        return {}
    rows = Scored.of(goal, scores, labels, threshold)
    usual = [registered[name] for name in NAMES[goal]]
    others = [metric if isinstance(metric, Metric) else registered[metric] for metric in more]
    return {
        metric.name: metric(rows)
        for metric in dict.fromkeys((*usual, *others))
        if rows.scores.shape[1] >= metric.outputs
    }


def smaller_is_better(name: str) -> bool:
    """Of a metric, or of a loss."""
    return name in ("train_loss", LOSS) or (
        name in set(registered) and registered[name].smaller_is_better
    )


@metric("accuracy", "classes", "binary")
def accuracy(rows: Scored) -> float:
    """The share of rows whose class is said rightly."""
    return float((rows.predicted == rows.labels).mean())


@metric("f1", "classes", "binary")
def f1(rows: Scored) -> float:
    """The harmonic mean of precision and recall; of several classes, the mean over them."""
    return rows.precision_recall_f1[2]


@metric("precision", "classes", "binary")
def precision(rows: Scored) -> float:
    """The share of rows said to be of a class that are; of several classes, the mean over them."""
    return rows.precision_recall_f1[0]


@metric("recall", "classes", "binary")
def recall(rows: Scored) -> float:
    """The share of a class's rows that are said to be; of several classes, the mean over them."""
    return rows.precision_recall_f1[1]


@metric("top5", "classes", outputs=6)
def top5(rows: Scored) -> float:
    """The share of rows whose class is among the five highest scores."""
    own = rows.scores[np.arange(len(rows.labels)), rows.labels]
    return float(((rows.scores > own[:, None]).sum(1) < 5).mean())


@metric("auroc", "classes", "binary")
def auroc(rows: Scored) -> float | None:
    """The area under the ROC curve; of several classes, the mean over those that have rows."""
    return _mean(scoring.area_under_roc, rows)


@metric("auprc", "classes", "binary")
def auprc(rows: Scored) -> float | None:
    """The average precision; of several classes, the mean over those that have rows."""
    return _mean(scoring.average_precision, rows)


def _mean(score: Callable[[Array, Array], float], rows: Scored) -> float | None:
    """Over the classes that have rows; None where rows cannot be put in order."""
    if not rows.by_class or any(np.isnan(odds).any() for _, odds in rows.by_class):
        return None
    return float(np.mean([score(positive, odds) for positive, odds in rows.by_class]))


@metric("r2", "number")
def r2(rows: Scored) -> float | None:
    """The share of the labels' variance that is explained."""
    spread = len(rows.labels) > 1 and bool((rows.labels.std(0) > 0).all())
    return scoring.explained(rows.labels, rows.scores) if spread else None


@metric("mae", "number", smaller_is_better=True)
def mae(rows: Scored) -> float:
    """The mean absolute error."""
    return float(np.abs(rows.labels - rows.scores).mean())


@metric("poisson-deviance", "number", smaller_is_better=True)
def poisson_deviance(rows: Scored) -> float | None:
    """Of counts: twice the log-likelihood that is missing to a perfect prediction, in the mean."""
    if bool((rows.labels < 0).any()) or bool((rows.scores <= 0).any()):
        return None
    each = scoring.poisson_deviances(rows.labels, rows.scores)
    return float(each.mean())


@metric("mse", "number", smaller_is_better=True)
def mse(rows: Scored) -> float:
    """The mean squared error."""
    return float(((rows.labels - rows.scores) ** 2).mean())
