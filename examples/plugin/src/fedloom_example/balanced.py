"""A metric: a function of rows that were scored; None where it is not defined."""

from __future__ import annotations

import numpy as np

from fedloom.extend import Scored, metric


@metric("balanced-accuracy", "classes", "binary")
def balanced_accuracy(rows: Scored) -> float | None:
    """The mean over the classes of the share of their rows that are said to be."""
    classes = np.unique(rows.labels)
    if len(classes) < 2:
        return None
    return float(np.mean([(rows.predicted[rows.labels == c] == c).mean() for c in classes]))
