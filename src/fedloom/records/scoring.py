"""Usual scores of classifiers and regressions, by their definitions; scikit-learn's are the same
numbers.

Rows of one score are one threshold: no order is made up among them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def precision_recall_f1(labels: Array, predicted: Array, of: int) -> tuple[float, float, float]:
    """Of a class; 0 where nothing is of it, or said to be."""
    right = int(((labels == of) & (predicted == of)).sum())
    said, true = int((predicted == of).sum()), int((labels == of).sum())
    return _share(right, said), _share(right, true), _share(2 * right, said + true)


def macro(labels: Array, predicted: Array) -> tuple[float, float, float]:
    """Precision, recall and F1: means over the classes that a row is of, or said to be of."""
    by_class = [precision_recall_f1(labels, predicted, c) for c in np.union1d(labels, predicted)]
    precision, recall, f1 = np.mean(by_class, axis=0)
    return float(precision), float(recall), float(f1)


def area_under_roc(positive: Array, scores: Array) -> float:
    """How likely a row of the class scores above a row that is not; half of it where both score
    the same."""
    true, false = counts(positive, scores)
    areas = np.diff(false, prepend=0) * (true + np.concatenate([[0], true[:-1]]))
    return float(areas.sum() / (2 * true[-1] * false[-1]))


def average_precision(positive: Array, scores: Array) -> float:
    """The mean of the precisions at the rows of the class, best score first."""
    true, false = counts(positive, scores)
    return float((np.diff(true, prepend=0) / true[-1] * (true / (true + false))).sum())


def explained(labels: Array, scores: Array) -> float:
    """R^2, the mean over outputs [rows, outputs]."""
    left = ((labels - scores) ** 2).sum(0)
    return float(np.mean(1 - left / ((labels - labels.mean(0)) ** 2).sum(0)))


def poisson_deviances(labels: Array, means: Array) -> Array:
    """Of each count from its predicted mean; a count of 0 has no logarithm, and needs none."""
    counted = np.where(labels > 0, labels, 1)
    return 2 * (np.where(labels > 0, labels * np.log(counted / means), 0) - labels + means)


def counts(positive: Array, scores: Array) -> tuple[Array, Array]:
    """At every threshold, from the highest: how many rows of the class reach it, and how many
    others."""
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order].astype(np.int64)
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
    true = positive.cumsum()[last]
    return true, last + 1 - true


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
