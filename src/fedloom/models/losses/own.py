"""Any torch loss, or a function of scores and labels, as a loss: tried on made-up rows first."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ...core.errors import ModelError
from ...core.gradients import grad
from ...data.dataset import Goal
from ..check import under_vmap
from .base import Loss

MADE_UP = 5  # rows


@dataclass(frozen=True)
class OwnLoss(Loss):
    """`function` takes scores [rows, outputs] and labels, and gives a number for each row. Labels
    are as a loss of this goal has them: numbers of classes, or floats in the shape of the scores.
    Of what torch's losses give for each output, a row has the sum."""

    function: Callable[[Tensor, Tensor], Tensor]
    goal: Goal | None = None
    dtype: torch.dtype = torch.float32  # of the scores

    def __post_init__(self) -> None:
        function = self.function
        if not isinstance(function, nn.Module):
            return
        if getattr(function, "reduction", "none") != "none":
            raise ModelError(
                f'{self.name}: a loss is needed row by row: {self.name}(reduction="none")'
            )
        if any(True for _ in function.parameters()):
            raise ModelError(
                f"{self.name} has parameters of its own, which nobody would train; put them in a "
                "head"
            )

    @property
    def name(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return name if name.isidentifier() else "the loss"

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        if labels.is_floating_point() and labels.numel() == scores.numel():
            labels = labels.reshape(scores.shape)
        of_rows = self.function(scores, labels)
        several = isinstance(of_rows, Tensor) and of_rows.ndim > 1
        return of_rows.flatten(1).sum(1) if several else of_rows

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        if self.goal == "classes":
            return labels.to(torch.int64)
        if self.goal is None and not labels.is_floating_point():
            return labels
        return labels.to(dtype)

    def to(self, dtype: torch.dtype, device: torch.device) -> OwnLoss:
        """With a module's own tensors (weights of classes) in this precision."""
        function = self.function
        if isinstance(function, nn.Module):
            function = copy.deepcopy(function).to(dtype=dtype, device=device)
        return replace(self, function=function, dtype=dtype)

    def combine(self, scores: list[Tensor]) -> Tensor:
        """Of numbers the mean, else the sum."""
        together = torch.stack(scores)
        return together.mean(0) if self.goal == "number" else together.sum(0)

    def check(self, width: int, labels: Tensor) -> None:
        """Row by row, finite, and with a gradient, on made-up scores of a few rows."""
        draw = torch.Generator().manual_seed(0)
        scores = torch.randn(MADE_UP, width, generator=draw).to(self.dtype)
        labels = labels[torch.arange(MADE_UP) % len(labels)]
        try:
            each = self.rows(scores, labels)
        except Exception as problem:  # anybody's function
            shapes = f"scores {tuple(scores.shape)} and labels {tuple(labels.shape)}"
            raise ModelError(f"{self.name}: it fails for {shapes} ({problem})") from problem
        if not isinstance(each, Tensor) or each.shape != (MADE_UP,):
            got = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
            raise ModelError(f"{self.name}: a number for each of {MADE_UP} rows, not {got}")
        alone = torch.cat([self.rows(scores[i : i + 1], labels[i : i + 1]) for i in range(MADE_UP)])
        if not torch.allclose(each, alone, rtol=1e-4, atol=1e-5, equal_nan=True):
            raise ModelError(f"{self.name}: the loss of a row changes with the rows beside it")
        if not bool(each.isfinite().all()):
            raise ModelError(f"{self.name}: NaN or infinity for made-up scores near 0")
        self._check_gradient(scores, labels)

    def _check_gradient(self, scores: Tensor, labels: Tensor) -> None:
        try:
            slope = grad(lambda z: self.rows(z, labels).sum())(scores)
            many = under_vmap(grad(lambda z, y: self.rows(z, y).sum()), scores, labels)
        except Exception as problem:
            raise ModelError(f"{self.name}: it has no gradient ({problem})") from problem
        if not bool(slope.isfinite().all()) or not bool(slope.any()):
            raise ModelError(f"{self.name}: its gradient by the scores is not finite, or zero")
        if not torch.allclose(slope, many, rtol=1e-4, atol=1e-5):
            raise ModelError(f"{self.name}: torch.func.vmap over clients differs from a loop")
