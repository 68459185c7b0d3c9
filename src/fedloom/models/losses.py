"""The loss l(z; y) of Eqn. 3, row by row: z are the joint scores, y the labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import DataError, ModelError
from ..core.gradients import grad
from ..core.registry import losses
from ..data.dataset import Goal

FEW = 16  # classes: the numbers in a vector register


class Loss(ABC):
    """A loss gives one number a row; sums and means are taken elsewhere. `goal`: the kind of
    labels, which decides the metrics."""

    goal: ClassVar[Goal | None] = None

    @abstractmethod
    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Loss of every row: [b, out], [b, ...] -> [b]."""

    def gradients(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Gradient with respect to the scores, row by row: [b, out], [b, ...] -> [b, out]."""
        return grad(lambda z: self.rows(z, labels).sum())(scores)

    @abstractmethod
    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Labels in the form that this loss needs, or a DataError."""

    @abstractmethod
    def check(self, width: int, labels: Tensor) -> None:
        """Refuse scores of this width for these labels."""

    def combine(self, scores: list[Tensor]) -> Tensor:
        """One prediction from silos that trained alone: the sum of their logits."""
        return torch.stack(scores).sum(0)


@losses.register("squared")
@dataclass(frozen=True)
class Squared(Loss):
    """Half the squared error, as in the ridge experiments: |z - y|^2 / 2."""

    goal = "number"

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * (scores - labels.reshape(scores.shape)).square().sum(-1)

    def gradients(self, scores: Tensor, labels: Tensor) -> Tensor:
        return scores - labels.reshape(scores.shape)

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)

    def check(self, width: int, labels: Tensor) -> None:
        wanted = labels.shape[1] if labels.ndim == 2 else 1
        if labels.ndim > 2 or wanted != width:
            raise ModelError(
                f"squared loss: the model gives {width} scores a row, the labels have shape "
                f"{tuple(labels.shape)}"
            )

    def combine(self, scores: list[Tensor]) -> Tensor:
        """The mean, not the sum: each silo predicts the whole target."""
        return torch.stack(scores).mean(0)


@losses.register("binary-cross-entropy")
@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """One logit a row, labels 0 or 1."""

    goal = "binary"

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores.squeeze(-1), labels, reduction="none")

    def gradients(self, scores: Tensor, labels: Tensor) -> Tensor:
        return scores.sigmoid() - labels.unsqueeze(-1)

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        if labels.ndim != 1 or not bool(((labels == 0) | (labels == 1)).all()):
            raise DataError("binary cross-entropy: labels must be 0 or 1, one a row")
        return labels.to(dtype)

    def check(self, width: int, labels: Tensor) -> None:
        if width != 1:
            raise ModelError(f"binary cross-entropy: one score a row is needed, not {width}")


@losses.register("cross-entropy")
@dataclass(frozen=True)
class CrossEntropy(Loss):
    """C logits a row, labels 0 .. C - 1."""

    goal = "classes"

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        # F.cross_entropy, from operations that are fast under vmap
        of = torch.arange(scores.shape[-1], device=scores.device) == labels.unsqueeze(-1)
        if not _are_few(scores):
            return -torch.where(of, scores.log_softmax(-1), 0.0).sum(-1)
        below = _below(scores)
        return below.exp().sum(-1).log() - torch.where(of, below, 0.0).sum(-1)

    def gradients(self, scores: Tensor, labels: Tensor) -> Tensor:
        if _are_few(scores):
            powers = _below(scores).exp()
            shares = powers / powers.sum(-1, keepdim=True)
        else:
            shares = scores.softmax(-1)
        return shares - F.one_hot(labels, scores.shape[-1])

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


def _are_few(scores: Tensor) -> bool:
    """Whether there are so few classes that torch's softmax is not vectorised on a CPU, which is up
    to seven times slower."""
    few = scores.shape[-1] < FEW and scores.dtype.itemsize >= 4
    return few and scores.device.type == "cpu"


def _below(scores: Tensor) -> Tensor:
    """Scores minus the row's largest one, so that exp does not overflow."""
    return scores - scores.detach().amax(-1, keepdim=True)
