"""Rules that replace torch's layers: of many clients at once (inside vmap) and, on a CPU, of one.

torch's own vmap rules for convolutions, pooling and group norms need sizes as plain numbers, so
that their traces are valid for one number of rows only. These rules do not, and make the same
grouped convolutions (layers.py). On a GPU they serve compiled work. On a CPU they keep images with
channels last, and are always used, so that bits do not depend on what was traced when.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...models.training_layers import batch_norm
from . import cpu
from .batch_norms import BatchNorm
from .layers import Convolution, ConvolutionSettings, MatrixProduct, MaxPool, Norm
from .levels import vmaps

WIDE = 2**16  # weights of a linear layer from which its rule is used
MANY = 16  # numbers in the images for each weight, from which one model alone uses a rule on a CPU
Rules = Mapping[Callable[..., Any], Callable[..., Any]]


def rows_may_vary() -> AbstractContextManager[object]:
    """The rules for work whose number of rows may vary in a trace."""
    return ReplacedLayers(RULES) if tracing() else nullcontext()


def tracing() -> bool:
    """Whether a trace is being made."""
    module = sys.modules.get("torch.fx.experimental.proxy_tensor")  # slow to import
    return module is not None and module.get_proxy_mode() is not None


class RuleFinder(TorchFunctionMode):
    """Finds out whether a function with a rule is called."""

    any = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        wide = func is not F.linear or (args[1].numel() >= WIDE and cpu.has_mkldnn_product())
        self.any = self.any or (func in ON_CPU and wide)
        return func(*args, **(kwargs or {}))


class ReplacedLayers(TorchFunctionMode):
    """Computes functions of torch by rules; torch computes what a rule declines."""

    def __init__(self, rules: Rules):
        super().__init__()
        self._rules = rules

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        rule = self._rules.get(func)
        result = NotImplemented if rule is None else rule(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result


# Rules. They decline what they do not support (a single client, an image without a batch axis,
# padding by name, indices of the maximum, gradients row by row on a CPU).


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    on_cpu: bool = False,
) -> Any:
    axes = weight.ndim - 2
    if isinstance(padding, str) or input.ndim != weight.ndim:
        return NotImplemented
    many_images = on_cpu and input.numel() >= MANY * weight.numel()
    if not (vmaps() or many_images) or (on_cpu and vmaps() > 1):
        return NotImplemented
    settings = ConvolutionSettings(
        _by_axis(stride, axes), _by_axis(padding, axes), _by_axis(dilation, axes), groups, on_cpu
    )
    device = input.device.type
    if torch.is_autocast_enabled(device):  # whose cast of convolutions is bypassed here
        dtype = torch.get_autocast_dtype(device)
        input, weight = input.to(dtype), _cast(weight, dtype)
        bias = None if bias is None else bias.to(dtype)
    return Convolution.apply(input, weight, bias, settings)


def _cast(a: Tensor, kind: torch.dtype) -> Tensor:
    """A cast with channels as the last axis: compiled code keeps results and gradients in the order
    of their axes."""
    return a.movedim(1, -1).to(kind).movedim(-1, 1)


def _pooled(
    input: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    on_cpu: bool = False,
) -> Any:
    if return_indices or input.ndim != 4 or not (on_cpu or vmaps()):
        return NotImplemented
    settings = (
        _by_axis(setting, 2) for setting in (kernel_size, stride or kernel_size, padding, dilation)
    )
    return MaxPool.apply(input, (*settings, ceil_mode))[0]


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.numel() < WIDE:
        return NotImplemented
    if not cpu.has_mkldnn_product():
        return NotImplemented
    if input.ndim < 2 or vmaps() > 1 or torch.is_autocast_enabled(input.device.type):
        return NotImplemented
    result = MatrixProduct.apply(input.flatten(0, -2), weight).unflatten(0, input.shape[:-1])
    return result if bias is None else result + bias


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    on_cpu: bool = False,
) -> Any:
    if not vmaps() or (on_cpu and vmaps() > 1):
        return NotImplemented
    is_autocast = torch.is_autocast_enabled(input.device.type)
    x = _cast(input, torch.float32) if is_autocast else input
    weight = x.new_ones(x.shape[1]) if weight is None else weight
    bias = x.new_zeros(x.shape[1]) if bias is None else bias
    return Norm.apply(x, weight, bias, num_groups, eps, on_cpu)[0]


def _batch_norm(
    x: Tensor,
    counts: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    if vmaps() > 1 or torch.is_autocast_enabled(x.device.type) or x.dtype != mean.dtype:
        return NotImplemented
    weight = torch.ones_like(mean) if weight is None else weight
    bias = torch.zeros_like(mean) if bias is None else bias
    one = (a.unsqueeze(0) for a in (x.unsqueeze(-1).flatten(2), counts, mean, var, weight, bias))
    y, batch_mean, batch_var, count, _ = BatchNorm.apply(*one, eps)
    return y.squeeze(0).reshape(x.shape), batch_mean[0], batch_var[0], count[0]


RULES: Rules = {
    torch.conv1d: _convolution,
    torch.conv2d: _convolution,
    torch.conv3d: _convolution,
    torch.max_pool2d: _pooled,
    F.max_pool2d: _pooled,
    F.group_norm: _group_norm,
}
ON_CPU: Rules = {
    torch.conv1d: partial(_convolution, on_cpu=True),
    torch.conv2d: partial(_convolution, on_cpu=True),
    torch.conv3d: partial(_convolution, on_cpu=True),
    torch.max_pool2d: partial(_pooled, on_cpu=True),
    F.max_pool2d: partial(_pooled, on_cpu=True),
    F.group_norm: partial(_group_norm, on_cpu=True),
    F.linear: _linear,
    batch_norm: _batch_norm,
}


def _by_axis(setting: Any, axes: int) -> tuple[int, ...]:
    settings = (setting,) if isinstance(setting, int) else tuple(setting)
    return settings * axes if len(settings) == 1 else settings
