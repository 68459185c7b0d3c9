"""Layers that train otherwise than they predict.

A block runs a copy of the user's module in which torch's BatchNorm and dropout in train mode are
replaced: by layers that know which rows count, and what masks of rows are named by. Names of
parameters and buffers stay, so that what was trained is put back into the user's own module.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from ..core.errors import ModelError
from .dropout import DROPOUTS, Dropout

BATCH_NORMS: dict[type[nn.Module], tuple[int, ...]] = {  # and the axes that their input may have
    nn.BatchNorm1d: (2, 3),
    nn.BatchNorm2d: (4,),
    nn.BatchNorm3d: (5,),
}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def with_own_layers(module: nn.Module) -> nn.Module:
    """A copy with FedLoom's layers; the module itself if there is nothing to replace."""
    if not any(map(_trains_otherwise, module.modules())):
        return module
    own: dict[nn.Module, BatchNorm | Dropout] = {}  # one that is used in several places stays one
    module = copy.deepcopy(module)

    def replaced(layer: nn.Module, at: str) -> nn.Module:
        if _trains_otherwise(layer):
            if layer not in own:
                own[layer] = (
                    BatchNorm(layer, at)
                    if type(layer) in BATCH_NORMS
                    else Dropout(layer, at, number=len(own))
                )
            return own[layer]
        for name, child in layer._modules.items():
            if child is not None:
                setattr(layer, name, replaced(child, f"{at}.{name}" if at else name))
        return layer

    return replaced(module, "")


def _trains_otherwise(layer: nn.Module) -> bool:
    """Whether it is torch's BatchNorm or dropout, and trains."""
    if type(layer) in BATCH_NORMS:
        return layer.training and bool(layer.track_running_stats)
    return type(layer) in DROPOUTS and layer.training and float(getattr(layer, "p", 0)) > 0


def put_in_eval_mode(module: nn.Module) -> None:
    """These layers of the user's own module, so that it computes what was trained."""
    for layer in module.modules():
        if _trains_otherwise(layer):
            layer.eval()


def training_layers(module: nn.Module) -> list[BatchNorm | Dropout]:
    """FedLoom's layers in a module."""
    return [layer for layer in module.modules() if isinstance(layer, BatchNorm | Dropout)]


def batch_norms(module: nn.Module) -> dict[str, BatchNorm]:
    """FedLoom's BatchNorm in a module, by the beginning of their parameters' names."""
    layers = module.named_modules()
    return {f"{at}." if at else "": a for at, a in layers if isinstance(a, BatchNorm)}


class BatchNorm(nn.Module):
    """nn.BatchNorm1d, 2d or 3d. With `counts`, a mask of its rows, it normalises by the mean and
    variance of the rows that count, and moves the running statistics, as torch does in train mode.
    Without, or with one number only (which torch refuses), it uses the running ones."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, given: Any, name: str):
        super().__init__()
        self.name = f"layer {name or '(the module itself)'} ({type(given).__name__})"
        self.weight, self.bias = given.weight, given.bias
        for name in STATISTICS:
            self.register_buffer(name, getattr(given, name))
        self.eps, self.momentum, self._axes = given.eps, given.momentum, BATCH_NORMS[type(given)]
        self._settings = given.extra_repr()
        self.counts: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in self._axes:
            axes = " or ".join(map(str, self._axes))
            raise ModelError(f"{self.name} is for tensors of {axes} axes, not of {x.ndim}")
        before = self.running_mean.detach(), self.running_var.detach()
        if self.counts is None:
            return F.batch_norm(x, *before, self.weight, self.bias, eps=self.eps)
        if self.counts.shape[0] != x.shape[0]:
            raise ModelError(
                f"{self.name} is given {x.shape[0]} rows of a minibatch of {self.counts.shape[0]}: "
                "the first axis of its input must be the rows"
            )
        result, mean, var, count = batch_norm(
            x, self.counts, *before, self.weight, self.bias, self.eps
        )
        self._track(mean, var, count)
        return result

    def _track(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Torch's formula: the running variance is unbiased."""
        moves, batches = (count > 1).to(count.dtype), self.num_batches_tracked.detach()
        share = moves * (1 / (batches + 1) if self.momentum is None else self.momentum)
        for name, value in zip(STATISTICS, (mean, var), strict=False):
            before = getattr(self, name).detach()
            setattr(self, name, torch.lerp(before, value, share))
        self.num_batches_tracked = batches + moves

    def extra_repr(self) -> str:
        return self._settings


def batch_norm(
    x: Tensor,
    counts: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All rows, normalised by the mean and variance of those that count; this mean, the unbiased
    variance, and of how many numbers of a channel they are. With less than two, it is normalised by
    the running ones."""
    given = (x, counts, running_mean, running_var, weight, bias)
    if has_torch_function(given):  # an engine may have a rule for it, as for torch's own layers
        return handle_torch_function(batch_norm, given, *given, eps)
    rows = x.to(running_mean.dtype).unsqueeze(-1).flatten(2)  # [rows, channels, positions]
    count = counts.sum().to(rows.dtype) * rows.shape[2]

    def mean_of(a: Tensor) -> Tensor:
        return torch.where(counts[:, None], a.sum(2), 0.0).sum(0) / count.clamp(min=1)

    mean = mean_of(rows)
    var = mean_of((rows - mean[:, None]).square())
    enough = count > 1
    centre = torch.where(enough, mean, running_mean)
    scale = (torch.where(enough, var, running_var) + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    result = (rows - centre[:, None]) * scale[:, None]
    if bias is not None:
        result = result + bias[:, None]
    unbiased = var.detach() * (count / (count - 1).clamp(min=1))
    return result.reshape(x.shape).to(x.dtype), mean.detach(), unbiased, count
