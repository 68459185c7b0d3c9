"""Losses of classes: cross-entropy, with weights of classes and smoothed labels.

A row's loss is multiplied by the weight of its class, and means are over rows, as everywhere.
torch's CrossEntropyLoss divides by the sum of the rows' weights instead, which no party of a
federation knows. As there, smoothed labels are weighted class by class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.checked import Checked
from ...core.errors import DataError, ModelError, SettingError
from ...core.registry import losses
from ...core.settings import Limit, shown
from ...data.federated import Federated
from .base import Loss
from .weights import balanced, by_class

FEW = 16  # classes: the numbers in a vector register

ClassWeights = Literal["balanced"] | tuple[float, ...] | Mapping[str, float]
Smoothing = Limit("at least 0 and below 1", lambda value: 0 <= value < 1)


@dataclass(frozen=True)
class OfClasses(Checked, Loss):
    """What the losses of classes have in common. `class_weights` are numbers in the order of the
    classes, once the loss is `fitted`."""

    class_weights: Annotated[
        ClassWeights | None,
        '"balanced" (each class counts alike), numbers in the order of the classes, or a table of '
        "numbers by class; none: each row counts alike",
    ] = None
    label_smoothing: Annotated[
        float, Smoothing, "the share of a label that is divided among all classes"
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.class_weights
        if given is None or given == "balanced":
            return
        numbers = list(given.values() if isinstance(given, Mapping) else given)
        for number in numbers:
            if number < 0:
                raise SettingError(f"class_weights must be at least 0, not {shown(number)}")
        if not any(numbers):
            raise SettingError("class_weights: at least one must be above 0")

    def fitted(self, data: Federated) -> Self:
        given = self.class_weights
        if given == "balanced":
            given = balanced(data)
        elif given is not None:
            given = by_class(given, data)
        return replace(self, class_weights=given)

    @property
    def plain(self) -> bool:
        """Without weights and smoothing."""
        return self.class_weights is None and not self.label_smoothing

    def check_weights(self, classes: int) -> None:
        """Refuse weights that are not fitted, or of other classes."""
        given = self.class_weights
        if given is not None and not isinstance(given, tuple):
            raise ModelError(
                "class_weights: Task.of works them out from the data; here, give a number for each "
                "class"
            )
        if given is not None and len(given) != classes:
            raise ModelError(f"class_weights: {len(given)} numbers for {classes} classes")


@losses.register("binary-cross-entropy")
@dataclass(frozen=True)
class BinaryCrossEntropy(OfClasses):
    """One logit a row, labels 0 or 1."""

    goal = "binary"

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        z = scores.squeeze(-1)
        if self.plain:
            return F.binary_cross_entropy_with_logits(z, labels, reduction="none")
        one, zero = self._shares(labels)
        # both logarithms from one: log sigmoid(z) = z + log sigmoid(-z)
        return -one * z - (one + zero) * F.logsigmoid(-z)

    def gradients(self, scores: Tensor, labels: Tensor) -> Tensor:
        if self.plain:
            return scores.sigmoid() - labels.unsqueeze(-1)
        one, zero = self._shares(labels.unsqueeze(-1))
        return (one + zero) * scores.sigmoid() - one

    def _shares(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """How much a row counts for class 1, and for class 0."""
        weights, rest = self.class_weights or (1.0, 1.0), self.label_smoothing / 2
        assert isinstance(weights, tuple)
        return (
            weights[1] * (labels * (1 - 2 * rest) + rest),
            weights[0] * ((1 - labels) * (1 - 2 * rest) + rest),
        )

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        if labels.ndim != 1 or not bool(((labels == 0) | (labels == 1)).all()):
            raise DataError("binary cross-entropy: labels must be 0 or 1, one a row")
        return labels.to(dtype)

    def check(self, width: int, labels: Tensor) -> None:
        if width != 1:
            raise ModelError(f"binary cross-entropy: one score a row is needed, not {width}")
        self.check_weights(2)


@losses.register("cross-entropy")
@dataclass(frozen=True)
class CrossEntropy(OfClasses):
    """C logits a row, labels 0 .. C - 1."""

    goal = "classes"
    _vector: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def to(self, dtype: torch.dtype, device: torch.device) -> CrossEntropy:
        """With the weights as a tensor, which is no work of a traced step."""
        placed = replace(self)
        if isinstance(self.class_weights, tuple):
            vector = torch.tensor(self.class_weights, dtype=dtype, device=device)
            object.__setattr__(placed, "_vector", vector)
        return placed

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        # F.cross_entropy, from operations that are fast under vmap
        of = torch.arange(scores.shape[-1], device=scores.device) == labels.unsqueeze(-1)
        if not self.plain:
            return -(self._shares(of, scores) * _logarithms(scores)).sum(-1)
        if not _are_few(scores):
            return -torch.where(of, scores.log_softmax(-1), 0.0).sum(-1)
        below = _below(scores)
        return below.exp().sum(-1).log() - torch.where(of, below, 0.0).sum(-1)

    def gradients(self, scores: Tensor, labels: Tensor) -> Tensor:
        if _are_few(scores):
            powers = _below(scores).exp()
            chances = powers / powers.sum(-1, keepdim=True)
        else:
            chances = scores.softmax(-1)
        of = F.one_hot(labels, scores.shape[-1])
        if self.plain:
            return chances - of
        shares = self._shares(of.bool(), scores)
        return shares.sum(-1, keepdim=True) * chances - shares

    def _shares(self, of: Tensor, scores: Tensor) -> Tensor:
        """How much a row counts for each class."""
        rest = self.label_smoothing / scores.shape[-1]
        shares = of.to(scores.dtype) * (1 - self.label_smoothing) + rest
        if self.class_weights is None:
            return shares
        vector = self._vector
        if vector is None:
            vector = torch.tensor(self.class_weights, dtype=scores.dtype, device=scores.device)
        return shares * vector

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        whole = labels.to(torch.int64)
        if labels.ndim != 1 or not bool((whole == labels).all()) or bool((whole < 0).any()):
            raise DataError("cross-entropy: labels must be whole numbers from 0, one a row")
        return whole

    def check(self, width: int, labels: Tensor) -> None:
        if len(labels) and int(labels.max()) >= width:
            raise ModelError(
                f"cross-entropy: the model gives {width} scores a row, the labels go up to "
                f"{int(labels.max())}"
            )
        self.check_weights(width)


def _logarithms(scores: Tensor) -> Tensor:
    """Logarithms of the softmax."""
    if not _are_few(scores):
        return scores.log_softmax(-1)
    below = _below(scores)
    return below - below.exp().sum(-1, keepdim=True).log()


def _are_few(scores: Tensor) -> bool:
    """Whether there are so few classes that torch's softmax is not vectorised on a CPU, which is up
    to seven times slower."""
    few = scores.shape[-1] < FEW and scores.dtype.itemsize >= 4
    return few and scores.device.type == "cpu"


def _below(scores: Tensor) -> Tensor:
    """Scores minus the row's largest one, so that exp does not overflow."""
    return scores - scores.detach().amax(-1, keepdim=True)
