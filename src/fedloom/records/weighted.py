"""The usual metrics on many resamples at once: a resample says how often each row counts.

Each function prepares what does not depend on the resample (the order of the scores, which rows are
right), and returns a function from counts [resamples, rows] to values [resamples]. With each row
counted once, it is the metric of scoring.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from .metrics import Array, Scored

Compute = Callable[[Array], Array]


class Weighted(NamedTuple):
    """`curves`: it orders the rows once for every class."""

    prepare: Callable[[Scored], Compute]
    curves: bool = False


def _accuracy(rows: Scored) -> Compute:
    return _share_of((rows.predicted == rows.labels).astype(float))


def _top5(rows: Scored) -> Compute:
    own = rows.scores[np.arange(len(rows.labels)), rows.labels]
    return _share_of(((rows.scores > own[:, None]).sum(1) < 5).astype(float))


def _share_of(hits: Array) -> Compute:
    return lambda counts: counts @ hits / len(hits)


def _of_classes(which: int) -> Callable[[Scored], Compute]:
    """Precision (0), recall (1) or F1 (2): of class 1, or the mean over the classes that a row of
    the resample is of, or said to be of."""

    def prepare(rows: Scored) -> Compute:
        classes = [1] if rows.goal == "binary" else np.union1d(rows.labels, rows.predicted)
        true = np.stack([rows.labels == c for c in classes], 1).astype(float)
        said = np.stack([rows.predicted == c for c in classes], 1).astype(float)
        binary = rows.goal == "binary"

        def compute(counts: Array) -> Array:
            right, of, called = counts @ (true * said), counts @ true, counts @ said
            part, whole = ((right, called), (right, of), (2 * right, of + called))[which]
            shares = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
            if binary:
                return shares[:, 0]
            return shares.sum(1) / ((of + called) > 0).sum(1)

        return compute

    return prepare


class Ordered:
    """Rows of a class and others, the best score first; rows of one score are one threshold."""

    def __init__(self, positive: Array, scores: Array):
        self._order = np.argsort(-scores, kind="stable")
        of = scores[self._order]
        self._starts = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
        self._positive = positive[self._order].astype(float)

    def __call__(self, counts: Array) -> tuple[Array, Array]:
        """At each threshold of each resample: how many rows of the class, how many others."""
        counts = counts[:, self._order]
        true = counts * self._positive
        false = counts - true
        if len(self._starts) < counts.shape[1]:
            true = np.add.reduceat(true, self._starts, axis=1)
            false = np.add.reduceat(false, self._starts, axis=1)
        return true, false


def _roc(true: Array, false: Array) -> Array:
    below = np.cumsum(true, axis=1)
    area = np.einsum("ij,ij->i", false, below - true / 2)
    return _divided(area, below[:, -1] * false.sum(1))


def _precision_recall(true: Array, false: Array) -> Array:
    reached = np.cumsum(true, axis=1)
    said = reached + np.cumsum(false, axis=1)
    precision = np.divide(reached, said, out=np.zeros_like(said), where=said > 0)
    area = np.einsum("ij,ij->i", true, precision)
    return np.where(said[:, -1] > reached[:, -1], _divided(area, reached[:, -1]), np.nan)


def _curve(area: Callable[[Array, Array], Array]) -> Callable[[Scored], Compute]:
    """The mean over classes; of a resample, over those that have rows in it."""

    def prepare(rows: Scored) -> Compute:
        ordered = [Ordered(positive, odds) for positive, odds in rows.by_class]

        def compute(counts: Array) -> Array:
            areas = np.stack([area(*one(counts)) for one in ordered])
            known = np.isfinite(areas)
            return _divided(np.where(known, areas, 0.0).sum(0), known.sum(0).astype(float))

        return compute

    return prepare


def _r2(rows: Scored) -> Compute:
    left = (rows.labels - rows.predicted) ** 2
    around = rows.labels - rows.labels.mean(0)  # so that no digits are lost
    squares = around**2

    def compute(counts: Array) -> Array:
        total = counts.sum(1, keepdims=True)
        spread = counts @ squares - (counts @ around) ** 2 / total
        some = spread > 1e-12 * np.maximum(counts @ squares, 1e-300)
        shares = np.divide(counts @ left, spread, out=np.full_like(spread, np.nan), where=some)
        return (1 - shares).mean(1)

    return compute


def _mse(rows: Scored) -> Compute:
    return _share_of(((rows.labels - rows.predicted) ** 2).mean(1))


def _divided(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


WEIGHTED: Mapping[str, Weighted] = {
    "accuracy": Weighted(_accuracy),
    "top5": Weighted(_top5),
    "precision": Weighted(_of_classes(0)),
    "recall": Weighted(_of_classes(1)),
    "f1": Weighted(_of_classes(2)),
    "auroc": Weighted(_curve(_roc), curves=True),
    "auprc": Weighted(_curve(_precision_recall), curves=True),
    "r2": Weighted(_r2),
    "mse": Weighted(_mse),
}
