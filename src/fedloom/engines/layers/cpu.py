"""Operations of our own for a CPU: convolutions with channels last in memory, which torch's kernels
for many groups are several times as fast with, and products of large matrices by the library that
torch has for layers: the other one has no code for the wide registers of some processors. What they
do may depend on numbers of rows; they are written down as one operation, which decides each time it
is played.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
LARGE = 2**22  # multiplications of a product that are worth a call of its own,
DEEP = 32  # if each number of it is a sum of so many: else what is copied takes longer
HOW = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups"
OWN = torch.library.Library("fedloom_cpu", "FRAGMENT")
OWN.define(f"convolution(Tensor x, Tensor weight, Tensor? bias, {HOW}) -> Tensor")
OWN.define("norm(Tensor x, Tensor weight, Tensor bias, int groups, float eps) -> Tensor[]")
OWN.define(
    "norm_derivative(Tensor slope, Tensor x, Tensor weight, Tensor mean, Tensor scale, int groups)"
    " -> Tensor[]"
)
OWN.define("product(Tensor a, Tensor b) -> Tensor")
OWN.define(
    f"convolution_derivative(Tensor slope, Tensor x, Tensor weight, int of, {HOW}) -> Tensor"
)


def last(a: Tensor) -> Tensor:
    """The same, an image's channels last in memory."""
    form = torch.channels_last if a.ndim == 4 else torch.contiguous_format
    return a.contiguous(memory_format=form)


def _settings(stride: Any, padding: Any, dilation: Any, groups: int) -> tuple[Any, ...]:
    """As torch's own functions take them: not transposed, no padding of the result."""
    return stride, padding, dilation, False, [0] * len(stride), groups


def _order(x: Tensor, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Channels last, unless that takes longer: weights would have to be put in that order, too, and
    an image with one channel in all has kernels for the other."""
    return last if x.numel() > weight.numel() and x.shape[1] > 1 else Tensor.contiguous


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    order = _order(x, weight)
    return last(aten.convolution(order(x), weight, bias, *_settings(*how)))


def _derivative(slope: Tensor, x: Tensor, weight: Tensor, of: int, *how: Any) -> Tensor:
    order = _order(x, weight)
    given = order(slope), order(x), weight, None, *_settings(*how), [of == 0, of == 1, False]
    found = aten.convolution_backward(*given)[of]
    return last(found) if of == 0 else found.contiguous()


def _norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> list[Tensor]:
    """Group norms: what they give, and the means and scales they took."""
    return [*aten.native_group_norm(_exactly(x), weight, bias, *sizes(x), groups, eps)]


def _norm_derivative(
    slope: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, groups: int
) -> list[Tensor]:
    given = _exactly(slope), _exactly(x), mean, scale, weight, *sizes(x), groups
    return [*aten.native_group_norm_backward(*given, [True, True, True])]


def sizes(x: Tensor) -> tuple[int, int, int]:
    """Rows, channels, and positions."""
    return x.shape[0], x.shape[1], x[0, 0].numel()


def _exactly(a: Tensor) -> Tensor:
    """With its channels last, and with strides that say so where there is one row or position."""
    return _made(a, a.shape).copy_(a) if 1 in a.shape else last(a)


def _normed(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> list[Tensor]:
    each = (x.shape[0], groups)
    return [_made(x, x.shape), x.new_empty(each), x.new_empty(each)]


def _norm_derived(
    slope: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, groups: int
) -> list[Tensor]:
    return [_made(x, x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)]


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    """The shape of the one."""
    stride, padding, dilation, _ = how
    each = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    size = ((n + 2 * pad - gap * (k - 1) - 1) // step + 1 for n, k, step, pad, gap in each)
    return _made(x, (x.shape[0], weight.shape[0], *size))


def _derived(slope: Tensor, x: Tensor, weight: Tensor, of: int, *how: Any) -> Tensor:
    """And of the other."""
    return _made(x, x.shape) if of == 0 else weight.new_empty(weight.shape)


def _made(like: Tensor, shape: Any) -> Tensor:
    form = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=form)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.T, of two matrices or of as many pairs as there are."""
    deep = a.shape[-1]
    large = a.shape[-2] * deep * b.shape[-2] >= LARGE and deep >= DEEP
    if not large or a.dtype != torch.float32 or not has_layers():
        return torch.matmul(a, b.mT)
    if a.ndim == 2:
        return _layer(a, b)
    return torch.stack([_layer(x, y) for x, y in zip(a.unbind(), b.unbind(), strict=True)])


def _layer(x: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


@cache
def has_layers() -> bool:
    """Whether products go through that library: where torch has it (the function may go), and the
    processor is one that the other one does not know well."""
    return _is_amd() and torch.backends.mkldnn.is_available() and _works()


def _is_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def _works() -> bool:
    try:
        one = torch.ones(1, 1)
        return bool(torch.equal(_layer(one, one), one))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def _multiplied(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(*a.shape[:-1], b.shape[-2])


OWN.impl("product", _product, "CPU")
OWN.impl("norm", _norm, "CPU")
OWN.impl("norm_derivative", _norm_derivative, "CPU")
OWN.impl("convolution", _convolution, "CPU")
OWN.impl("convolution_derivative", _derivative, "CPU")
torch.library.register_fake("fedloom_cpu::product", _multiplied, lib=OWN)
torch.library.register_fake("fedloom_cpu::norm", _normed, lib=OWN)
torch.library.register_fake("fedloom_cpu::norm_derivative", _norm_derived, lib=OWN)
torch.library.register_fake("fedloom_cpu::convolution", _convolved, lib=OWN)
torch.library.register_fake("fedloom_cpu::convolution_derivative", _derived, lib=OWN)
