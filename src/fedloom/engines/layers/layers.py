"""Layers of many clients at once, and their derivatives: clients stay the second axis from layer to
layer, where a grouped convolution has them, and rows may vary in number. On a CPU, images have
their channels last in memory, with the clients before them: convolutions and pooling are several
times as fast so, and nothing is copied from layer to layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .cpu import last, sizes

aten = torch.ops.aten
own = torch.ops.fedloom_cpu


class How(NamedTuple):
    """Settings of a convolution. `on_cpu`: by an operation of our own."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    on_cpu: bool = False

    @property
    def as_args(self) -> tuple[Any, ...]:
        """As torch's own functions take them: not transposed, no padding of the result."""
        none = (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, False, none, self.groups

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.on_cpu:
            return own.convolution(x, weight, bias, *self[:4])
        return aten.convolution(x, weight, bias, *self.as_args)

    def backward(self, slope: Tensor, x: Tensor, weight: Tensor, of: int) -> Tensor:
        """The derivative by x (`of` 0) or weight (1)."""
        if self.on_cpu:
            return own.convolution_derivative(slope, x, weight, of, *self[:4])
        wanted = [of == 0, of == 1, False]
        return aten.convolution_backward(slope, x, weight, None, *self.as_args, wanted)[of]

    def times(self, clients: int) -> How:
        return self._replace(groups=self.groups * clients)


# Functions of torch.autograd, with their rules for vmap.


class Convolution(Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, how: How) -> Tensor:
        return how.forward(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.how = inputs[3]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by_x, by_weight = (
            ConvolutionBackward.apply(slope, x, weight, ctx.how, of) if needed else None
            for of, needed in enumerate(ctx.needs_input_grad[:2])
        )
        by_bias = slope.sum((0, *range(2, slope.ndim))) if ctx.needs_input_grad[2] else None
        return by_x, by_weight, by_bias, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: How
    ) -> tuple[Tensor, int]:
        count = info.batch_size
        if in_dims[1] is None and in_dims[2] is None:  # one model: its rows are all clients'
            found = Convolution.apply(_rows(x, in_dims[0], count, 0), weight, bias, how)
            return found.unflatten(0, (count, -1)), 0
        rows, weights = _rows(x, in_dims[0], count), _weights(weight, in_dims[1], count)
        each = None if bias is None else _weights(bias, in_dims[2], count)
        if how.on_cpu:
            found = Convolution.apply(rows, weights, each, how.times(count))
        else:
            found = Convolution.apply(rows, weights, None, how.times(count))
            if each is not None:
                found = found + each.reshape(-1, *[1] * (found.ndim - 2))
        return found.unflatten(1, (count, -1)), 1


class Product(Function):
    """Of one matrix and another, transposed: each row of one with each row of the other."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return own.product(a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        return (
            Product.apply(slope, b.mT) if ctx.needs_input_grad[0] else None,
            Product.apply(slope.mT, a.mT) if ctx.needs_input_grad[1] else None,
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        count = info.batch_size
        if in_dims[1] is None:  # one model: its rows are all clients'
            rows = _rows(a, in_dims[0], count, 0)
            return Product.apply(rows, b).unflatten(0, (count, -1)), 0
        each = zip((a, b), in_dims, strict=True)
        return Product.apply(*(_first(mine, axis, count) for mine, axis in each)), 0


class Last(Function):
    """A derivative, of which none is taken."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        raise NotImplementedError("second derivatives")


class ConvolutionBackward(Last):
    """The derivative by x or by the weights."""

    @staticmethod
    def forward(slope: Tensor, x: Tensor, weight: Tensor, how: How, of: int) -> Tensor:
        return how.backward(slope, x, weight, of)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, slope: Tensor, x: Tensor, weight: Tensor, how: How, of: int
    ) -> tuple[Tensor, int]:
        count = info.batch_size
        if of == 0 and in_dims[2] is None and None not in in_dims[:2]:
            both = (_rows(slope, in_dims[0], count, 0), _rows(x, in_dims[1], count, 0))
            found = ConvolutionBackward.apply(*both, weight, how, of)
            return found.unflatten(0, (count, -1)), 0
        slopes, rows = (_rows(a, at, count) for a, at in ((slope, in_dims[0]), (x, in_dims[1])))
        weights = _weights(weight, in_dims[2], count)
        found = ConvolutionBackward.apply(slopes, rows, weights, how.times(count), of)
        return found.unflatten(1 - of, (count, -1)), 1 - of


class Norm(Function):
    """Normalised groups of channels, their means and deviations: with clients along the channels,
    these are so many times as many groups."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, on_cpu: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if on_cpu:
            return tuple(own.norm(x, weight, bias, groups, eps))
        return aten.native_group_norm(x, weight, bias, *sizes(x), groups, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, _, ctx.groups, _, ctx.on_cpu = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, weight, *output[1:])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        found = NormBackward.apply(slope, *ctx.saved_tensors, ctx.groups, ctx.on_cpu)
        wanted = zip(found, ctx.needs_input_grad, strict=False)
        return (*(a if needed else None for a, needed in wanted), None, None, None)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        groups: int,
        eps: float,
        on_cpu: bool,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        count = info.batch_size
        both = (_weights(weight, in_dims[1], count), _weights(bias, in_dims[2], count))
        found = Norm.apply(_rows(x, in_dims[0], count), *both, count * groups, eps, on_cpu)
        return tuple(a.unflatten(1, (count, -1)) for a in found), (1, 1, 1)


class NormBackward(Last):
    @staticmethod
    def forward(
        slope: Tensor,
        x: Tensor,
        weight: Tensor,
        mean: Tensor,
        scale: Tensor,
        groups: int,
        on_cpu: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """By x, weight and bias, with channels as the last axis: torch's own derivative, compiled,
        has them first, and they are then put last."""
        if on_cpu:
            return tuple(own.norm_derivative(slope, x, weight, mean, scale, groups))
        rows, channels, positions = sizes(x)
        slope, x = slope.movedim(1, -1), x.movedim(1, -1)
        places, ones = tuple(range(1, x.ndim - 1)), [1] * (x.ndim - 2)

        def over(a: Tensor) -> Tensor:
            """Of groups, for their channels."""
            each = a[:, :, None].expand(rows, groups, channels // groups)
            return each.reshape(rows, *ones, channels)

        def of_groups(a: Tensor) -> Tensor:
            return (a * weight).unflatten(1, (groups, -1)).sum(2)

        count = channels // groups * positions
        with_x, alone = (a.sum(places) if places else a for a in (slope * x, slope))
        turn = (of_groups(alone) * mean - of_groups(with_x)) * scale**3 / count
        shift = -turn * mean - of_groups(alone) * scale / count
        by_x = slope * (over(scale) * weight) + x * over(turn) + over(shift)
        each_mean, each_scale = (over(a).reshape(rows, channels) for a in (mean, scale))
        by_weight = ((with_x - alone * each_mean) * each_scale).sum(0)
        return by_x.movedim(-1, 1), by_weight, alone.sum(0)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        slope: Tensor,
        x: Tensor,
        weight: Tensor,
        mean: Tensor,
        scale: Tensor,
        groups: int,
        on_cpu: bool,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        count = info.batch_size
        each = zip((slope, x, mean, scale), (*in_dims[:2], *in_dims[3:5]), strict=True)
        slope, x, mean, scale = (_rows(a, at, count) for a, at in each)
        own_weights = _weights(weight, in_dims[2], count)
        by_x, *others = NormBackward.apply(
            slope, x, own_weights, mean, scale, count * groups, on_cpu
        )
        parts = (by_x.unflatten(1, (count, -1)), *(a.unflatten(0, (count, -1)) for a in others))
        return parts, (1, 0, 0)


class Pool(Function):
    """The largest of each window, and where it is."""

    @staticmethod
    def forward(x: Tensor, how: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        return aten.max_pool2d_with_indices(x if x.is_cuda else last(x), *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], output[1])
        ctx.how = inputs[1]

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor | None) -> tuple[Tensor, None]:
        return PoolBackward.apply(slope, *ctx.saved_tensors, ctx.how), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, how: tuple[Any, ...]) -> Any:
        found = Pool.apply(_rows(x, in_dims[0], info.batch_size), how)
        return tuple(a.unflatten(1, (info.batch_size, -1)) for a in found), (1, 1)


class PoolBackward(Function):
    @staticmethod
    def forward(slope: Tensor, x: Tensor, at: Tensor, how: tuple[Any, ...]) -> Tensor:
        slope, x = (slope, x) if x.is_cuda else (last(slope), last(x))
        return aten.max_pool2d_with_indices_backward(slope, x, *how, at)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None]:
        (at,) = ctx.saved_tensors
        taken = slope.flatten(2).gather(2, at.flatten(2)).reshape(at.shape)
        return taken, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, slope: Tensor, x: Tensor, at: Tensor, how: Any) -> Any:
        each = zip((slope, x, at), in_dims[:3], strict=True)
        given = (_rows(a, dim, info.batch_size) for a, dim in each)
        return PoolBackward.apply(*given, how).unflatten(1, (info.batch_size, -1)), 1


def _first(a: Tensor, axis: int | None, clients: int) -> Tensor:
    """With clients along the first axis."""
    return a.expand(clients, *a.shape) if axis is None else a.movedim(axis, 0)


def _rows(a: Tensor, axis: int | None, clients: int, to: int = 1) -> Tensor:
    """[rows, clients x channels, ...], or (`to` 0) [clients x rows, channels, ...]."""
    return _first(a, axis, clients).movedim(0, to).flatten(to, to + 1)


def _weights(a: Tensor, axis: int | None, clients: int) -> Tensor:
    """[clients x outputs, ...]."""
    return _rows(a, axis, clients, 0)
