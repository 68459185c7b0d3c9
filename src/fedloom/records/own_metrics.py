"""Metrics by name, as functions of labels and scores, or as objects of torchmetrics.

A function is given labels and scores as scikit-learn's take them: numpy arrays, [rows] where there
is one score a row, else [rows, outputs]. An object with `update`, `compute` and `reset` is given
tensors: probabilities of classes (of class 1, of two) or predicted numbers, then labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core.errors import SettingError
from ..core.registry import metrics as registered
from ..core.settings import shown
from ..data.dataset import Goal
from .metrics import NAMES, Array, Metric, Scored


@runtime_checkable
class Accumulated(Protocol):
    """A metric as torchmetrics has them."""

    def update(self, predicted: Tensor, labels: Tensor) -> Any: ...

    def compute(self) -> Any: ...

    def reset(self) -> Any: ...


MetricLike = str | Metric | Callable[[Array, Array], Any] | Accumulated
"""A registered name, a `Metric`, a function of labels and scores, or an object of torchmetrics."""


def chosen_metrics(given: Sequence[MetricLike], goal: Goal | None) -> tuple[Metric, ...]:
    """As metrics; refuses those that say nothing about a goal, and names that mean two things."""
    chosen: dict[str, Metric] = {}
    for one in given:
        metric = registered[one] if isinstance(one, str) else _as_metric(one)
        if goal not in metric.goals:
            what = "a loss of your own" if goal is None else f"the goal {goal}"
            raise SettingError(
                f"metric {metric.name} is for {' and '.join(metric.goals)}, not for {what}"
            )
        taken = metric.name in set(registered) and registered[metric.name] is not metric
        if taken or chosen.get(metric.name, metric) is not metric:
            raise SettingError(f"metric {metric.name}: there is another of this name; rename yours")
        chosen[metric.name] = metric
    return tuple(chosen.values())


def _as_metric(given: Any) -> Metric:
    if isinstance(given, Metric):
        return given
    goals = tuple(NAMES)
    if isinstance(given, type) or not (isinstance(given, Accumulated) or callable(given)):
        raise SettingError(f"metrics: a name or a function is expected, not {shown(given)}")
    if isinstance(given, Accumulated):
        smaller = getattr(given, "higher_is_better", None) is False
        return Metric(type(given).__name__, _accumulating(given), goals, smaller)
    name = getattr(given, "__name__", "")
    if not name.isidentifier():
        raise SettingError("metrics: a function without a name (a lambda, say): define it by `def`")
    return Metric(name, _calling(given), goals)


def _calling(function: Callable[[Array, Array], Any]) -> Callable[[Scored], Any]:
    def compute(rows: Scored) -> Any:
        return function(_flat(rows.labels), _flat(rows.scores))

    return compute


def _accumulating(object: Accumulated) -> Callable[[Scored], Any]:
    def compute(rows: Scored) -> Any:
        predicted = rows.scores if rows.goal == "number" else rows.probabilities
        object.reset()
        object.update(*(torch.from_numpy(_flat(a).copy()) for a in (predicted, rows.labels)))
        value = object.compute()
        object.reset()
        return value

    return compute


def _flat(a: Array) -> Array:
    return a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a
