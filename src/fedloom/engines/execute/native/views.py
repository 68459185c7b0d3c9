"""Views of arrays: the same memory with another shape and strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .arrays import NONE, ONE, Array, Sizes, Unsupported

VIEWS = {"permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice", "select"} | {
    "alias",
    "detach",
    "lift_fresh_copy",
    "lift_fresh",
}
RESHAPED = {"view", "_unsafe_view", "reshape"}


def viewed(name: str, a: Array, rest: Sequence[Any], shape: Sizes) -> Array:
    """The view of an array by an operation. `rest`: its other arguments; `shape`: of the result."""
    axes = len(a.shape)
    if name in ("permute", "transpose", "t"):
        order = [d % axes for d in rest[0]] if name == "permute" else list(range(axes))
        if name != "permute" and axes > 1:
            d, e = (0, 1) if name == "t" else (rest[0] % axes, rest[1] % axes)
            order[d], order[e] = e, d
        return a.axes(order)
    if name == "unsqueeze":
        d = rest[0] % (axes + 1)
        return replace(a, shape=shape, strides=(*a.strides[:d], NONE, *a.strides[d:]))
    if name == "squeeze":
        axes_given = rest[0] if rest else range(axes)
        removed = {d % axes for d in ([axes_given] if isinstance(axes_given, int) else axes_given)}
        return a.axes([d for d in range(axes) if d not in removed or a.shape[d] != ONE])
    if name == "expand":
        return replace(a, shape=shape, strides=a.along(shape))
    if name == "slice":
        return _slice(a, [*rest, *(0, None, None, 1)[len(rest) :]], shape)
    if name == "select":
        d, at = rest[0] % axes, rest[1]
        return _from(a, d, at, a.shape).axes([e for e in range(axes) if e != d])
    return a


def _slice(a: Array, args: Sequence[Any], shape: Sizes) -> Array:
    d, start, step = args[0] % len(a.shape), args[1] or 0, args[3]
    if step != 1:
        raise Unsupported("every other one")
    return a if shape == a.shape else _from(a, d, start, shape)


def _from(a: Array, axis: int, start: Any, shape: Sizes) -> Array:
    if a.shape[axis].rows or not isinstance(start, int):
        raise Unsupported("some of the rows")
    return a.part(axis, start % max(a.shape[axis].each, 1), shape)
