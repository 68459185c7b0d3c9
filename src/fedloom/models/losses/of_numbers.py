"""Losses of numbers: a score for each, and how far it is from the label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ...core.checked import Checked
from ...core.errors import DataError, ModelError
from ...core.registry import losses
from ...core.settings import Positive, inside
from .base import Loss


class OfNumbers(Checked, Loss):
    """One score for each number of a label."""

    goal = "number"

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)

    def check(self, width: int, labels: Tensor) -> None:
        wanted = labels.shape[1] if labels.ndim == 2 else 1
        if labels.ndim > 2 or wanted != width:
            raise ModelError(
                f"{type(self).__name__.lower()} loss: the model gives {width} scores a row, the "
                f"labels have shape {tuple(labels.shape)}"
            )

    def combine(self, scores: list[Tensor]) -> Tensor:
        """The mean, not the sum: each silo predicts the whole target."""
        return torch.stack(scores).mean(0)


@losses.register("squared")
@dataclass(frozen=True)
class Squared(OfNumbers):
    """Half the squared error, as in the ridge experiments: |z - y|^2 / 2."""

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * (scores - labels.reshape(scores.shape)).square().sum(-1)

    def gradients(self, scores: Tensor, labels: Tensor) -> Tensor:
        return scores - labels.reshape(scores.shape)


@losses.register("huber")
@dataclass(frozen=True)
class Huber(OfNumbers):
    """Half the squared error near the label, linear further off: outliers pull less."""

    delta: Annotated[Positive, "the error from which it is linear"] = 1.0

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        far = (scores - labels.reshape(scores.shape)).abs()
        near = far.clamp(max=self.delta)
        return (near * (far - 0.5 * near)).sum(-1)

    def gradients(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (scores - labels.reshape(scores.shape)).clamp(-self.delta, self.delta)


@losses.register("quantile")
@dataclass(frozen=True)
class Quantile(OfNumbers):
    """The pinball loss: the scores become that quantile of the labels, given the features."""

    quantile: Annotated[float, inside(0, 1), "0.5: the median; 0.9: one label in ten is above"] = (
        0.5
    )

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        short = labels.reshape(scores.shape) - scores
        return torch.where(short > 0, self.quantile * short, (self.quantile - 1) * short).sum(-1)

    def gradients(self, scores: Tensor, labels: Tensor) -> Tensor:
        short = labels.reshape(scores.shape) - scores
        return (short <= 0).to(scores.dtype) - self.quantile


@losses.register("poisson")
@dataclass(frozen=True)
class Poisson(OfNumbers):
    """Counts: scores are logarithms of the expected count, exp(z) - y z."""

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (scores.exp() - labels.reshape(scores.shape) * scores).sum(-1)

    def gradients(self, scores: Tensor, labels: Tensor) -> Tensor:
        return scores.exp() - labels.reshape(scores.shape)

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        if bool((labels < 0).any()):
            raise DataError(
                "poisson: counts must not be negative; for numbers that can be, use squared or "
                "huber (and a data set of standardised labels is not one of counts)"
            )
        return labels.to(dtype)

    def combine(self, scores: list[Tensor]) -> Tensor:
        """The mean of the expected counts."""
        return torch.stack(scores).logsumexp(0) - math.log(len(scores))

    def values(self, scores: Tensor) -> Tensor:
        return scores.exp()
