"""Test metrics by goal, from scikit-learn. Where one is undefined (an AUROC with one class) it is
None, never a made-up number."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..data.dataset import Goal

Metrics = dict[str, float | None]
Array = npt.NDArray[Any]

NAMES: dict[Goal, tuple[str, ...]] = {
    "classes": ("accuracy", "top5", "f1", "precision", "recall", "auroc", "auprc"),
    "binary": ("accuracy", "f1", "precision", "recall", "auroc", "auprc"),
    "number": ("r2", "mse"),
}
HEADLINE: dict[Goal, str] = {"classes": "accuracy", "binary": "auroc", "number": "r2"}


def metrics(goal: Goal, scores: Tensor, labels: Tensor) -> Metrics:
    """Scores are what the loss takes (logits, or the numbers themselves). Of more than two classes,
    F1, precision, recall, AUROC and AUPRC are means over the classes."""
    z, y = scores.detach().double().cpu().numpy(), labels.cpu().numpy()
    if not len(y):
        return {}
    if goal == "number":
        return _number(z.reshape(len(y), -1), y.reshape(len(y), -1))
    if goal == "binary":
        return _binary(z[:, 0], y.astype(int))
    return _classes(z, y.astype(int))


def _number(z: Array, y: Array) -> Metrics:
    from sklearn.metrics import mean_squared_error, r2_score

    spread = len(y) > 1 and bool((y.std(0) > 0).all())
    return {
        "r2": float(r2_score(y, z)) if spread else None,
        "mse": float(mean_squared_error(y, z)),
    }


def _binary(z: Array, y: Array) -> Metrics:
    said = (z > 0).astype(int)
    return {**_said(y, said, "binary"), **_ranked([(y, z)])}


def _classes(z: Array, y: Array) -> Metrics:
    found = _said(y, z.argmax(1), "macro")
    if z.shape[1] > 5:
        own = z[np.arange(len(y)), y]
        found["top5"] = float(((z > own[:, None]).sum(1) < 5).mean())
    odds = z - np.logaddexp.reduce(z, axis=1)[:, None]  # log of the softmax
    return found | _ranked([(y == c, odds[:, c]) for c in range(z.shape[1])])


def _said(y: Array, said: Array, average: str) -> Metrics:
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    precision, recall, f1, _ = precision_recall_fscore_support(
        y, said, average=average, zero_division=0
    )
    return {
        "accuracy": float(accuracy_score(y, said)),
        "f1": float(f1),
        "precision": float(precision),
        "recall": float(recall),
    }


def _ranked(cases: list[tuple[Array, Array]]) -> Metrics:
    """Over the cases that have both kinds of rows."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    sound = [(y, z) for y, z in cases if 0 < y.sum() < len(y)]

    def mean(score: Callable[..., float]) -> float | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(np.mean([score(y, z) for y, z in sound])) if sound else None

    return {"auroc": mean(roc_auc_score), "auprc": mean(average_precision_score)}
