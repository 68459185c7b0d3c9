"""BatchNorm of many clients at once, on a CPU: by rows that count, with gradients.

Tensors are [clients, rows, channels, positions], in whichever order they are in memory: results
keep it. Where all rows count, torch's own kernel is used: it sees clients as further channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .cpu import LIBRARY
from .layers import NoSecondDerivative

aten = torch.ops.aten
cpu_ops = torch.ops.fedloom_cpu
OVER = (1, 3)  # rows and positions
GIVEN = "Tensor x, Tensor counts, Tensor mean, Tensor var, Tensor weight, Tensor bias, float eps"
LIBRARY.define(f"batch_norm({GIVEN}) -> Tensor[]")
LIBRARY.define(
    "batch_norm_derivative(Tensor gradient, Tensor x, Tensor counts, Tensor running, Tensor mean,"
    " Tensor count, Tensor scale, Tensor weight) -> Tensor[]"
)


class BatchNorm(Function):
    """What is normalised; mean, unbiased variance, and how many numbers of a channel they are of
    (with less than two, the running ones were used); and the scale before the weights."""

    @staticmethod
    def forward(
        x: Tensor,
        counts: Tensor,
        mean: Tensor,
        var: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
    ) -> tuple[Tensor, ...]:
        return tuple(cpu_ops.batch_norm(x, counts, mean, var, weight, bias, eps))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, counts, running, _, weight, _, _ = inputs
        _, mean, _, count, scale = output
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, counts, running, mean, count, scale, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        by_x, by_weight, by_bias = BatchNormGradient.apply(gradient, *ctx.saved_tensors)
        return by_x, None, None, None, by_weight, by_bias, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _of_all(BatchNorm, info.batch_size, in_dims, args)


class BatchNormGradient(NoSecondDerivative):
    """The gradients by x, weight and bias."""

    @staticmethod
    def forward(*args: Tensor) -> tuple[Tensor, ...]:
        return tuple(cpu_ops.batch_norm_derivative(*args))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _of_all(BatchNormGradient, info.batch_size, in_dims, args)


def _of_all(f: Any, count: int, in_dims: Any, args: Any) -> Any:
    """One more axis of clients is part of the first."""
    each = [
        a if not isinstance(a, Tensor) else _first(a, axis, count).flatten(0, 1)
        for a, axis in zip(args, in_dims, strict=True)
    ]
    results = tuple(a.unflatten(0, (count, -1)) for a in f.apply(*each))
    return results, (0,) * len(results)


def _first(a: Tensor, axis: int | None, clients: int) -> Tensor:
    return a.expand(clients, *a.shape) if axis is None else a.movedim(axis, 0)


# The operations


def _batch_norm(
    x: Tensor,
    counts: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
) -> list[Tensor]:
    if _suits_torch(x, counts):
        (rows,) = _as_images(x)
        again, var = weight.new_zeros(2, weight.numel()).unbind()  # it moves these to the batch's
        given = weight.reshape(-1), bias.reshape(-1), again, var
        y, mean, scale = aten.native_batch_norm(rows, *given, True, 1.0, eps)
        mean, var, scale = (a.view(weight.shape) for a in (mean, var, scale))
        count = weight.new_full((len(weight),), x.shape[1] * x.shape[3])
        return [_as_clients(y, x), mean, var, count, scale]
    count = counts.sum(1).to(weight.dtype) * x.shape[3]
    result, here, number = torch.empty_like(x), counts[:, :, None, None], count[:, None]
    mean = torch.where(here, x, 0.0).sum(OVER) / number.clamp(min=1)
    torch.sub(x, _wide(mean), out=result)
    inside = torch.where(here, result, 0.0)
    squares = torch.linalg.vector_norm(inside, dim=OVER).square_()
    scale, enough = (squares / number.clamp(min=1) + eps).rsqrt_(), number > 1
    if not bool(enough.all()):
        scale = torch.where(enough, scale, (running_var + eps).rsqrt())
        torch.sub(x, _wide(torch.where(enough, mean, running_mean)), out=result)
    torch.addcmul(_wide(bias), result, _wide(scale * weight), out=result)
    return [result, mean, squares / (number - 1).clamp(min=1), count, scale]


def _batch_norm_derivative(
    gradient: Tensor,
    x: Tensor,
    counts: Tensor,
    running: Tensor,
    mean: Tensor,
    count: Tensor,
    scale: Tensor,
    weight: Tensor,
) -> list[Tensor]:
    if _suits_torch(x, counts):
        rows, by_result = _as_images(x, gradient)
        weights, *others = (a.reshape(-1) for a in (weight, mean, scale))
        by_x, by_weight, by_bias = aten.native_batch_norm_backward(
            by_result, rows, weights, None, None, *others, True, 0.0, [True] * 3
        )
        return [_as_clients(by_x, x), by_weight.view(weight.shape), by_bias.view(weight.shape)]
    enough, result = count[:, None] > 1, torch.empty_like(x)
    torch.sub(x, _wide(torch.where(enough, mean, running)), out=result)
    by_bias, by_weight = gradient.sum(OVER), (gradient * result).sum(OVER) * scale
    # rows that count also move the mean and the variance
    share = 1 / count.clamp(min=1)[:, None]
    torch.addcmul(_wide(by_bias * share), result, _wide(by_weight * share * scale), out=result)
    result.mul_((counts & enough).to(weight.dtype)[:, :, None, None])
    torch.sub(gradient, result, out=result).mul_(_wide(scale * weight))
    return [result, by_weight, by_bias]


def _wide(a: Tensor) -> Tensor:
    """Numbers of clients and channels, for all rows and positions."""
    return a[:, None, :, None]


def _suits_torch(x: Tensor, counts: Tensor) -> bool:
    """Whether torch's kernel is used: for images and series, where all rows count."""
    return x.shape[3] > 1 and bool(counts.all())


def _as_images(*tensors: Tensor) -> list[Tensor]:
    """[rows, clients x channels, positions, 1], all contiguous or all with channels last in memory,
    as the first. (torch's kernel was seen to be wrong for a mixture.)"""
    images = [a.movedim(0, 1).flatten(1, 2).unsqueeze(-1) for a in tensors]
    form = torch.contiguous_format if images[0].is_contiguous() else torch.channels_last
    return [a.contiguous(memory_format=form) for a in images]


def _as_clients(images: Tensor, x: Tensor) -> Tensor:
    """The inverse of `_as_images`, in the memory order of x."""
    clients = images.squeeze(-1).unflatten(1, (x.shape[0], x.shape[2])).movedim(1, 0)
    strides = zip(clients.stride(), x.stride(), x.shape, strict=True)
    if all(a == b for a, b, size in strides if size > 1):
        return clients.as_strided(x.shape, x.stride())
    return torch.empty_like(x).copy_(clients)


def _fake_batch_norm(
    x: Tensor, counts: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> list[Tensor]:
    a, b, c = (weight.new_empty(weight.shape) for _ in range(3))
    return [torch.empty_like(x), a, b, weight.new_empty(weight.shape[:1]), c]


def _fake_batch_norm_derivative(gradient: Tensor, x: Tensor, *others: Tensor) -> list[Tensor]:
    weight = others[-1]
    return [torch.empty_like(x), *(weight.new_empty(weight.shape) for _ in range(2))]


LIBRARY.impl("batch_norm", _batch_norm, "CPU")
LIBRARY.impl("batch_norm_derivative", _batch_norm_derivative, "CPU")
torch.library.register_fake("fedloom_cpu::batch_norm", _fake_batch_norm, lib=LIBRARY)
torch.library.register_fake(
    "fedloom_cpu::batch_norm_derivative", _fake_batch_norm_derivative, lib=LIBRARY
)
