"""Rules for operations with loops of their own: reductions, products, concatenation, padding.

A rule gets the emitter, which has the values so far, and returns the array of its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .arrays import (
    NONE,
    ONE,
    Array,
    Size,
    Sizes,
    Unsupported,
    contiguous_strides,
    element_index,
    loop_axes,
    nested_loops,
    shape_of,
)
from .expressions import TYPES, name_of

if TYPE_CHECKING:
    from .emit import Emitter

FOUR = 4  # rows of a product computed together
WIDE = 1024  # longest row that is accumulated in registers and cache
REDUCED = {  # the initial value, and the update
    "sum": ("0", "{0} + {1}"),
    "amax": ("-INFINITY", "({1} > {0} ? {1} : {0})"),
    "amin": ("INFINITY", "({1} < {0} ? {1} : {0})"),
    "any": ("0", "({0} | ({1} != 0))"),
    "all": ("1", "({0} & ({1} != 0))"),
}


def constant(kind: torch.dtype, shape: Sizes, value: Any) -> Array:
    return Array("", kind, shape, (NONE,) * len(shape), value=value)


def _written(emitter: Emitter, node: Any) -> Array:
    """A value in memory, also if it is a constant."""
    a = emitter.values[node]
    if a.value is None:
        return a
    copy = emitter.new(a.kind, a.shape)
    emitter.copy(a, copy)
    return copy


def reduced(emitter: Emitter, node: fx.Node) -> Array:
    source: Any = node.args[0]
    a, kind, axes = _written(emitter, source), node.meta["val"].dtype, source.meta["val"].ndim
    first, more = REDUCED[name_of(node)]
    if first.endswith("INFINITY") and not kind.is_floating_point:
        raise Unsupported("the largest of whole numbers")
    axes_given: Any = node.args[1] if len(node.args) > 1 else None
    reduced_axes = {
        d % axes
        for d in ([axes_given] if isinstance(axes_given, int) else axes_given or range(axes))
    }
    kept_shape = tuple(ONE if d in reduced_axes else size for d, size in enumerate(a.shape))
    out = emitter.new(kind, kept_shape)
    emitter.effort(a.shape)
    sizes, (every, into) = loop_axes(a.shape, [a.strides, out.along(a.shape)], a.strides)
    element, sum_ = f"p0[{element_index(every)}]", f"p1[{element_index(into)}]"
    if sizes and into[-1] == NONE and NONE not in into[:-1]:  # in the innermost loop
        i = f"i{len(sizes) - 1}"
        every_one = f"for (I {i} = 0; {i} < {sizes[-1]}; {i}++)"
        body = f"{TYPES[kind]} t = {first}; {every_one} t = {more.format('t', element)};"
        if first.endswith("INFINITY"):
            body += f" int bad = 0; {every_one} bad |= {element} != {element}; t = bad ? NAN : t;"
        emitter.call(nested_loops(sizes[:-1], f"{body} {sum_} = t;"), [a, out])
    else:
        if first.endswith("INFINITY"):
            more = f"({{1}} != {{1}} ? {{1}} : {more})"
        emitter.copy(constant(kind, kept_shape, float(first)), out)
        emitter.call(nested_loops(sizes, f"{sum_} = {more.format(sum_, element)};"), [a, out])
    return replace(out, shape=shape_of(node), strides=contiguous_strides(shape_of(node)))


At = Callable[
    [int, str, str], str
]  # the C expression of an array's element, by array, row and column
Finish = Callable[[At, str, str], str]  # the C code for an element: row, value


class EmittedProduct:
    """A product of two matrices, perhaps added to a third. `turned`: it is computed transposed."""

    def __init__(self, emitter: Emitter, node: fx.Node):
        if any(node.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
            raise Unsupported("scaled products")
        *first, left, right = (_written(emitter, a) for a in node.args[:3])
        self.shape, self.kind = shape_of(node), node.meta["val"].dtype
        emitter.effort((*self.shape, left.shape[1]))
        by_columns = self.shape in emitter.by_columns or right.strides[1] != ONE
        self.turned = left.strides[0] == ONE and self.shape[0] != ONE and by_columns
        self.a, self.b = (right.transposed, left.transposed) if self.turned else (left, right)
        self.begin = [replace(c, shape=self.shape, strides=c.along(self.shape)) for c in first]
        if self.turned:
            self.begin = [c.transposed for c in self.begin]

    @property
    def layout(self) -> Sizes:
        """Strides of a result in the order of computation."""
        return (
            contiguous_strides(self.shape[::-1])[::-1]
            if self.turned
            else contiguous_strides(self.shape)
        )

    @property
    def by_row(self) -> bool:
        """Whether it is computed row by row, so that code can be fused with it."""
        n = self.b.shape[1]
        return self._by_dots or (not n.rows and n.each <= WIDE)

    @property
    def _by_dots(self) -> bool:
        """Whether it is computed by dot products: where the columns of b are not adjacent."""
        bk, bj = self.b.strides
        return self.b.shape[1] == ONE or (bj != ONE and bk == ONE)

    def write(
        self, emitter: Emitter, others: Sequence[Array], results: int, finish: Finish
    ) -> None:
        """Write the loops. `others`: more arrays that `finish` uses; it writes to the last
        `results` of them."""
        (m, k), n, kind = self.a.shape, self.b.shape[1], TYPES[self.kind]
        like = [replace(c, shape=self.shape, strides=c.along(self.shape)) for c in others]
        like = [c.transposed for c in like] if self.turned else like
        arrays = [self.a, self.b, *self.begin, *like]

        def at(number: int, first: str, second: str) -> str:
            s, t = arrays[number].strides
            return f"p{number}[{first} * {s} + {second} * {t}]"

        def other(number: int, first: str, second: str) -> str:
            return at(2 + len(self.begin) + number, first, second)

        def start(i: str) -> str:
            return at(2, i, "j") if self.begin else "0"

        counts = zip("ijk", (m, n, k), strict=True)
        by_i, by_j, by_k = (f"for (I {c} = 0; {c} < {s}; {c}++)" for c, s in counts)
        y = at(1, "k", "j")

        def rows(count: int) -> str:
            """Code for several rows at once, which share reads of b."""
            row_indices = [f"(i + {r})" if r else "i" for r in range(count)]
            sums = ", ".join(f"t{r}[{n}]" for r in range(count))
            begins = " ".join(f"t{r}[j] = {start(i)};" for r, i in enumerate(row_indices))
            xs = " ".join(
                f"const {kind} x{r} = {at(0, i, 'k')};" for r, i in enumerate(row_indices)
            )
            more = " ".join(f"t{r}[j] += x{r} * y;" for r in range(count))
            ends = " ".join(
                f"{{ {finish(other, i, f't{r}[j]')} }}" for r, i in enumerate(row_indices)
            )
            return (
                f"{kind} {sums}; {by_j} {{ {begins} }} "
                f"{by_k} {{ {xs} {by_j} {{ const {kind} y = {y}; {more} }} }} {by_j} {{ {ends} }}"
            )

        if self._by_dots:
            sum_ = f"{kind} t = {start('i')}; {by_k} t += {at(0, 'i', 'k')} * {y};"
            text = f"{by_i} {by_j} {{ {sum_} {finish(other, 'i', 't')} }}"
        elif self.by_row:
            text = (
                f"I i = 0; for (; i + {FOUR} <= {m}; i += {FOUR}) {{ {rows(FOUR)} }} "
                f"if (i + 2 <= {m}) {{ {rows(2)} i += 2; }} if (i < {m}) {{ {rows(1)} }}"
            )
        else:  # accumulate in the result
            z, x = other(0, "i", "j"), f"const {kind} x = {at(0, 'i', 'k')};"
            text = (
                f"{by_i} {{ {by_j} {z} = {start('i')}; {by_k} {{ {x} {by_j} {z} += x * {y}; }} }}"
            )
        emitter.call(text, arrays, results)


def product(emitter: Emitter, factors: EmittedProduct) -> Array:
    """Write a product to an array of its own."""
    out = emitter.new(factors.kind, factors.shape, factors.layout)
    factors.write(emitter, [out], 1, lambda at, i, value: f"{at(0, i, 'j')} = {value};")
    return out


def arange(emitter: Emitter, node: fx.Node) -> Array:
    bounds = [a for a in node.args if isinstance(a, int)]
    if len(bounds) != len(node.args):
        raise Unsupported("counting rows")
    start, step = bounds[0] if len(bounds) > 1 else 0, bounds[2] if len(bounds) > 2 else 1
    out = emitter.new(node.meta["val"].dtype, shape_of(node))
    emitter.call(nested_loops(out.shape, f"p0[i0] = {start} + i0 * {step};"), [out])
    return out


def concatenated(emitter: Emitter, node: fx.Node) -> Array:
    parts: Any = node.args[0]
    axis_given: Any = node.args[1] if len(node.args) > 1 else 0
    out = emitter.new(node.meta["val"].dtype, shape_of(node))
    axis, start = axis_given % len(out.shape), 0
    for array in (emitter.values[part] for part in parts):
        if array.shape[axis].rows:
            raise Unsupported("more rows")
        emitter.copy(array, out.part(axis, start, array.shape))
        start += array.shape[axis].each
    return out


def padded(emitter: Emitter, node: fx.Node) -> Array:
    """Padding, or (negative) cropping."""
    by: Any = node.args[1]
    a, fill = emitter.values[node.args[0]], node.args[2] if len(node.args) > 2 else 0  # type: ignore[index]
    out = inner = emitter.new(node.meta["val"].dtype, shape_of(node))
    emitter.copy(constant(out.kind, out.shape, fill), out)
    for at, (before, after) in enumerate(zip(by[::2], by[1::2], strict=True)):
        axis = len(a.shape) - 1 - at
        if not before and not after:
            continue
        if a.shape[axis].rows or not isinstance(before, int) or not isinstance(after, int):
            raise Unsupported("more rows")
        length = a.shape[axis].each + min(before, 0) + min(after, 0)
        shape = (*a.shape[:axis], Size(length), *a.shape[axis + 1 :])
        a, inner = a.part(axis, max(-before, 0), shape), inner.part(axis, max(before, 0), shape)
    emitter.copy(a, replace(inner, shape=a.shape))
    return out


RULES: dict[str, Callable[[Emitter, fx.Node], Array]] = {
    **dict.fromkeys(REDUCED, reduced),
    "arange": arange,
    "cat": concatenated,
    "constant_pad_nd": padded,
}
