"""Convolutions of many clients at once, on a GPU.

vmap makes one grouped convolution out of those of a chunk's clients. cuDNN runs it near the speed
of a plain one where channels come last and images are not too small; where a layer has more weights
than positions to use them at (the last stages of a ResNet), batched matrix products are faster.
Both were measured on an H200: benchmarks/RESULTS.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
FEW = 16  # channels below which the order of axes does not matter
MORE = 4  # times as many weights of an output as positions: products are faster


def of_clients(device: torch.device) -> AbstractContextManager[object]:
    """Where clients' local work is done: with convolutions that suit many clients at once."""
    return Convolutions() if device.type == "cuda" else nullcontext()


class Convolutions(TorchDispatchMode):
    """Runs convolutions of images in another way; everything else as it is."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is aten.convolution.default and _images(args[0], args[1], args[6], args[5]):
            if _few_positions(args[0], args[1], args[3], args[4], args[8]):
                x, weight, bias, stride, padding = args[:5]
                return _product(x, weight, bias, stride, padding, args[8])
            return _as_usual(func(*(_channels_last(a) for a in args[:2]), *args[2:]))
        if func is aten.convolution_backward.default:
            slope, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = args
            if _images(x, weight, transposed, dilation):
                if _few_positions(x, weight, stride, padding, groups):
                    return _product_backward(slope, x, weight, stride, padding, groups, wanted)
                found = func(*(_channels_last(a) for a in args[:3]), *args[3:])
                return tuple(None if a is None else _as_usual(a) for a in found)
        return func(*args, **(kwargs or {}))


def _images(x: Tensor, weight: Tensor, transposed: bool, dilation: Sequence[int]) -> bool:
    plain = not transposed and all(one == 1 for one in dilation)
    return plain and x.ndim == 4 and weight.shape[1] >= FEW


def _channels_last(a: Tensor) -> Tensor:
    return a.contiguous(memory_format=torch.channels_last)


def _as_usual(a: Tensor) -> Tensor:
    """vmap knows no other order of axes."""
    return a.contiguous()


def _few_positions(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], groups: int
) -> bool:
    high, wide = _size(x, weight, stride, padding)
    return groups > 1 and MORE * x.shape[0] * high * wide <= weight[0].numel()


def _size(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
) -> tuple[int, int]:
    """Height and width of the result."""
    return (
        (x.shape[2] + 2 * padding[0] - weight.shape[2]) // stride[0] + 1,
        (x.shape[3] + 2 * padding[1] - weight.shape[3]) // stride[1] + 1,
    )


def _windows(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], groups: int
) -> Tensor:
    """What each output sees, [groups, rows x positions, weights of an output]."""
    rows = x.unflatten(1, (groups, -1))
    rows = F.pad(rows, (padding[1], padding[1], padding[0], padding[0]))
    seen = rows.unfold(3, weight.shape[2], stride[0]).unfold(4, weight.shape[3], stride[1])
    return seen.permute(1, 0, 3, 4, 2, 5, 6).reshape(groups, -1, weight[0].numel())


def _product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Tensor:
    by_group = weight.reshape(groups, -1, weight[0].numel())
    found = torch.bmm(_windows(x, weight, stride, padding, groups), by_group.transpose(1, 2))
    found = found.unflatten(1, (x.shape[0], *_size(x, weight, stride, padding)))
    found = found.permute(1, 0, 4, 2, 3).flatten(1, 2)
    return found if bias is None else found + bias[:, None, None]


def _product_backward(
    slope: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Derivatives by x, weight and bias, those that are wanted."""
    down = slope.unflatten(1, (groups, -1)).permute(1, 0, 3, 4, 2)
    down = down.reshape(groups, -1, down.shape[-1])  # [groups, rows x positions, outputs]
    by_x = by_weight = by_bias = None
    if wanted[0]:
        by_group = weight.reshape(groups, -1, weight[0].numel())
        by_x = _folded(torch.bmm(down, by_group), x, weight, stride, padding, groups)
    if wanted[1]:
        seen = _windows(x, weight, stride, padding, groups)
        by_weight = torch.bmm(down.transpose(1, 2), seen).reshape(weight.shape)
    if wanted[2]:
        by_bias = slope.sum((0, 2, 3))
    return by_x, by_weight, by_bias


def _folded(
    seen: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Tensor:
    """What every window sees, added up where it lies: the transpose of _windows."""
    high, wide = _size(x, weight, stride, padding)
    tall, broad = weight.shape[2:]
    parts = seen.unflatten(2, weight.shape[1:]).unflatten(1, (x.shape[0], high, wide))
    parts = parts.permute(1, 0, 4, 5, 6, 2, 3)  # [rows, groups, channels, tall, broad, high, wide]
    size = (x.shape[2] + 2 * padding[0], x.shape[3] + 2 * padding[1])
    total = x.new_zeros(x.shape[0], groups, weight.shape[1], *size)
    for i in range(tall):
        for j in range(broad):
            total[
                ...,
                i : i + stride[0] * (high - 1) + 1 : stride[0],
                j : j + stride[1] * (wide - 1) + 1 : stride[1],
            ] += parts[:, :, :, i, j]
    inner = total[..., padding[0] : size[0] - padding[0], padding[1] : size[1] - padding[1]]
    return inner.flatten(1, 2)
