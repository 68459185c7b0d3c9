"""The loss l(z; y) of Eqn. 3, row by row: z are the joint scores, y the labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...core.gradients import grad
from ...data.dataset import Goal

if TYPE_CHECKING:
    from ...data.federated import Federated


class Loss(ABC):
    """A loss gives one number a row; sums and means are taken elsewhere. `goal`: the kind of
    labels, which decides the metrics."""

    goal: Goal | None = None

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

    def values(self, scores: Tensor) -> Tensor:
        """What scores say of a number, in the labels' own unit; most losses score in it."""
        return scores

    def fitted(self, data: Federated) -> Loss:
        """The same loss, with what it takes from the training labels."""
        return self

    def to(self, dtype: torch.dtype, device: torch.device) -> Loss:
        """The same loss for scores of this kind, where it holds tensors of its own."""
        return self
