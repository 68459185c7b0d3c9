"""Arrays of one client in C: a pointer, a shape and strides.

Sizes are numbers, or multiples of `n`, the client's number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import SymInt, fx


class Unsupported(Exception):
    """There is no rule for an operation; such work is declined."""


class Size(NamedTuple):
    """A size: `each`, or (`rows`) `each` times the number of rows."""

    each: int
    rows: bool = False

    def __mul__(self, other: Any) -> Size:
        if self.rows and other.rows:
            raise Unsupported("numbers for pairs of rows")
        return Size(self.each * other.each, self.rows or other.rows)

    def __str__(self) -> str:
        if not self.rows:
            return str(self.each)
        return "n" if self.each == 1 else f"{self.each} * n"


ONE, NONE = Size(1), Size(0)
Sizes = tuple[Size, ...]


def size_of(n: Any) -> Size:
    """The size of a traced axis."""
    if not isinstance(n, SymInt):
        return Size(int(n))
    factor, rest = n.node.expr.as_coeff_Mul()
    if rest.is_number:
        return Size(int(factor * rest))
    if not rest.is_Symbol:
        raise Unsupported(f"sizes like {n}")
    return Size(int(factor), True)


def shape_of(node: fx.Node) -> Sizes:
    return tuple(size_of(n) for n in node.meta["val"].shape)


def numel(shape: Sizes) -> Size:
    return math.prod(shape, start=ONE)


def contiguous_strides(shape: Sizes) -> Sizes:
    """The strides of an array whose last axis is contiguous."""
    strides = [ONE] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return tuple(strides)


@dataclass(frozen=True)
class Array:
    """An array. `name`: the C expression of its pointer; a constant has a `value` instead."""

    name: str
    kind: torch.dtype
    shape: Sizes
    strides: Sizes
    offset: Size = NONE
    value: Any = None

    @property
    def at(self) -> str:
        return self.name if self.offset == NONE else f"{self.name} + {self.offset}"

    @property
    def transposed(self) -> Array:
        return replace(self, shape=self.shape[::-1], strides=self.strides[::-1])

    @property
    def dense(self) -> bool:
        """Whether it fills its memory, in some order of its axes."""
        if self.value is not None:
            return False
        shape = tuple(self.shape[d] for d in outer_first(self.strides))
        strides = tuple(self.strides[d] for d in outer_first(self.strides))
        axes = zip(shape, strides, contiguous_strides(shape), strict=True)
        return all(size == ONE or stride == contiguous for size, stride, contiguous in axes)

    def along(self, shape: Sizes) -> Sizes:
        """The strides when it is broadcast to a shape."""
        axes = zip(self.shape, self.strides, strict=True)
        strides = [NONE if size == ONE else stride for size, stride in axes]
        return (*[NONE] * (len(shape) - len(strides)), *strides)

    def axes(self, order: Sequence[int]) -> Array:
        return replace(
            self,
            shape=tuple(self.shape[d] for d in order),
            strides=tuple(self.strides[d] for d in order),
        )

    def part(self, axis: int, start: int, shape: Sizes) -> Array:
        """The slice of this shape that begins at `start`."""
        offset = Size(start) * self.strides[axis]
        if NONE not in (offset, self.offset) and offset.rows != self.offset.rows:
            raise Unsupported("such offsets")
        both = Size(offset.each + self.offset.each, offset.rows or self.offset.rows)
        return replace(self, shape=shape, offset=both)


def outer_first(strides: Sizes) -> list[int]:
    """The axes from the largest stride to the smallest; the sort is stable."""
    return sorted(range(len(strides)), key=lambda d: (not strides[d].rows, -strides[d].each))


def loop_axes(shape: Sizes, operands: Sequence[Sizes], by: Sizes) -> tuple[Sizes, list[Sizes]]:
    """The axes to loop over, outermost first (by the strides `by`), and each operand's strides
    there. Axes that are contiguous for all operands are merged."""
    sizes: list[Size] = []
    strides: list[list[Size]] = [[] for _ in operands]
    for d in outer_first(by):
        if shape[d] == ONE:
            continue
        if sizes and all(s[-1] == a[d] * shape[d] for s, a in zip(strides, operands, strict=True)):
            sizes[-1] = sizes[-1] * shape[d]
            for s, a in zip(strides, operands, strict=True):
                s[-1] = a[d]
            continue
        sizes.append(shape[d])
        for s, a in zip(strides, operands, strict=True):
            s.append(a[d])
    return tuple(sizes), [tuple(s) for s in strides]


def order_of(array: Array) -> list[int]:
    """The axes in memory order."""
    return outer_first(array.strides)


def element_index(strides: Sizes) -> str:
    """The C expression of an element's index, by loop counters."""
    parts = [f"i{d} * {s}" if s != ONE else f"i{d}" for d, s in enumerate(strides) if s != NONE]
    return " + ".join(parts) or "0"


def nested_loops(sizes: Sizes, body: str) -> str:
    head = "".join(f"for (I i{d} = 0; i{d} < {size}; i{d}++) " for d, size in enumerate(sizes))
    return f"{head}{{ {body} }}"
