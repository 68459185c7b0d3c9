"""Arrays of a client, as C sees them: a pointer, and sizes that are numbers, but for `n`, how many
rows the client has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import SymInt, fx


class Unknown(Exception):
    """There is no rule for it here: such work is done as ever."""


class Size(NamedTuple):
    """So many, for each row or in all."""

    each: int
    rows: bool = False

    def __mul__(self, other: Any) -> Size:
        if self.rows and other.rows:
            raise Unknown("numbers for pairs of rows")
        return Size(self.each * other.each, self.rows or other.rows)

    def __str__(self) -> str:
        if not self.rows:
            return str(self.each)
        return "n" if self.each == 1 else f"{self.each} * n"


ONE, NONE = Size(1), Size(0)
Sizes = tuple[Size, ...]


def size_of(n: Any) -> Size:
    """A size that was traced."""
    if not isinstance(n, SymInt):
        return Size(int(n))
    each, rest = n.node.expr.as_coeff_Mul()
    if rest.is_number:
        return Size(int(each * rest))
    if not rest.is_Symbol:
        raise Unknown(f"sizes like {n}")
    return Size(int(each), True)


def shape_of(node: fx.Node) -> Sizes:
    return tuple(size_of(n) for n in node.meta["val"].shape)


def numbers(shape: Sizes) -> Size:
    return math.prod(shape, start=ONE)


def in_order(shape: Sizes) -> Sizes:
    """The strides of an array whose last axis is contiguous."""
    strides = [ONE] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return tuple(strides)


@dataclass(frozen=True)
class Array:
    """`name`: a pointer; a constant has a value in place of it."""

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
        each = zip(shape, strides, in_order(shape), strict=True)
        return all(size == ONE or mine == plain for size, mine, plain in each)

    def along(self, shape: Sizes) -> Sizes:
        """Strides, as it is broadcast to a shape."""
        own = zip(self.shape, self.strides, strict=True)
        found = [NONE if size == ONE else stride for size, stride in own]
        return (*[NONE] * (len(shape) - len(found)), *found)

    def axes(self, order: Sequence[int]) -> Array:
        return replace(
            self,
            shape=tuple(self.shape[d] for d in order),
            strides=tuple(self.strides[d] for d in order),
        )

    def part(self, axis: int, start: int, shape: Sizes) -> Array:
        """Of this shape, from there on."""
        offset = Size(start) * self.strides[axis]
        if NONE not in (offset, self.offset) and offset.rows != self.offset.rows:
            raise Unknown("such offsets")
        both = Size(offset.each + self.offset.each, offset.rows or self.offset.rows)
        return replace(self, shape=shape, offset=both)


def outer_first(strides: Sizes) -> list[int]:
    """Axes, those with the largest strides first, as they were where these are equal."""
    return sorted(range(len(strides)), key=lambda d: (not strides[d].rows, -strides[d].each))


def loops(shape: Sizes, each: Sequence[Sizes], by: Sizes) -> tuple[Sizes, list[Sizes]]:
    """Axes to loop over, the outermost in memory first (`by`: strides that say so), and the strides
    of each operand there. Axes that all operands go through in one go are one."""
    sizes: list[Size] = []
    strides: list[list[Size]] = [[] for _ in each]
    for d in outer_first(by):
        if shape[d] == ONE:
            continue
        if sizes and all(s[-1] == a[d] * shape[d] for s, a in zip(strides, each, strict=True)):
            sizes[-1] = sizes[-1] * shape[d]
            for s, a in zip(strides, each, strict=True):
                s[-1] = a[d]
            continue
        sizes.append(shape[d])
        for s, a in zip(strides, each, strict=True):
            s.append(a[d])
    return tuple(sizes), [tuple(s) for s in strides]


def order_of(array: Array) -> list[int]:
    """Its axes, as they lie in memory."""
    return outer_first(array.strides)


def place(strides: Sizes) -> str:
    """Where an element is, by the loops' counters."""
    parts = [f"i{d} * {s}" if s != ONE else f"i{d}" for d, s in enumerate(strides) if s != NONE]
    return " + ".join(parts) or "0"


def nest(sizes: Sizes, body: str) -> str:
    head = "".join(f"for (I i{d} = 0; i{d} < {size}; i{d}++) " for d, size in enumerate(sizes))
    return f"{head}{{ {body} }}"
