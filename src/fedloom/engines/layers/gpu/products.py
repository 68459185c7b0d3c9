"""Convolutions of many clients as batched matrix products.

The windows of all outputs are laid out, [clients, rows x positions, weights of an output], and
multiplied by the weights of all clients at once. Channels come last everywhere, so that memory is
read and written in runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

EVEN = 8  # numbers: 16 bytes of bf16


def size(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
) -> tuple[int, int]:
    """Height and width of the result."""
    return (
        (x.shape[2] + 2 * padding[0] - weight.shape[2]) // stride[0] + 1,
        (x.shape[3] + 2 * padding[1] - weight.shape[3]) // stride[1] + 1,
    )


def product(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Tensor:
    windows = _even(_flat(_windows(x, weight, stride, padding, groups), 4))
    result = torch.bmm(windows, _even(_by_group(weight, groups)).transpose(1, 2))
    result = result.unflatten(1, (x.shape[0], *size(x, weight, stride, padding)))
    return _image(result.permute(1, 2, 3, 0, 4))


def by_image(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Tensor:
    """The gradient by x."""
    windows = torch.bmm(_flat(_outputs(gradient, groups), 4), _by_group(weight, groups))
    return _folded(windows, x, weight, stride, padding, groups)


def by_weight(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Tensor:
    """The gradient by the weights. In TF32, a GPU sums contiguous numbers faster."""
    windows, outputs = _windows(x, weight, stride, padding, groups), _outputs(gradient, groups)
    if gradient.dtype == torch.float32:
        windows, outputs = windows.permute(0, 4, 5, 6, 1, 2, 3), outputs.permute(0, 4, 1, 2, 3)
        result = torch.bmm(_flat(outputs, 2), _even(_flat(windows, 4), 1).transpose(1, 2))
    else:
        result = torch.bmm(_flat(outputs, 4).transpose(1, 2), _even(_flat(windows, 4)))
    channels, *taps = weight.shape[1:]
    result = result[..., : weight[0].numel()]
    return result.reshape(-1, *taps, channels).permute(0, 3, 1, 2)


def _windows(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], groups: int
) -> Tensor:
    """The window of each output, [groups, rows, high, wide, tall, broad, channels]."""
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    windows = x.unfold(2, weight.shape[2], stride[0]).unfold(3, weight.shape[3], stride[1])
    return windows.unflatten(1, (groups, -1)).permute(1, 0, 3, 4, 5, 6, 2)


def _by_group(weight: Tensor, groups: int) -> Tensor:
    """[groups, outputs, weights of an output]."""
    return weight.permute(0, 2, 3, 1).reshape(groups, -1, weight[0].numel())


def _outputs(a: Tensor, groups: int) -> Tensor:
    """[groups, rows, high, wide, outputs]."""
    return a.unflatten(1, (groups, -1)).permute(1, 0, 3, 4, 2)


def _flat(a: Tensor, at: int) -> Tensor:
    """Matrices: the axes before `at` are the rows, the others the columns."""
    return a.flatten(at).flatten(1, at - 1)


def _even(a: Tensor, axis: int = 2) -> Tensor:
    """Pad an axis to a size for which matrix product kernels are fast."""
    more = -a.shape[axis] % EVEN
    return F.pad(a, (0, 0) * (2 - axis) + (0, more)) if more else a


def _image(a: Tensor) -> Tensor:
    """[rows, groups x channels, high, wide] of [rows, high, wide, groups, channels]."""
    return a.flatten(3).permute(0, 3, 1, 2)


def _folded(
    windows: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Add up windows at their positions: the transpose of _windows."""
    high, wide = size(x, weight, stride, padding)
    channels, tall, broad = weight.shape[1:]
    parts = windows.unflatten(2, (tall, broad, channels)).unflatten(1, (x.shape[0], high, wide))
    parts = parts.permute(4, 5, 1, 2, 3, 0, 6)  # [tall, broad, rows, high, wide, groups, channels]
    total: Tensor | None = None
    for i in range(tall):
        for j in range(broad):
            part = _spaced(parts[i, j], stride)
            top, left = i - padding[0], j - padding[1]
            bottom, right = x.shape[2] - part.shape[1] - top, x.shape[3] - part.shape[2] - left
            part = F.pad(part, (0, 0, 0, 0, left, right, top, bottom))
            total = part if total is None else total + part
    assert total is not None
    return _image(total)


def _spaced(a: Tensor, stride: Sequence[int]) -> Tensor:
    """Insert zeros between positions: [rows, high, wide, groups, channels]."""
    (down, right), (high, wide) = stride, a.shape[1:3]
    if down == right == 1:
        return a
    a = F.pad(a[:, :, None, :, None], (0, 0, 0, 0, 0, right - 1, 0, 0, 0, down - 1))
    a = a.flatten(3, 4).flatten(1, 2)
    return a[:, : down * (high - 1) + 1, : right * (wide - 1) + 1]
