"""A loss: one number a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom import errors
from fedloom.extend import Loss, losses


@losses.register("focal")
@dataclass(frozen=True)
class Focal(Loss):
    """Cross-entropy that counts rows less the surer they are (Lin et al., 2017)."""

    goal = "classes"

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        true = torch.arange(scores.shape[-1], device=scores.device) == labels.unsqueeze(-1)
        logs = torch.where(true, scores.log_softmax(-1), 0.0).sum(-1)
        return -((1 - logs.exp()) ** 2) * logs

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        if labels.is_floating_point() or labels.ndim != 1 or bool((labels < 0).any()):
            raise errors.DataError("focal: labels must be whole numbers from 0, one a row")
        return labels

    def check(self, width: int, labels: Tensor) -> None:
        if len(labels) and int(labels.max()) >= width:
            raise errors.ModelError(f"focal: {width} scores a row are too few for the labels")
