"""Chooses how convolutions of many clients are computed on a GPU.

vmap makes one grouped convolution of those of a chunk's clients. cuDNN runs some of these near the
speed of a plain one, if channels are last; others it computes client by client. For those there are
batched matrix products, if the windows of all outputs are not too large together, and Triton
kernels. The choice by layer was measured on an H200: `python -m benchmarks.convolutions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..rules import ReplacedLayers, tracing
from . import products

try:
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:  # private in torch; without it, convolutions stay torch's own
    TorchDispatchMode = nullcontext  # type: ignore[misc, assignment]

aten = torch.ops.aten
FEW = 16  # channels below which memory order does not matter
MORE = 4  # if an output has so many times as many weights as positions, products are faster
DEEP = 256  # channels from which cuDNN computes client by client


@contextmanager
def client_convolutions(device: torch.device) -> Iterator[None]:
    """A context for clients' work, with convolutions that suit many clients at once."""
    if device.type != "cuda":
        yield
        return
    with Convolutions(tracing()), ReplacedLayers(BIAS_ADDED_AFTER):
        yield


def _with_bias(
    func: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *settings: Any,
    **keywords: Any,
) -> Any:
    """Add the bias afterwards: inside vmap, autocast does not cast a bias that is the same for all
    clients, and the convolution then fails."""
    if bias is None or not torch.is_autocast_enabled(input.device.type):
        return NotImplemented
    result = func(input, weight, None, *settings, **keywords)
    return result + bias.to(result.dtype).reshape(-1, *[1] * (weight.ndim - 2))


BIAS_ADDED_AFTER = {f: partial(_with_bias, f) for f in (torch.conv1d, torch.conv2d, torch.conv3d)}


class Convolutions(TorchDispatchMode):
    """Replaces convolutions of images; everything else is unchanged. `last`: results may have
    channels last, so that no layer permutes; torch's own vmap rules know one order only."""

    def __init__(self, last: bool = False):
        super().__init__()
        self._last = last

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is aten.convolution.default:
            layer = Layer.of(args[0], args[1], *args[3:])
            if layer is not None:
                result, bias = self._ordered(layer.forward()), args[2]
                return result if bias is None else result + bias[:, None, None]
        if func is aten.convolution_backward.default:
            gradient, x, weight, _, *settings, needed = args
            layer = Layer.of(x, weight, *settings)
            if layer is not None:
                return (
                    self._ordered(layer.by_image(gradient)) if needed[0] else None,
                    self._ordered(layer.by_weight(gradient)) if needed[1] else None,
                    gradient.sum((0, 2, 3)) if needed[2] else None,
                )
        return func(*args, **(kwargs or {}))

    def _ordered(self, a: Tensor) -> Tensor:
        return a if self._last else a.contiguous()


class Layer(NamedTuple):
    """A convolution of images, and its gradients."""

    x: Tensor
    weight: Tensor
    stride: Sequence[int]
    padding: Sequence[int]
    groups: int

    @staticmethod
    def of(
        x: Tensor,
        weight: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        _: Sequence[int],
        groups: int,
    ) -> Layer | None:
        """None if torch computes it."""
        plain = not transposed and all(step == 1 for step in dilation) and x.ndim == 4
        layer = Layer(x, weight, stride, padding, groups)
        return layer if plain and (weight.shape[1] >= FEW or layer._as_product) else None

    def forward(self) -> Tensor:
        if self._as_product:
            return products.product(*self)
        kernels = self._kernels
        if kernels is not None and (self._strided or self._deep):
            return kernels.forward(*self._last, *self._settings)
        return aten.convolution(*self._last, None, *self._torch_settings)

    def by_image(self, gradient: Tensor) -> Tensor:
        kernels = self._kernels
        # gradients of separate windows would have to be spread out
        spread = self._strided and self.weight[0, 0].numel() > 1 and kernels is not None
        if self._as_product and not spread:
            return products.by_image(gradient, *self)
        if kernels is not None and (self._strided or self._deep):
            transposed = self.weight.unflatten(0, (self.groups, -1)).permute(0, 3, 4, 2, 1)
            size = self.x.shape[2:]
            args = _channels_last(gradient), transposed.contiguous(), *size, *self._settings
            return kernels.by_image(*args)
        return self._backward(gradient, 0)

    def by_weight(self, gradient: Tensor) -> Tensor:
        if self._as_product:
            return products.by_weight(gradient, *self)
        kernels = self._kernels
        # in float32, the kernel would have to transpose tiles
        by_product = self._strided and gradient.dtype == torch.float32
        if kernels is not None and (self._deep or by_product):
            return products.by_weight(gradient, *self)
        if kernels is not None and self._strided:
            args = _channels_last(gradient), self._last[0], *self.weight.shape[2:], *self._settings
            return kernels.by_weight(*args)
        return self._backward(gradient, 1)

    def _backward(self, gradient: Tensor, of: int) -> Tensor:
        args = (
            _channels_last(gradient),
            *self._last,
            None,
            *self._torch_settings,
            [of == 0, of == 1, False],
        )
        return aten.convolution_backward(*args)[of]

    @property
    def _torch_settings(self) -> tuple[Any, ...]:
        return self.stride, self.padding, [1, 1], False, [0, 0], self.groups

    @property
    def _settings(self) -> tuple[int, int, int]:
        return self.groups, self.stride[0], self.padding[0]

    @property
    def _last(self) -> tuple[Tensor, Tensor]:
        return _channels_last(self.x), _channels_last(self.weight)

    @property
    def _as_product(self) -> bool:
        """Whether to use a matrix product: an output has many weights for few positions, or a
        window has at most as many numbers as there are outputs."""
        if self.groups == 1:
            return False
        high, wide = products.size(self.x, self.weight, self.stride, self.padding)
        window = self.weight[0].numel()
        few = MORE * _row_count(self.x.shape[0]) * high * wide <= window
        return few or window <= self.weight.shape[0] // self.groups

    @property
    def _strided(self) -> bool:
        return any(step > 1 for step in self.stride)

    @property
    def _deep(self) -> bool:
        return self.weight.shape[1] >= DEEP

    @property
    def _kernels(self) -> ModuleType | None:
        """The Triton kernels, if they support this layer."""
        (down, right), (tall, broad) = self.stride, self.padding
        kernels = _load_kernels() if self.x.is_cuda else None
        if kernels is None or self.groups == 1 or down != right or tall != broad:
            return None
        exact = self.x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        has_type = self.x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        outputs = self.weight.shape[0] // self.groups
        fits = outputs % 16 == 0 and self.weight.shape[1] % 16 == 0
        return kernels if has_type and fits and not exact else None


@cache
def _load_kernels() -> ModuleType | None:
    """The Triton kernels; None without Triton, or on an old GPU."""
    try:
        from . import kernels
    except ImportError:
        return None
    return kernels if torch.cuda.get_device_capability() >= (8, 0) else None


def _channels_last(a: Tensor) -> Tensor:
    return a.contiguous(memory_format=torch.channels_last)


def _row_count(rows: int | torch.SymInt) -> int:
    """The number of rows; for a symbolic one, its size while tracing, so that the choice is valid
    for other sizes, too."""
    return rows if isinstance(rows, int) else rows.node.hint
