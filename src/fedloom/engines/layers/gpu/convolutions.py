"""Convolutions of many clients at once, on a GPU.

vmap makes one grouped convolution out of those of a chunk's clients. cuDNN runs some of these near
the speed of a plain one, where channels come last; others it takes apart, client by client. For
these there are batched matrix products, where what all outputs see is not too much, and kernels of
our own. Which layer goes which way was measured on an H200: `python -m benchmarks.convolutions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..rules import Instead, tracing
from . import products

aten = torch.ops.aten
FEW = 16  # channels below which the order of axes does not matter
MORE = 4  # times as many weights of an output as positions: products are faster
DEEP = 256  # channels from which cuDNN takes clients apart


@contextmanager
def of_clients(device: torch.device) -> Iterator[None]:
    """Where clients' local work is done: with convolutions that suit many clients at once."""
    if device.type != "cuda":
        yield
        return
    with Convolutions(tracing()), Instead(BIAS_APART):
        yield


def _with_bias(
    func: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *how: Any,
    **named: Any,
) -> Any:
    """The bias added afterwards: autocast, inside vmap, does not cast one that is the same for all,
    and the convolution then refuses it."""
    if bias is None or not torch.is_autocast_enabled(input.device.type):
        return NotImplemented
    found = func(input, weight, None, *how, **named)
    return found + bias.to(found.dtype).reshape(-1, *[1] * (weight.ndim - 2))


BIAS_APART = {f: partial(_with_bias, f) for f in (torch.conv1d, torch.conv2d, torch.conv3d)}


class Convolutions(TorchDispatchMode):
    """Runs convolutions of images in another way; everything else as it is. `last`: results may
    have their channels last, so that no layer puts them in another order; torch's own rules for
    vmap know one order only."""

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
                found, bias = self._ordered(layer.forward()), args[2]
                return found if bias is None else found + bias[:, None, None]
        if func is aten.convolution_backward.default:
            slope, x, weight, _, *how, wanted = args
            layer = Layer.of(x, weight, *how)
            if layer is not None:
                return (
                    self._ordered(layer.by_image(slope)) if wanted[0] else None,
                    self._ordered(layer.by_weight(slope)) if wanted[1] else None,
                    slope.sum((0, 2, 3)) if wanted[2] else None,
                )
        return func(*args, **(kwargs or {}))

    def _ordered(self, a: Tensor) -> Tensor:
        return a if self._last else a.contiguous()


class Layer(NamedTuple):
    """A convolution of images, and its derivatives."""

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
        """None: one that is left to torch."""
        plain = not transposed and all(one == 1 for one in dilation) and x.ndim == 4
        layer = Layer(x, weight, stride, padding, groups)
        return layer if plain and (weight.shape[1] >= FEW or layer._as_product) else None

    def forward(self) -> Tensor:
        if self._as_product:
            return products.product(*self)
        kernels = self._kernels
        if kernels is not None and (self._strided or self._deep):
            return kernels.forward(*self._last, *self._settings)
        return aten.convolution(*self._last, None, *self._how)

    def by_image(self, slope: Tensor) -> Tensor:
        kernels = self._kernels
        # what windows that lie apart see would have to be spread out
        spread = self._strided and self.weight[0, 0].numel() > 1 and kernels is not None
        if self._as_product and not spread:
            return products.by_image(slope, *self)
        if kernels is not None and (self._strided or self._deep):
            turned = self.weight.unflatten(0, (self.groups, -1)).permute(0, 3, 4, 2, 1)
            size = self.x.shape[2:]
            given = _channels_last(slope), turned.contiguous(), *size, *self._settings
            return kernels.by_image(*given)
        return self._backward(slope, 0)

    def by_weight(self, slope: Tensor) -> Tensor:
        if self._as_product:
            return products.by_weight(slope, *self)
        kernels = self._kernels
        # in float32, our kernel would have to turn tiles around
        turned = self._strided and slope.dtype == torch.float32
        if kernels is not None and (self._deep or turned):
            return products.by_weight(slope, *self)
        if kernels is not None and self._strided:
            given = _channels_last(slope), self._last[0], *self.weight.shape[2:], *self._settings
            return kernels.by_weight(*given)
        return self._backward(slope, 1)

    def _backward(self, slope: Tensor, of: int) -> Tensor:
        given = _channels_last(slope), *self._last, None, *self._how, [of == 0, of == 1, False]
        return aten.convolution_backward(*given)[of]

    @property
    def _how(self) -> tuple[Any, ...]:
        return self.stride, self.padding, [1, 1], False, [0, 0], self.groups

    @property
    def _settings(self) -> tuple[int, int, int]:
        return self.groups, self.stride[0], self.padding[0]

    @property
    def _last(self) -> tuple[Tensor, Tensor]:
        return _channels_last(self.x), _channels_last(self.weight)

    @property
    def _as_product(self) -> bool:
        """Where there are many weights for few positions, or what all outputs see is not more
        than there are outputs."""
        if self.groups == 1:
            return False
        high, wide = products.size(self.x, self.weight, self.stride, self.padding)
        seen = self.weight[0].numel()
        few = MORE * _told(self.x.shape[0]) * high * wide <= seen
        return few or seen <= self.weight.shape[0] // self.groups

    @property
    def _strided(self) -> bool:
        return any(one > 1 for one in self.stride)

    @property
    def _deep(self) -> bool:
        return self.weight.shape[1] >= DEEP

    @property
    def _kernels(self) -> ModuleType | None:
        """Kernels of our own, if this layer can have them."""
        (down, right), (tall, broad) = self.stride, self.padding
        kernels = _written() if self.x.is_cuda else None
        if kernels is None or self.groups == 1 or down != right or tall != broad:
            return None
        exact = self.x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        known = self.x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        outputs = self.weight.shape[0] // self.groups
        fits = outputs % 16 == 0 and self.weight.shape[1] % 16 == 0
        return kernels if known and fits and not exact else None


@cache
def _written() -> ModuleType | None:
    """None where Triton is not installed, or too old a GPU."""
    try:
        from . import kernels
    except ImportError:
        return None
    return kernels if torch.cuda.get_device_capability() >= (8, 0) else None


def _channels_last(a: Tensor) -> Tensor:
    return a.contiguous(memory_format=torch.channels_last)


def _told(rows: int | torch.SymInt) -> int:
    """Of rows that may vary, how many they are while it is traced: what is chosen by their number
    then holds for others, too."""
    return rows if isinstance(rows, int) else rows.node.hint
