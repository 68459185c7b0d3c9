"""Custom torch operations for the CPU: convolutions with channels last, which are several times as
fast for many groups, and products of large matrices by oneDNN, which torch uses for layers: the
default library has no code for the wide registers of some processors.

An operation may choose by the number of rows. In a trace it is one operation, which chooses again
whenever it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
LARGE = 2**22  # multiplications from which a product goes to oneDNN,
DEEP = 32  # if each of its numbers is a sum of at least so many: else copies take longer
SETTINGS = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups"
LIBRARY = torch.library.Library("fedloom_cpu", "FRAGMENT")
LIBRARY.define(f"convolution(Tensor x, Tensor weight, Tensor? bias, {SETTINGS}) -> Tensor")
LIBRARY.define("norm(Tensor x, Tensor weight, Tensor bias, int groups, float eps) -> Tensor[]")
LIBRARY.define(
    "norm_derivative(Tensor gradient, Tensor x, Tensor weight, Tensor mean, Tensor scale,"
    " int groups) -> Tensor[]"
)
LIBRARY.define("product(Tensor a, Tensor b) -> Tensor")
LIBRARY.define(
    "convolution_derivative(Tensor gradient, Tensor x, Tensor weight, int of,"
    f" {SETTINGS}) -> Tensor"
)


def channels_last(a: Tensor) -> Tensor:
    """The same tensor; an image has its channels last in memory."""
    form = torch.channels_last if a.ndim == 4 else torch.contiguous_format
    return a.contiguous(memory_format=form)


def _settings(stride: Any, padding: Any, dilation: Any, groups: int) -> tuple[Any, ...]:
    """Settings as torch's own functions take them: not transposed, no output padding."""
    return stride, padding, dilation, False, [0] * len(stride), groups


def _order(x: Tensor, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """The memory order to use: channels last, unless the weights, which need the same order, are
    larger than the images, or the images have one channel, for which the other order has kernels.
    """
    return channels_last if x.numel() > weight.numel() and x.shape[1] > 1 else Tensor.contiguous


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
    order = _order(x, weight)
    return channels_last(aten.convolution(order(x), weight, bias, *_settings(*settings)))


def _convolution_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor, of: int, *settings: Any
) -> Tensor:
    order = _order(x, weight)
    args = order(gradient), order(x), weight, None, *_settings(*settings), [of == 0, of == 1, False]
    result = aten.convolution_backward(*args)[of]
    return channels_last(result) if of == 0 else result.contiguous()


def _norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> list[Tensor]:
    """Group norms, their means and their scales."""
    return [*aten.native_group_norm(_strictly_last(x), weight, bias, *sizes(x), groups, eps)]


def _norm_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, groups: int
) -> list[Tensor]:
    args = _strictly_last(gradient), _strictly_last(x), mean, scale, weight, *sizes(x), groups
    return [*aten.native_group_norm_backward(*args, [True, True, True])]


def sizes(x: Tensor) -> tuple[int, int, int]:
    """Rows, channels, and positions."""
    return x.shape[0], x.shape[1], x[0, 0].numel()


def _strictly_last(a: Tensor) -> Tensor:
    """A tensor with channels last, also in the strides of axes of size one."""
    return _empty(a, a.shape).copy_(a) if 1 in a.shape else channels_last(a)


def _fake_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> list[Tensor]:
    by_group = (x.shape[0], groups)
    return [_empty(x, x.shape), x.new_empty(by_group), x.new_empty(by_group)]


def _fake_norm_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, groups: int
) -> list[Tensor]:
    return [_empty(x, x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)]


def _fake_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
    """An empty result, for tracing."""
    stride, padding, dilation, _ = settings
    axes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    sizes_out = ((n + 2 * pad - gap * (k - 1) - 1) // step + 1 for n, k, step, pad, gap in axes)
    return _empty(x, (x.shape[0], weight.shape[0], *sizes_out))


def _fake_convolution_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor, of: int, *settings: Any
) -> Tensor:
    """An empty gradient, for tracing."""
    return _empty(x, x.shape) if of == 0 else weight.new_empty(weight.shape)


def _empty(like: Tensor, shape: Any) -> Tensor:
    form = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=form)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.T, for two matrices or for a batch of pairs."""
    deep = a.shape[-1]
    large = a.shape[-2] * deep * b.shape[-2] >= LARGE and deep >= DEEP
    if not large or a.dtype != torch.float32 or not has_mkldnn_product():
        return torch.matmul(a, b.mT)
    if a.ndim == 2:
        return _mkldnn_product(a, b)
    return torch.stack([_mkldnn_product(x, y) for x, y in zip(a.unbind(), b.unbind(), strict=True)])


def _mkldnn_product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


@cache
def has_mkldnn_product() -> bool:
    """Whether to use oneDNN's product: torch has this private function, and the processor is one
    that the default library does not support well."""
    return _is_amd() and torch.backends.mkldnn.is_available() and _runs()


def _is_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def _runs() -> bool:
    try:
        ones = torch.ones(1, 1)
        return bool(torch.equal(_mkldnn_product(ones, ones), ones))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def _fake_product(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(*a.shape[:-1], b.shape[-2])


LIBRARY.impl("product", _product, "CPU")
LIBRARY.impl("norm", _norm, "CPU")
LIBRARY.impl("norm_derivative", _norm_gradient, "CPU")
LIBRARY.impl("convolution", _convolution, "CPU")
LIBRARY.impl("convolution_derivative", _convolution_gradient, "CPU")
torch.library.register_fake("fedloom_cpu::product", _fake_product, lib=LIBRARY)
torch.library.register_fake("fedloom_cpu::norm", _fake_norm, lib=LIBRARY)
torch.library.register_fake("fedloom_cpu::norm_derivative", _fake_norm_gradient, lib=LIBRARY)
torch.library.register_fake("fedloom_cpu::convolution", _fake_convolution, lib=LIBRARY)
torch.library.register_fake(
    "fedloom_cpu::convolution_derivative", _fake_convolution_gradient, lib=LIBRARY
)
