"""Operations that are loops of their own: sums, products, and what puts arrays together.

Each is given the emitter, which has the values so far, and gives the array of its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .arrays import NONE, ONE, Array, Size, Sizes, Unknown, in_order, loops, nest, place, shape_of
from .expressions import TYPES, name_of

if TYPE_CHECKING:
    from .emit import Emitter

FOUR = 4  # rows of a product that are computed at once
WIDE = 1024  # numbers of a row that is summed up by itself
REDUCED = {  # what it begins with, and how one more comes to it
    "sum": ("0", "{0} + {1}"),
    "amax": ("-INFINITY", "({1} > {0} ? {1} : {0})"),
    "amin": ("INFINITY", "({1} < {0} ? {1} : {0})"),
    "any": ("0", "({0} | ({1} != 0))"),
    "all": ("1", "({0} & ({1} != 0))"),
}


def constant(kind: torch.dtype, shape: Sizes, value: Any) -> Array:
    return Array("", kind, shape, (NONE,) * len(shape), value=value)


def _written(on: Emitter, node: Any) -> Array:
    """A value with numbers in memory, if it is a constant."""
    a = on.values[node]
    if a.value is None:
        return a
    made = on.new(a.kind, a.shape)
    on.copy(a, made)
    return made


def reduced(on: Emitter, node: fx.Node) -> Array:
    source: Any = node.args[0]
    a, kind, axes = _written(on, source), node.meta["val"].dtype, source.meta["val"].ndim
    first, more = REDUCED[name_of(node)]
    if first.endswith("INFINITY") and not kind.is_floating_point:
        raise Unknown("the largest of whole numbers")
    told: Any = node.args[1] if len(node.args) > 1 else None
    some = {d % axes for d in ([told] if isinstance(told, int) else told or range(axes))}
    rest = tuple(ONE if d in some else size for d, size in enumerate(a.shape))
    out = on.new(kind, rest)
    on.effort(a.shape)
    sizes, (every, into) = loops(a.shape, [a.strides, out.along(a.shape)], a.strides)
    one, sum_ = f"p0[{place(every)}]", f"p1[{place(into)}]"
    if sizes and into[-1] == NONE and NONE not in into[:-1]:  # by the innermost loop
        i = f"i{len(sizes) - 1}"
        every_one = f"for (I {i} = 0; {i} < {sizes[-1]}; {i}++)"
        body = f"{TYPES[kind]} t = {first}; {every_one} t = {more.format('t', one)};"
        if first.endswith("INFINITY"):
            body += f" int bad = 0; {every_one} bad |= {one} != {one}; t = bad ? NAN : t;"
        on.call(nest(sizes[:-1], f"{body} {sum_} = t;"), [a, out])
    else:
        if first.endswith("INFINITY"):
            more = f"({{1}} != {{1}} ? {{1}} : {more})"
        on.copy(constant(kind, rest, float(first)), out)
        on.call(nest(sizes, f"{sum_} = {more.format(sum_, one)};"), [a, out])
    return replace(out, shape=shape_of(node), strides=in_order(shape_of(node)))


At = Callable[[int, str, str], str]  # an element of an array, by its number, row and column
Finish = Callable[[At, str, str], str]  # what is done with an element: of which row, its value


class Product:
    """Of two matrices, and what it is added to. `turned`: it is better written by columns."""

    def __init__(self, on: Emitter, node: fx.Node):
        if any(node.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
            raise Unknown("scaled products")
        *first, left, right = (_written(on, a) for a in node.args[:3])
        self.shape, self.kind = shape_of(node), node.meta["val"].dtype
        on.effort((*self.shape, left.shape[1]))
        by_columns = self.shape in on.by_columns or right.strides[1] != ONE
        self.turned = left.strides[0] == ONE and self.shape[0] != ONE and by_columns
        self.a, self.b = (right.transposed, left.transposed) if self.turned else (left, right)
        self.begin = [replace(c, shape=self.shape, strides=c.along(self.shape)) for c in first]
        if self.turned:
            self.begin = [c.transposed for c in self.begin]

    @property
    def layout(self) -> Sizes:
        """Strides of a result that is written as the product is."""
        return in_order(self.shape[::-1])[::-1] if self.turned else in_order(self.shape)

    @property
    def by_row(self) -> bool:
        """Whether its numbers are there row by row, before they are written anywhere."""
        n = self.b.shape[1]
        return self._by_dots or (not n.rows and n.each <= WIDE)

    @property
    def _by_dots(self) -> bool:
        """Along what is summed up: where the columns of b are not beside each other."""
        bk, bj = self.b.strides
        return self.b.shape[1] == ONE or (bj != ONE and bk == ONE)

    def write(self, on: Emitter, others: Sequence[Array], results: int, finish: Finish) -> None:
        """`others`: more arrays that `finish` has to do with, the last `results` of them to write
        to."""
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
            """So many rows at once: what is read of b serves them all."""
            these = [f"(i + {r})" if r else "i" for r in range(count)]
            sums = ", ".join(f"t{r}[{n}]" for r in range(count))
            begins = " ".join(f"t{r}[j] = {start(i)};" for r, i in enumerate(these))
            xs = " ".join(f"const {kind} x{r} = {at(0, i, 'k')};" for r, i in enumerate(these))
            more = " ".join(f"t{r}[j] += x{r} * y;" for r in range(count))
            ends = " ".join(f"{{ {finish(other, i, f't{r}[j]')} }}" for r, i in enumerate(these))
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
        else:  # into the one result
            z, x = other(0, "i", "j"), f"const {kind} x = {at(0, 'i', 'k')};"
            text = (
                f"{by_i} {{ {by_j} {z} = {start('i')}; {by_k} {{ {x} {by_j} {z} += x * {y}; }} }}"
            )
        on.call(text, arrays, results)


def product(on: Emitter, made: Product) -> Array:
    """As an array of its own."""
    out = on.new(made.kind, made.shape, made.layout)
    made.write(on, [out], 1, lambda at, i, value: f"{at(0, i, 'j')} = {value};")
    return out


def counted(on: Emitter, node: fx.Node) -> Array:
    bounds = [a for a in node.args if isinstance(a, int)]
    if len(bounds) != len(node.args):
        raise Unknown("counting rows")
    start, step = bounds[0] if len(bounds) > 1 else 0, bounds[2] if len(bounds) > 2 else 1
    out = on.new(node.meta["val"].dtype, shape_of(node))
    on.call(nest(out.shape, f"p0[i0] = {start} + i0 * {step};"), [out])
    return out


def side_by_side(on: Emitter, node: fx.Node) -> Array:
    parts: Any = node.args[0]
    told: Any = node.args[1] if len(node.args) > 1 else 0
    out = on.new(node.meta["val"].dtype, shape_of(node))
    axis, start = told % len(out.shape), 0
    for mine in (on.values[part] for part in parts):
        if mine.shape[axis].rows:
            raise Unknown("more rows")
        on.copy(mine, out.part(axis, start, mine.shape))
        start += mine.shape[axis].each
    return out


def padded(on: Emitter, node: fx.Node) -> Array:
    """More numbers around, or fewer."""
    by: Any = node.args[1]
    a, told = on.values[node.args[0]], node.args[2] if len(node.args) > 2 else 0  # type: ignore[index]
    out = inner = on.new(node.meta["val"].dtype, shape_of(node))
    on.copy(constant(out.kind, out.shape, told), out)
    for at, (before, after) in enumerate(zip(by[::2], by[1::2], strict=True)):
        axis = len(a.shape) - 1 - at
        if not before and not after:
            continue
        if a.shape[axis].rows or not isinstance(before, int) or not isinstance(after, int):
            raise Unknown("more rows")
        left = a.shape[axis].each + min(before, 0) + min(after, 0)
        shape = (*a.shape[:axis], Size(left), *a.shape[axis + 1 :])
        a, inner = a.part(axis, max(-before, 0), shape), inner.part(axis, max(before, 0), shape)
    on.copy(a, replace(inner, shape=a.shape))
    return out


RULES: dict[str, Callable[[Emitter, fx.Node], Array]] = {
    **dict.fromkeys(REDUCED, reduced),
    "arange": counted,
    "cat": side_by_side,
    "constant_pad_nd": padded,
}
