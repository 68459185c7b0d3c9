"""Convolutions of many clients as batched matrix products.

What each output sees is laid out, [clients, rows x positions, weights of an output], and multiplied
by the weights of all clients at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def size(
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


def product(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Tensor:
    by_group = weight.reshape(groups, -1, weight[0].numel())
    found = torch.bmm(_windows(x, weight, stride, padding, groups), by_group.transpose(1, 2))
    found = found.unflatten(1, (x.shape[0], *size(x, weight, stride, padding)))
    return found.permute(1, 0, 4, 2, 3).flatten(1, 2)


def by_image(
    slope: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Tensor:
    """The derivative by x."""
    by_group = weight.reshape(groups, -1, weight[0].numel())
    seen = torch.bmm(_outputs(slope, groups), by_group)
    return _folded(seen, x, weight, stride, padding, groups)


def by_weight(
    slope: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Tensor:
    """The derivative by the weights."""
    seen = _windows(x, weight, stride, padding, groups)
    return torch.bmm(_outputs(slope, groups).transpose(1, 2), seen).reshape(weight.shape)


def _outputs(a: Tensor, groups: int) -> Tensor:
    """[groups, rows x positions, outputs]."""
    a = a.unflatten(1, (groups, -1)).permute(1, 0, 3, 4, 2)
    return a.reshape(groups, -1, a.shape[-1])


def _folded(
    seen: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Tensor:
    """What every window sees, added up where it lies: the transpose of _windows."""
    high, wide = size(x, weight, stride, padding)
    tall, broad = weight.shape[2:]
    parts = seen.unflatten(2, weight.shape[1:]).unflatten(1, (x.shape[0], high, wide))
    parts = parts.permute(1, 0, 4, 5, 6, 2, 3)  # [rows, groups, channels, tall, broad, high, wide]
    total = torch.zeros_like(x).unflatten(1, (groups, -1))
    for i in range(tall):
        for j in range(broad):
            part = _spaced(parts[:, :, :, i, j], stride)
            top, left = i - padding[0], j - padding[1]
            bottom, right = x.shape[2] - part.shape[3] - top, x.shape[3] - part.shape[4] - left
            total = total + F.pad(part, (left, right, top, bottom))
    return total.flatten(1, 2)


def _spaced(a: Tensor, stride: Sequence[int]) -> Tensor:
    """With zeros in between."""
    (down, right), (high, wide) = stride, a.shape[-2:]
    if down == right == 1:
        return a
    a = F.pad(a[..., None, :, None], (0, right - 1, 0, 0, 0, down - 1))
    a = a.flatten(-2).flatten(-3, -2)
    return a[..., : down * (high - 1) + 1, : right * (wide - 1) + 1]
