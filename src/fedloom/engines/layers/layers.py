"""Layers of many clients at once, with gradients, as `torch.autograd.Function`s.

Clients stay the second axis from layer to layer, beside the channels, where a grouped convolution
has them, and the number of rows may vary. On a CPU, images have their channels last in memory, with
the clients before them: convolutions and pooling are several times as fast so, and nothing is
copied from layer to layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .cpu import channels_last, sizes

aten = torch.ops.aten
cpu_ops = torch.ops.fedloom_cpu


class ConvolutionSettings(NamedTuple):
    """Settings of a convolution. `on_cpu`: use the operations of cpu.py."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    on_cpu: bool = False

    @property
    def as_args(self) -> tuple[Any, ...]:
        """Settings as torch's own functions take them: not transposed, no output padding."""
        none = (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, False, none, self.groups

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.on_cpu:
            return cpu_ops.convolution(x, weight, bias, *self[:4])
        return aten.convolution(x, weight, bias, *self.as_args)

    def backward(self, gradient: Tensor, x: Tensor, weight: Tensor, of: int) -> Tensor:
        """The gradient by x (`of` 0) or by the weights (1)."""
        if self.on_cpu:
            return cpu_ops.convolution_derivative(gradient, x, weight, of, *self[:4])
        needed = [of == 0, of == 1, False]
        return aten.convolution_backward(gradient, x, weight, None, *self.as_args, needed)[of]

    def times(self, clients: int) -> ConvolutionSettings:
        return self._replace(groups=self.groups * clients)


# Each with its rule for vmap


class Convolution(Function):
    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, settings: ConvolutionSettings
    ) -> Tensor:
        return settings.forward(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.settings = inputs[3]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by_x, by_weight = (
            ConvolutionGradient.apply(gradient, x, weight, ctx.settings, of) if needed else None
            for of, needed in enumerate(ctx.needs_input_grad[:2])
        )
        by_bias = gradient.sum((0, *range(2, gradient.ndim))) if ctx.needs_input_grad[2] else None
        return by_x, by_weight, by_bias, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        settings: ConvolutionSettings,
    ) -> tuple[Tensor, int]:
        count = info.batch_size
        if in_dims[1] is None and in_dims[2] is None:  # one model: clients' rows are one batch
            result = Convolution.apply(_rows(x, in_dims[0], count, 0), weight, bias, settings)
            return result.unflatten(0, (count, -1)), 0
        rows, weights = _rows(x, in_dims[0], count), _weights(weight, in_dims[1], count)
        biases = None if bias is None else _weights(bias, in_dims[2], count)
        if settings.on_cpu:
            result = Convolution.apply(rows, weights, biases, settings.times(count))
        else:
            result = Convolution.apply(rows, weights, None, settings.times(count))
            if biases is not None:
                result = result + biases.reshape(-1, *[1] * (result.ndim - 2))
        return result.unflatten(1, (count, -1)), 1


class MatrixProduct(Function):
    """a @ b.T: each row of `a` with each row of `b`."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return cpu_ops.product(a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        return (
            MatrixProduct.apply(gradient, b.mT) if ctx.needs_input_grad[0] else None,
            MatrixProduct.apply(gradient.mT, a.mT) if ctx.needs_input_grad[1] else None,
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        count = info.batch_size
        if in_dims[1] is None:  # one model for all clients: their rows are one batch
            rows = _rows(a, in_dims[0], count, 0)
            return MatrixProduct.apply(rows, b).unflatten(0, (count, -1)), 0
        matrices = zip((a, b), in_dims, strict=True)
        return MatrixProduct.apply(*(_first(matrix, axis, count) for matrix, axis in matrices)), 0


class NoSecondDerivative(Function):
    """A gradient that has no gradient itself."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        raise NotImplementedError("second derivatives")


class ConvolutionGradient(NoSecondDerivative):
    """The gradient by x or by the weights."""

    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, weight: Tensor, settings: ConvolutionSettings, of: int
    ) -> Tensor:
        return settings.backward(gradient, x, weight, of)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        settings: ConvolutionSettings,
        of: int,
    ) -> tuple[Tensor, int]:
        count = info.batch_size
        if of == 0 and in_dims[2] is None and None not in in_dims[:2]:
            both = (_rows(gradient, in_dims[0], count, 0), _rows(x, in_dims[1], count, 0))
            result = ConvolutionGradient.apply(*both, weight, settings, of)
            return result.unflatten(0, (count, -1)), 0
        gradients, rows = (
            _rows(a, at, count) for a, at in ((gradient, in_dims[0]), (x, in_dims[1]))
        )
        weights = _weights(weight, in_dims[2], count)
        result = ConvolutionGradient.apply(gradients, rows, weights, settings.times(count), of)
        return result.unflatten(1 - of, (count, -1)), 1 - of


class Norm(Function):
    """Group norms, their means and scales. Clients along the channels make as many times as many
    groups."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, on_cpu: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if on_cpu:
            return tuple(cpu_ops.norm(x, weight, bias, groups, eps))
        return aten.native_group_norm(x, weight, bias, *sizes(x), groups, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, _, ctx.groups, _, ctx.on_cpu = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, weight, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        result = NormGradient.apply(gradient, *ctx.saved_tensors, ctx.groups, ctx.on_cpu)
        wanted = zip(result, ctx.needs_input_grad, strict=False)
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
        result = Norm.apply(_rows(x, in_dims[0], count), *both, count * groups, eps, on_cpu)
        return tuple(a.unflatten(1, (count, -1)) for a in result), (1, 1, 1)


class NormGradient(NoSecondDerivative):
    @staticmethod
    def forward(
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        mean: Tensor,
        scale: Tensor,
        groups: int,
        on_cpu: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients by x, weight and bias, computed with channels as the last axis. torch's own
        gradient, once compiled, has them first, and then permutes."""
        if on_cpu:
            return tuple(cpu_ops.norm_derivative(gradient, x, weight, mean, scale, groups))
        rows, channels, positions = sizes(x)
        gradient, x = gradient.movedim(1, -1), x.movedim(1, -1)
        places, ones = tuple(range(1, x.ndim - 1)), [1] * (x.ndim - 2)

        def over(a: Tensor) -> Tensor:
            """Repeat numbers of groups for their channels."""
            by_channel = a[:, :, None].expand(rows, groups, channels // groups)
            return by_channel.reshape(rows, *ones, channels)

        def of_groups(a: Tensor) -> Tensor:
            return (a * weight).unflatten(1, (groups, -1)).sum(2)

        count = channels // groups * positions
        with_x, alone = (a.sum(places) if places else a for a in (gradient * x, gradient))
        turn = (of_groups(alone) * mean - of_groups(with_x)) * scale**3 / count
        shift = -turn * mean - of_groups(alone) * scale / count
        by_x = gradient * (over(scale) * weight) + x * over(turn) + over(shift)
        each_mean, each_scale = (over(a).reshape(rows, channels) for a in (mean, scale))
        by_weight = ((with_x - alone * each_mean) * each_scale).sum(0)
        return by_x.movedim(-1, 1), by_weight, alone.sum(0)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        mean: Tensor,
        scale: Tensor,
        groups: int,
        on_cpu: bool,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        count = info.batch_size
        axes = zip((gradient, x, mean, scale), (*in_dims[:2], *in_dims[3:5]), strict=True)
        gradient, x, mean, scale = (_rows(a, at, count) for a, at in axes)
        own_weights = _weights(weight, in_dims[2], count)
        by_x, *others = NormGradient.apply(
            gradient, x, own_weights, mean, scale, count * groups, on_cpu
        )
        parts = (by_x.unflatten(1, (count, -1)), *(a.unflatten(0, (count, -1)) for a in others))
        return parts, (1, 0, 0)


class MaxPool(Function):
    """Max pooling: the largest number of each window, and its index."""

    @staticmethod
    def forward(x: Tensor, settings: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        return aten.max_pool2d_with_indices(x if x.is_cuda else channels_last(x), *settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], output[1])
        ctx.settings = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor, None]:
        return MaxPoolBackward.apply(gradient, *ctx.saved_tensors, ctx.settings), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, settings: tuple[Any, ...]) -> Any:
        result = MaxPool.apply(_rows(x, in_dims[0], info.batch_size), settings)
        return tuple(a.unflatten(1, (info.batch_size, -1)) for a in result), (1, 1)


class MaxPoolBackward(Function):
    @staticmethod
    def forward(gradient: Tensor, x: Tensor, at: Tensor, settings: tuple[Any, ...]) -> Tensor:
        gradient, x = (gradient, x) if x.is_cuda else (channels_last(gradient), channels_last(x))
        return aten.max_pool2d_with_indices_backward(gradient, x, *settings, at)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (at,) = ctx.saved_tensors
        taken = gradient.flatten(2).gather(2, at.flatten(2)).reshape(at.shape)
        return taken, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, gradient: Tensor, x: Tensor, at: Tensor, settings: Any
    ) -> Any:
        tensors = zip((gradient, x, at), in_dims[:3], strict=True)
        args = (_rows(a, dim, info.batch_size) for a, dim in tensors)
        return MaxPoolBackward.apply(*args, settings).unflatten(1, (info.batch_size, -1)), 1


def _first(a: Tensor, axis: int | None, clients: int) -> Tensor:
    """The tensor with clients along the first axis."""
    return a.expand(clients, *a.shape) if axis is None else a.movedim(axis, 0)


def _rows(a: Tensor, axis: int | None, clients: int, to: int = 1) -> Tensor:
    """[rows, clients x channels, ...], or (`to` 0) [clients x rows, channels, ...]."""
    return _first(a, axis, clients).movedim(0, to).flatten(to, to + 1)


def _weights(a: Tensor, axis: int | None, clients: int) -> Tensor:
    """[clients x outputs, ...]."""
    return _rows(a, axis, clients, 0)
