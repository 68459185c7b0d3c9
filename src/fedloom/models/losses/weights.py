"""Weights of classes, from how many training rows each has, or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...core.errors import DataError, SettingError, nearest
from ...data.federated import Federated


def balanced(data: Federated) -> tuple[float, ...]:
    """So that each class counts alike: rows / (classes x rows of the class)."""
    labels = data.train.labels().long()
    return balanced_of(torch.bincount(labels, minlength=classes_of(data)).tolist(), names(data))


def balanced_of(counts: Sequence[int], classes: Sequence[str]) -> tuple[float, ...]:
    """The same, from the number of training rows of each class."""
    for name, count in zip(classes, counts, strict=True):
        if not count:
            raise DataError(
                f'class_weights = "balanced": no training row is of class {name!r}; give numbers'
            )
    return tuple(sum(counts) / (len(counts) * count) for count in counts)


def by_class(given: Sequence[float] | Mapping[str, float], data: Federated) -> tuple[float, ...]:
    """Weights as numbers in the order of the classes."""
    known = names(data)
    if not isinstance(given, Mapping):
        if len(given) != len(known):
            raise SettingError(f"class_weights: {len(given)} numbers for {len(known)} classes")
        return tuple(map(float, given))
    for name in given:
        if name not in known:
            raise SettingError(f"class_weights: there is no class {name!r}{nearest(name, known)}")
    if missing := [name for name in known if name not in given]:
        raise SettingError(f"class_weights: none for class {missing[0]!r}: give one for each class")
    return tuple(float(given[name]) for name in known)


def in_words(weights: Sequence[float] | None, data: Federated) -> list[str]:
    """What rows of each class count, for people; nothing where each row counts alike."""
    if weights is None or data.goal == "number":
        return []
    each = zip(names(data), weights, strict=True)
    return ["class weights: " + ", ".join(f"{name} {weight:.4g}" for name, weight in each)]


def names(data: Federated) -> tuple[str, ...]:
    """Names of the classes; numbers where they have none."""
    return data.classes or tuple(map(str, range(classes_of(data))))


def classes_of(data: Federated) -> int:
    return data.outputs if data.goal == "classes" else 2
