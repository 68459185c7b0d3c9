"""Triton kernels for the grouped convolutions of many clients.

cuDNN has no kernel for many of these grouped convolutions, and computes their groups one by one: a
gradient of a ResNet18 of fifty clients takes 3,800 launches. These kernels compute all groups in
one launch each. Channels come last: images are [rows, height, width, groups x channels].
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["rows", "high", "wide", "out_high", "out_wide", "groups", "tiles"])
def _gather(
    image,
    weight,
    out,
    rows,
    high,
    wide,
    out_high,
    out_wide,
    depth,
    width,
    groups,
    tiles,
    by_group,
    by_tap,
    by_output,
    TALL: tl.constexpr,
    BROAD: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BACK: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """A convolution, or (BACK) its gradient by the image, as a convolution of the gradient: every
    position of the result sums up `depth` channels of the image at each tap, times weights. With a
    stride, positions of a gradient that the same taps reach are computed together."""
    over = tl.cdiv(width, BN)
    group = tl.program_id(0) // (tiles * over)
    down = 0
    right = 0
    first_tall = 0
    first_broad = 0
    taps_tall = TALL
    taps_broad = BROAD
    top = -PAD
    left = -PAD
    count_high = out_high
    count_wide = out_wide
    if BACK:
        place = group % (STRIDE * STRIDE)
        group = group // (STRIDE * STRIDE)
        down = place // STRIDE
        right = place % STRIDE
        first_tall = (down + PAD) % STRIDE
        first_broad = (right + PAD) % STRIDE
        taps_tall = (TALL - first_tall + STRIDE - 1) // STRIDE
        taps_broad = (BROAD - first_broad + STRIDE - 1) // STRIDE
        top = (down + PAD - first_tall) // STRIDE
        left = (right + PAD - first_broad) // STRIDE
        count_high = (out_high - down + STRIDE - 1) // STRIDE
        count_wide = (out_wide - right + STRIDE - 1) // STRIDE
    group = group.to(tl.int64)  # offsets may exceed 32 bits
    at = tl.program_id(0) // over % tiles * BM + tl.arange(0, BM)
    x = at % count_wide
    y = (at // count_wide) % count_high
    row = (at // (count_wide * count_high)).to(tl.int64)
    inside = row < rows
    if BACK:
        to_y = y * STRIDE + down
        to_x = x * STRIDE + right
        from_y = y + top
        from_x = x + left
    else:
        to_y = y
        to_x = x
        from_y = y * STRIDE + top
        from_x = x * STRIDE + left
    n = tl.program_id(0) % over * BN + tl.arange(0, BN)
    c = tl.arange(0, BK)
    steps = depth // BK
    image += group * depth
    weight += group * by_group + n[None, :] * by_output + c[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, taps_tall * taps_broad * steps):
        tap = k // steps
        i = tap // taps_broad
        j = tap % taps_broad
        if BACK:
            sy = from_y - i
            sx = from_x - j
            number = (first_tall + i * STRIDE) * BROAD + first_broad + j * STRIDE
        else:
            sy = from_y + i
            sx = from_x + j
            number = i * BROAD + j
        start = (k % steps) * BK
        seen = inside & (sy >= 0) & (sy < high) & (sx >= 0) & (sx < wide)
        pixel = (row * high + sy) * wide + sx
        a = tl.load(
            image + pixel[:, None] * (groups * depth) + start + c[None, :],
            mask=seen[:, None],
            other=0.0,
        )
        b = tl.load(weight + number * by_tap + start, mask=(n < width)[None, :], other=0.0)
        total = tl.dot(a, b, total)
    pixel = (row * out_high + to_y) * out_wide + to_x
    tl.store(
        out + pixel[:, None] * (groups * width) + group * width + n[None, :],
        total.to(out.dtype.element_ty),
        mask=inside[:, None] & (n < width)[None, :],
    )


@triton.jit(do_not_specialize=["rows", "high", "wide", "out_high", "out_wide", "groups"])
def _by_weight(
    gradient,
    image,
    out,
    rows,
    high,
    wide,
    out_high,
    out_wide,
    depth,
    width,
    groups,
    BROAD: tl.constexpr,
    TAPS: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
):
    """The gradient by the weights: for every tap, the sum of gradient times image."""
    across = tl.cdiv(depth, BC)
    over = tl.cdiv(width, BN)
    number = tl.program_id(0)
    tap = number % TAPS
    c = number // TAPS % across * BC + tl.arange(0, BC)
    n = number // (TAPS * across) % over * BN + tl.arange(0, BN)
    group = (number // (TAPS * across * over)).to(tl.int64)
    i = tap // BROAD
    j = tap % BROAD
    gradient += group * width + n[None, :]
    image += group * depth + c[None, :]
    places = rows * out_high * out_wide
    total = tl.zeros((BN, BC), tl.float32)
    for k in range(0, places, BK):
        at = k + tl.arange(0, BK)
        sx = (at % out_wide) * STRIDE - PAD + j
        sy = ((at // out_wide) % out_high) * STRIDE - PAD + i
        row = (at // (out_wide * out_high)).to(tl.int64)
        inside = at < places
        seen = inside & (sy >= 0) & (sy < high) & (sx >= 0) & (sx < wide)
        pixel = (row * high + sy) * wide + sx
        a = tl.load(
            gradient + at.to(tl.int64)[:, None] * (groups * width),
            mask=inside[:, None] & (n < width)[None, :],
            other=0.0,
        )
        b = tl.load(
            image + pixel[:, None] * (groups * depth),
            mask=seen[:, None] & (c < depth)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(a), b, total)
    tl.store(
        out + ((group * width + n[:, None]) * TAPS + tap) * depth + c[None, :],
        total.to(out.dtype.element_ty),
        mask=(n < width)[:, None] & (c < depth)[None, :],
    )


# The kernels as operations of torch


@torch.library.custom_op("fedloom::convolution", mutates_args=())
def forward(x: Tensor, weight: Tensor, groups: int, stride: int, padding: int) -> Tensor:
    """weight: [groups x outputs, channels, tall, broad], as torch has it."""
    x, weight = _last(x), _last(weight)
    out = _forward_out(x, weight, groups, stride, padding)
    channels, tall, broad = weight.shape[1:]
    by_output, by_tap = tall * broad * channels, channels
    settings = tall, broad, stride, padding, False
    return _gathered(x, weight, out, groups, by_output, by_tap, settings)


@torch.library.custom_op("fedloom::convolution_by_image", mutates_args=())
def by_image(
    gradient: Tensor, weight: Tensor, high: int, wide: int, groups: int, stride: int, padding: int
) -> Tensor:
    """weight: [groups, tall, broad, channels of the image, outputs]."""
    gradient, weight = _last(gradient), weight.contiguous()
    out = _by_image_out(gradient, weight, high, wide, groups, stride, padding)
    tall, broad, channels, outputs = weight.shape[1:]
    by_output, by_tap = outputs, channels * outputs
    settings = tall, broad, stride, padding, True
    return _gathered(gradient, weight, out, groups, by_output, by_tap, settings)


@torch.library.custom_op("fedloom::convolution_by_weight", mutates_args=())
def by_weight(
    gradient: Tensor, x: Tensor, tall: int, broad: int, groups: int, stride: int, padding: int
) -> Tensor:
    gradient, x = _last(gradient), _last(x)
    out = _by_weight_out(gradient, x, tall, broad, groups, stride, padding)
    width, depth = gradient.shape[1] // groups, out.shape[1]
    bn, bc = (min(128, triton.next_power_of_2(n)) for n in (width, depth))
    programs = tall * broad * triton.cdiv(depth, bc) * triton.cdiv(width, bn) * groups
    with torch.cuda.device_of(x):
        _by_weight[(programs,)](
            gradient, x, out, x.shape[0], *x.shape[2:], *gradient.shape[2:], depth, width, groups,
            BROAD=broad, TAPS=tall * broad, STRIDE=stride, PAD=padding,
            BN=bn, BC=bc, BK=_deep(x), num_warps=8, num_stages=4,
        )  # fmt: skip
    return out


@forward.register_fake
def _forward_out(x: Tensor, weight: Tensor, groups: int, stride: int, padding: int) -> Tensor:
    high, wide = (
        (x.shape[axis] + 2 * padding - weight.shape[axis]) // stride + 1 for axis in (2, 3)
    )
    return _image(x, x.shape[0], high, wide, weight.shape[0])


@by_image.register_fake
def _by_image_out(
    gradient: Tensor, weight: Tensor, high: int, wide: int, groups: int, stride: int, padding: int
) -> Tensor:
    return _image(gradient, gradient.shape[0], high, wide, groups * weight.shape[3])


@by_weight.register_fake
def _by_weight_out(
    gradient: Tensor, x: Tensor, tall: int, broad: int, groups: int, stride: int, padding: int
) -> Tensor:
    return _image(x, gradient.shape[1], tall, broad, x.shape[1] // groups)


def _last(a: Tensor) -> Tensor:
    """The tensor with channels last, as it nearly always is already."""
    return a.contiguous(memory_format=torch.channels_last)


def _image(like: Tensor, rows: int, high: int, wide: int, channels: int) -> Tensor:
    """An empty image with channels last."""
    return like.new_empty(rows, high, wide, channels).permute(0, 3, 1, 2)


def _gathered(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    groups: int,
    by_output: int,
    by_tap: int,
    settings: tuple[int, int, int, int, bool],
) -> Tensor:
    """Launch the kernel. `by_output`, `by_tap`: the strides of the weights."""
    tall, broad, stride, padding, back = settings
    depth, width = x.shape[1] // groups, out.shape[1] // groups
    step = stride if back else 1
    places = x.shape[0] * triton.cdiv(out.shape[2], step) * triton.cdiv(out.shape[3], step)
    tiles, bn = triton.cdiv(places, 128), min(_broad(x.device), triton.next_power_of_2(width))
    with torch.cuda.device_of(x):
        _gather[(triton.cdiv(width, bn) * tiles * groups * step * step,)](
            x, weight, out, x.shape[0], *x.shape[2:], *out.shape[2:], depth, width, groups, tiles,
            tall * broad * width * depth, by_tap, by_output,
            TALL=tall, BROAD=broad, STRIDE=stride, PAD=padding, BACK=back,
            BM=128, BN=bn, BK=min(_deep(x), depth & -depth),
            num_warps=8 if bn > 128 else 4, num_stages=3,
        )  # fmt: skip
    return out


@cache
def _broad(device: torch.device) -> int:
    """The outputs of a tile: more are faster, if three such tiles fit into shared memory."""
    known = torch.cuda.get_device_properties(device)
    room: int = known.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return 256 if room >= 3 * (128 + 256) * 128 else 128


def _deep(a: Tensor) -> int:
    """The channels, or positions, of a tile: 128 bytes."""
    return 128 // a.element_size()
