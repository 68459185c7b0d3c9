"""Rules for layers, of many clients at once (inside vmap) and, on a CPU, of one.

torch's own rules for convolutions, pooling and group norms inside vmap ask for sizes as plain
numbers, so that what is traced with them holds for one number of rows only. These do not, and make
the same grouped convolutions (layers.py). On a GPU they are for what is compiled; on a CPU they
have images with their channels last, and are always used, so that bits do not depend on what is
traced when.
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

from . import cpu
from .layers import Convolution, How, Norm, Pool, Product
from .levels import vmaps

WIDE = 2**16  # weights of a layer that is worth a rule
MANY = 16  # numbers of images for each weight: one model by itself is worth a rule on a CPU
Rules = Mapping[Callable[..., Any], Callable[..., Any]]


def rows_may_vary() -> AbstractContextManager[object]:
    """Where clients' local work may be traced."""
    return Instead(RULES) if tracing() else nullcontext()


def tracing() -> bool:
    """Whether what is done is written down."""
    module = sys.modules.get("torch.fx.experimental.proxy_tensor")  # slow to import
    return module is not None and module.get_proxy_mode() is not None


class Called(TorchFunctionMode):
    """Whether there is a rule for something that is called."""

    any = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        wide = func is not F.linear or (args[1].numel() >= WIDE and cpu.has_layers())
        self.any = self.any or (func in ON_CPU and wide)
        return func(*args, **(kwargs or {}))


class Instead(TorchFunctionMode):
    """Functions of torch are computed by rules; what a rule does not know, by torch."""

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
        found = NotImplemented if rule is None else rule(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is NotImplemented else found


# Rules. What they do not know (one client by itself, an image without an axis of rows, padding by
# name, places of the largest; of those with torch's bits, derivatives row by row) is left to torch.


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
    many = on_cpu and input.numel() >= MANY * weight.numel()
    if not (vmaps() or many) or (on_cpu and vmaps() > 1):
        return NotImplemented
    how = How(_each(stride, axes), _each(padding, axes), _each(dilation, axes), groups, on_cpu)
    kind = input.device.type
    if torch.is_autocast_enabled(kind):  # whose rule for convolutions this goes past
        short = torch.get_autocast_dtype(kind)
        input, weight = input.to(short), _cast(weight, short)
        bias = None if bias is None else bias.to(short)
    return Convolution.apply(input, weight, bias, how)


def _cast(a: Tensor, kind: torch.dtype) -> Tensor:
    """Its channels are the last axis meanwhile: what is compiled keeps results, and slopes, in the
    order of their axes."""
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
    each = (_each(one, 2) for one in (kernel_size, stride or kernel_size, padding, dilation))
    return Pool.apply(input, (*each, ceil_mode))[0]


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.numel() < WIDE:
        return NotImplemented
    if not cpu.has_layers():
        return NotImplemented
    if input.ndim < 2 or vmaps() > 1 or torch.is_autocast_enabled(input.device.type):
        return NotImplemented
    found = Product.apply(input.flatten(0, -2), weight).unflatten(0, input.shape[:-1])
    return found if bias is None else found + bias


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
    short = torch.is_autocast_enabled(input.device.type)
    whole = _cast(input, torch.float32) if short else input
    weight = whole.new_ones(whole.shape[1]) if weight is None else weight
    bias = whole.new_zeros(whole.shape[1]) if bias is None else bias
    return Norm.apply(whole, weight, bias, num_groups, eps, on_cpu)[0]


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
}


def _each(setting: Any, axes: int) -> tuple[int, ...]:
    given = (setting,) if isinstance(setting, int) else tuple(setting)
    return given * axes if len(given) == 1 else given
