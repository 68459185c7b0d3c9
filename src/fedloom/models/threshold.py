"""Which scores mean class 1, of two: above a probability, or one that is chosen by a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ..core.errors import SettingError, nearest
from ..core.settings import shown

Rule = Literal["f1", "balanced", "accuracy"] | Mapping[str, float]
Threshold = float | Rule
"""A probability, or a rule: the highest F1, balanced accuracy or accuracy, or the lowest cost where
rows of class 1 that are missed, and false alarms, cost so much: {"missed": 5, "false_alarm": 1}."""

HALF = 0.5
COSTS = ("missed", "false_alarm")


def is_rule(threshold: Threshold) -> bool:
    return isinstance(threshold, str | Mapping)


def check_threshold(threshold: Threshold) -> None:
    """Refuse a probability that is none, and costs that are not two positive numbers."""
    if isinstance(threshold, Mapping):
        for name in threshold:
            if name not in COSTS:
                raise SettingError(f"threshold: there is no cost {name!r}{nearest(name, COSTS)}")
        if "missed" not in threshold:
            raise SettingError("threshold: say what a `missed` row of class 1 costs")
        for name, cost in threshold.items():
            if not cost > 0:
                raise SettingError(f"threshold: {name} must be above 0, not {shown(cost)}")
    elif not isinstance(threshold, str) and not 0 < threshold < 1:
        raise SettingError(f"threshold must be above 0 and below 1, not {shown(threshold)}")


def in_words(threshold: Threshold) -> str:
    """What a threshold is chosen for."""
    if isinstance(threshold, Mapping):
        missed, alarm = costs(threshold)
        return f"the lowest cost ({missed:g} for a missed row, {alarm:g} for a false alarm)"
    words = {"f1": "the best F1", "balanced": "the best balanced accuracy"}
    return words.get(str(threshold), "the best accuracy")


def costs(given: Mapping[str, float]) -> tuple[float, float]:
    """Of a row of class 1 that is missed, and of a false alarm."""
    return given["missed"], given.get("false_alarm", 1.0)
