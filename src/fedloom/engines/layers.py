"""Layers of many clients at once, and their derivatives: clients stay the second axis from layer to
layer, where a grouped convolution has them, and rows may vary in number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

aten = torch.ops.aten
MANY = 8  # channels from which pooling is faster with these last


class How(NamedTuple):
    """Settings of a convolution. `opaque`: as an operation of our own."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    opaque: bool = False

    @property
    def as_args(self) -> tuple[Any, ...]:
        """As torch's own functions take them: not transposed, no padding of the result."""
        none = (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, False, none, self.groups

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.opaque:
            return torch.ops.fedloom.whole_convolution(x, weight, bias, *self[:4])
        return aten.convolution(x, weight, bias, *self.as_args)

    def backward(self, slope: Tensor, x: Tensor, weight: Tensor, of: int) -> Tensor:
        """The derivative by x (`of` 0) or weight (1)."""
        if self.opaque:
            return torch.ops.fedloom.whole_derivative(slope, x, weight, of, *self[:4])
        wanted = [of == 0, of == 1, False]
        return aten.convolution_backward(slope, x, weight, None, *self.as_args, wanted)[of]

    def times(self, clients: int) -> How:
        return self._replace(groups=self.groups * clients)


# On a CPU torch chooses how to convolve by the number of rows. Inside these operations it does so
# each time they are played.

OWN = torch.library.Library("fedloom", "FRAGMENT")
HOW = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups"
OWN.define(f"whole_convolution(Tensor x, Tensor weight, Tensor? bias, {HOW}) -> Tensor")
OWN.define(f"whole_derivative(Tensor slope, Tensor x, Tensor weight, int of, {HOW}) -> Tensor")


def _whole_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    return aten.convolution(x, weight, bias, *How(*how).as_args).contiguous()


def _whole_derivative(slope: Tensor, x: Tensor, weight: Tensor, of: int, *how: Any) -> Tensor:
    wanted = [of == 0, of == 1, False]
    given = slope, x, weight, None, *How(*how).as_args, wanted
    return aten.convolution_backward(*given)[of].contiguous()


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    """The shape of the one."""
    stride, padding, dilation, _ = how
    each = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    size = ((n + 2 * pad - gap * (k - 1) - 1) // step + 1 for n, k, step, pad, gap in each)
    return x.new_empty(x.shape[0], weight.shape[0], *size)


def _derived(slope: Tensor, x: Tensor, weight: Tensor, of: int, *how: Any) -> Tensor:
    """And of the other."""
    return (x, weight)[of].new_empty((x, weight)[of].shape)


OWN.impl("whole_convolution", _whole_convolution, "CPU")
OWN.impl("whole_derivative", _whole_derivative, "CPU")
torch.library.register_fake("fedloom::whole_convolution", _convolved, lib=OWN)
torch.library.register_fake("fedloom::whole_derivative", _derived, lib=OWN)


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
        found = Convolution.apply(rows, weights, None, how.times(count))
        if bias is not None:
            own = _weights(bias, in_dims[2], count)
            found = found + own.reshape(-1, *[1] * (found.ndim - 2))
        return found.unflatten(1, (count, -1)), 1


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
        x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        return aten.native_group_norm(x, weight, bias, *_sizes(x), groups, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, _, ctx.groups, _ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, weight, *output[1:])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        found = NormBackward.apply(slope, *ctx.saved_tensors, ctx.groups)
        wanted = zip(found, ctx.needs_input_grad, strict=False)
        return (*(a if needed else None for a, needed in wanted), None, None)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        groups: int,
        eps: float,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        count = info.batch_size
        own = (_weights(weight, in_dims[1], count), _weights(bias, in_dims[2], count))
        found = Norm.apply(_rows(x, in_dims[0], count), *own, count * groups, eps)
        return tuple(a.unflatten(1, (count, -1)) for a in found), (1, 1, 1)


class NormBackward(Last):
    @staticmethod
    def forward(
        slope: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, groups: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """By x, weight and bias, with channels as the last axis: torch's own derivative, compiled,
        has them first, and they are then put last."""
        rows, channels, positions = _sizes(x)
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
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        count = info.batch_size
        each = zip((slope, x, mean, scale), (*in_dims[:2], *in_dims[3:5]), strict=True)
        slope, x, mean, scale = (_rows(a, at, count) for a, at in each)
        own = _weights(weight, in_dims[2], count)
        by_x, *others = NormBackward.apply(slope, x, own, mean, scale, count * groups)
        parts = (by_x.unflatten(1, (count, -1)), *(a.unflatten(0, (count, -1)) for a in others))
        return parts, (1, 0, 0)


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """Rows, channels, and positions."""
    return x.shape[0], x.shape[1], x[0, 0].numel()


class Pool(Function):
    """The largest of each window, and where it is. `first`: clients stay the first axis, so that
    what follows adds up in the order of torch's own rule."""

    @staticmethod
    def forward(x: Tensor, how: tuple[Any, ...], first: bool) -> tuple[Tensor, Tensor]:
        if x.is_cuda or x.shape[1] < MANY:
            return aten.max_pool2d_with_indices(x, *how)
        # four times as fast on a CPU, copies included
        found = aten.max_pool2d_with_indices(x.contiguous(memory_format=torch.channels_last), *how)
        return found[0].contiguous(), found[1].contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], output[1])
        ctx.how = inputs[1:]

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor | None) -> tuple[Tensor, None, None]:
        return PoolBackward.apply(slope, *ctx.saved_tensors, *ctx.how), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, how: tuple[Any, ...], first: bool) -> Any:
        count, axis = info.batch_size, 0 if first else 1
        found = Pool.apply(_rows(x, in_dims[0], count, axis), how, first)
        return tuple(a.unflatten(axis, (count, -1)) for a in found), (axis, axis)


class PoolBackward(Function):
    @staticmethod
    def forward(slope: Tensor, x: Tensor, at: Tensor, how: tuple[Any, ...], first: bool) -> Tensor:
        return aten.max_pool2d_with_indices_backward(slope, x, *how, at)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None, None]:
        (at,) = ctx.saved_tensors
        taken = slope.flatten(2).gather(2, at.flatten(2)).reshape(at.shape)
        return taken, None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, slope: Tensor, x: Tensor, at: Tensor, how: Any, first: bool
    ) -> Any:
        count, axis = info.batch_size, 0 if first else 1
        each = zip((slope, x, at), in_dims[:3], strict=True)
        given = (_rows(a, dim, count, axis) for a, dim in each)
        return PoolBackward.apply(*given, how, first).unflatten(axis, (count, -1)), axis


def _rows(a: Tensor, axis: int | None, clients: int, to: int = 1) -> Tensor:
    """[rows, clients x channels, ...], or (`to` 0) [clients x rows, channels, ...]."""
    if axis is None:
        a, axis = a.expand(clients, *a.shape), 0
    return a.movedim(axis, to).flatten(to, to + 1)


def _weights(a: Tensor, axis: int | None, clients: int) -> Tensor:
    """[clients x outputs, ...]."""
    return _rows(a, axis, clients, 0)
