"""The threshold of a model of two classes, chosen by a rule.

A rule is followed on validation rows, never on the rows that metrics are of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.errors import DataError, SettingError
from ..data.dataset import Goal
from ..data.placement import Placement
from ..models.threshold import HALF, Rule, Threshold, check_threshold, costs, in_words, is_rule
from . import scoring

Array = npt.NDArray[Any]


def check_rows(threshold: Threshold, goal: Goal | None, validation: Placement | None) -> None:
    """Refuse a threshold where there are no two classes, or no rows to choose it on."""
    check_threshold(threshold)
    if threshold == HALF:
        return
    if goal != "binary":
        raise SettingError(
            f"threshold: only two classes have one, not the goal {goal}; leave it out"
        )
    if not is_rule(threshold):
        return
    if validation is None:
        raise SettingError(
            f"threshold: {in_words(threshold)} is sought on validation rows, and there are none: "
            "set `validation` in [data] (data.with_validation(0.15)), or give a number"
        )
    labels = validation.labels()
    if bool((labels == labels[0]).all()):
        raise DataError("threshold: all validation rows are of one class: keep more of them back")


def choose_threshold(labels: Tensor, scores: Tensor, rule: Rule) -> float:
    """The best probability for these rows, by a rule: halfway between two rows' probabilities. Of
    equally good ones, that nearest to 0.5."""
    z = scores.detach().double().cpu().numpy().reshape(len(labels))
    if not np.isfinite(z).all():
        return HALF
    chances, y = sigmoid(z), labels.cpu().numpy().astype(int).reshape(len(labels))
    each = np.unique(chances)[::-1]
    edges = np.concatenate([[1.0], each, [0.0]])
    cuts = (
        edges[:-1] + edges[1:]
    ) / 2  # the first says that no row is of class 1, the last that all
    true, false = (np.concatenate([[0], n]) for n in scoring.counts(y, chances))
    gains = _gains(true, false, rule)
    best = np.flatnonzero(gains >= gains.max() - 1e-12 * max(1.0, abs(gains.max())))
    return float(cuts[best[np.argmin(np.abs(cuts[best] - HALF))]])


def _gains(true: Array, false: Array, rule: Rule) -> Array:
    """What is to be large, at every cut: so many rows are rightly, and wrongly, said to be of
    class 1."""
    ones, zeros = true[-1], false[-1]
    if isinstance(rule, Mapping):
        missed, alarm = costs(rule)
        return -(missed * (ones - true) + alarm * false) / (ones + zeros)
    if rule == "f1":
        return 2 * true / np.maximum(true + false + ones, 1)
    if rule == "balanced":
        return true / max(ones, 1) - false / max(zeros, 1)
    return (true - false) / (ones + zeros)


def sigmoid(z: Array) -> Array:
    """Logits as probabilities; 0 is a half to the bit."""
    return torch.sigmoid(torch.from_numpy(np.ascontiguousarray(z))).numpy()
