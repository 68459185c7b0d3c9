"""A traced function of one client as C: loops over arrays that are small enough for the nearest
cache.

Operations on single numbers of one shape become one loop; a loop that comes again (the Q steps of a
round are alike) is one function. Room that is not needed any more is used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import SymInt, Tensor, fx

from .arrays import (
    ONE,
    Array,
    Size,
    Sizes,
    Unknown,
    in_order,
    loops,
    nest,
    numbers,
    place,
    shape_of,
    size_of,
)
from .expressions import POINTWISE, TYPES, Operand, expression, literal, name_of, operands
from .rules import RULES, Product, constant, product
from .views import RESHAPED, VIEWS, viewed

FILLED = {"full": 1, "full_like": 1, "scalar_tensor": 0}  # where the value stands
CONSTANT = {"zeros_like": 0, "ones_like": 1, "zeros": 0, "ones": 1}
PRODUCTS = {"mm", "addmm"}
LINE = 64  # bytes: where arrays begin


class Given(NamedTuple):
    """An argument. `turned`: a matrix that is given by its columns."""

    kind: torch.dtype
    shape: Sizes
    turned: bool


class Emitter:
    """Writes a graph down. `turned`: arguments that are given by their columns."""

    def __init__(self, graph: fx.Graph, turned: Iterable[fx.Node] = ()):
        self.functions: dict[str, str] = {}  # text: name
        self.calls: list[str] = []
        self.slots: list[Size] = []  # bytes of each
        self.given: list[Given] = []
        self.work = [0, 0]  # multiplications, about: of a row, and of a client besides
        self.values: dict[fx.Node, Array] = {}
        self._turned = set(turned)
        self.by_columns = {shape_of(node) for node in self._turned}
        self._pending: list[fx.Node] = []  # of the loop that is being written
        self._held: tuple[fx.Node, Product] | None = None  # which that loop may go on with
        self._free: dict[Size, list[int]] = {}
        self._slot: dict[str, int] = {}  # of an array, by its name
        (last,) = (node for node in graph.nodes if node.op == "output")
        self._outputs: list[fx.Node] = list(last.args[0])
        self._live = _needed(self._outputs)
        self._left = {node: len(self._users(node)) for node in self._live}  # uses
        for node in self._outputs:
            self._left[node] += 1  # at the end
        for node in graph.nodes:
            if node.op == "placeholder":
                self._argument(node)
            elif node in self._live:
                self._operation(node)
        self._flush()
        self._write_product()
        self.results = [self._result(self.values[node]) for node in self._outputs]

    def _users(self, node: fx.Node) -> list[fx.Node]:
        return [user for user in node.users if user in self._live and not _is_constant(user)]

    def _inputs(self, node: fx.Node) -> list[fx.Node]:
        return [a for a in node.all_input_nodes if isinstance(a.meta["val"], Tensor)]

    # Arrays

    def _argument(self, node: fx.Node) -> None:
        shape, kind = shape_of(node), node.meta["val"].dtype
        turned = node in self._turned
        strides = in_order(shape[::-1])[::-1] if turned else in_order(shape)
        self.values[node] = Array(f"a{len(self.given)}", kind, shape, strides)
        self.given.append(Given(kind, shape, turned))

    def new(self, kind: torch.dtype, shape: Sizes, strides: Sizes | None = None) -> Array:
        """Room for a value."""
        total = numbers(shape) * Size(kind.itemsize)
        if not total.rows:
            total = Size(-(-max(total.each, 1) // LINE) * LINE)
        free = self._free.setdefault(total, [])
        if not free:
            free.append(len(self.slots))
            self.slots.append(total)
        slot = free.pop()
        array = Array(f"(({TYPES[kind]} *)s{slot})", kind, shape, strides or in_order(shape))
        self._slot[array.name] = slot
        return array

    def _used(self, node: fx.Node) -> None:
        """Once more. What nobody needs any longer leaves its room to others."""
        self._left[node] -= 1
        if self._left[node] or node.op != "call_function" or node not in self.values:
            return
        mine = self.values[node].name
        if name_of(node) in VIEWS | RESHAPED:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            copied = self.values[source].name != mine
            self._used(source)
            if not copied:
                return
        if (slot := self._slot.get(mine)) is not None:
            self._free[self.slots[slot]].append(slot)

    def _result(self, array: Array) -> Array:
        """As an array of its own that fills its memory."""
        if array.dense:
            return array
        copied = self.new(array.kind, array.shape)
        self.copy(array, copied)
        return copied

    # Operations

    def _operation(self, node: fx.Node) -> None:
        name, value = name_of(node), node.meta.get("val")
        if not isinstance(value, Tensor):
            return  # a size, which shapes have
        if value.dtype not in TYPES:
            raise Unknown(f"numbers of type {value.dtype}")
        if _is_constant(node):
            told = node.args[FILLED[name]] if name in FILLED else CONSTANT[name]
            self.values[node] = constant(value.dtype, shape_of(node), told)
        elif name in POINTWISE:
            self._join(node)
        else:
            if any(given in self._pending for given in self._inputs(node)):
                self._flush()
            if self._holds(self._inputs(node)):
                self._write_product()
            self._by_itself(name, node)

    def _by_itself(self, name: str, node: fx.Node) -> None:
        if name in VIEWS:
            a = self.values[self._inputs(node)[0]]
            self.values[node] = viewed(name, a, node.args[1:], shape_of(node))
        elif name in RESHAPED:
            self.values[node] = self._reshaped(self.values[self._inputs(node)[0]], shape_of(node))
        elif name in PRODUCTS:
            self._write_product()
            self._held = node, Product(self, node)
        elif name in RULES:
            self.values[node] = RULES[name](self, node)
            for given in self._inputs(node):
                self._used(given)
        else:
            raise Unknown(f"the operation {node.target}")

    def _reshaped(self, a: Array, shape: Sizes) -> Array:
        if a.value is not None:
            return constant(a.kind, shape, a.value)
        real = [d for d, size in enumerate(a.shape) if size != ONE]
        if tuple(a.strides[d] for d in real) != in_order(tuple(a.shape[d] for d in real)):
            copied = self.new(a.kind, a.shape)
            self.copy(a, copied)
            a = copied
        return replace(a, shape=shape, strides=in_order(shape))

    def effort(self, shape: Sizes) -> None:
        """An operation for each of so many numbers."""
        total = numbers(shape)
        self.work[not total.rows] += total.each

    # Loops

    def call(self, text: str, arrays: Sequence[Array], results: int = 1) -> None:
        """A loop as a function of pointers, of which those to results come last."""
        own = len(arrays) - results
        given = "".join(
            f", {'const ' if i < own else ''}{TYPES[a.kind]} *restrict p{i}"
            for i, a in enumerate(arrays)
        )
        whole = f"(const I n{given}) {{ {text} }}"
        name = self.functions.setdefault(whole, f"f{len(self.functions)}")
        self.calls.append(f"{name}(n{''.join(f', {a.at}' for a in arrays)});")

    def copy(self, a: Array, b: Array) -> None:
        sizes, (source, into) = loops(b.shape, [a.along(b.shape), b.strides], b.strides)
        if a.value is not None:
            self.call(nest(sizes, f"p0[{place(into)}] = {literal(a.value, b.kind)};"), [b])
        else:
            self.call(nest(sizes, f"p1[{place(into)}] = p0[{place(source)}];"), [a, b])

    def _join(self, node: fx.Node) -> None:
        """One more operation for the loop that is being written, if it is of that shape. Views of
        what it computes were written before."""
        if self._pending and shape_of(self._pending[0]) != shape_of(node):
            self._flush()
        self._pending.append(node)
        self.effort(shape_of(node))

    def _flush(self) -> None:
        """Write the loop: by itself, or at the end of the product that it goes on with."""
        group, self._pending = self._pending, []
        if not group:
            return
        shape, inside = shape_of(group[0]), set(group)
        read = [a for n in group for a in self._inputs(n) if a not in inside]
        held = self._taken(read, inside, shape)
        given = [self.values[a] for a in read if held is None or a is not held[0]]
        outside = list(dict.fromkeys(a for a in given if a.value is None))
        like = self._layout(shape, outside) if held is None else held[1].layout
        kept = [n for n in group if n in self._outputs or not inside.issuperset(self._users(n))]
        for node in kept:
            self.values[node] = self.new(node.meta["val"].dtype, shape, like)
        arrays = [*outside, *(self.values[node] for node in kept)]

        def body(at: Sequence[str], names: dict[fx.Node, str]) -> str:
            """`at`: elements of the arrays; `names`: of values that are there already."""
            text = [f"const {TYPES[a.kind]} v{i} = {at[i]};" for i, a in enumerate(outside)]
            for node in group:
                told = expression(node, [self._operand(a, names, outside) for a in operands(node)])
                names[node] = f"y{len(names)}"
                text.append(f"const {TYPES[node.meta['val'].dtype]} {names[node]} = {told};")
            text += [f"{at[i]} = {names[node]};" for i, node in enumerate(kept, len(outside))]
            return " ".join(text)

        if held is None:
            sizes, strides = loops(shape, [a.along(shape) for a in arrays], like)
            at = [f"p{i}[{place(mine)}]" for i, mine in enumerate(strides)]
            self.call(nest(sizes, body(at, {})), arrays, len(kept))
        else:
            source, made = held
            numbered = range(len(arrays))
            made.write(
                self,
                arrays,
                len(kept),
                lambda at, i, value: body([at(a, i, "j") for a in numbered], {source: value}),
            )
        for node in [*group, *([] if held is None else [held[0]])]:
            for a in self._inputs(node):
                self._used(a)

    def _layout(self, shape: Sizes, given: Sequence[Array]) -> Sizes:
        """The order of axes of most of what is read, so that all is read in that order."""
        dense = [a.strides for a in given if a.shape == shape and a.dense]
        return max(dense, key=dense.count) if dense else in_order(shape)

    # A product is not written before it is known what is done with it

    def _holds(self, nodes: Sequence[fx.Node]) -> bool:
        return self._held is not None and self._held[0] in nodes

    def _taken(
        self, read: Sequence[fx.Node], inside: set[fx.Node], shape: Sizes
    ) -> tuple[fx.Node, Product] | None:
        """The product, if nobody but the operations inside needs it."""
        if self._held is None or not self._holds(read):
            return None
        node, made = self._held
        alone = inside.issuperset(self._users(node)) and node not in self._outputs
        if not alone or made.shape != shape or not made.by_row:
            self._write_product()
            return None
        self._held = None
        return node, made

    def _write_product(self) -> None:
        """By itself."""
        if self._held is not None:
            (node, made), self._held = self._held, None
            self.values[node] = product(self, made)
            for given in self._inputs(node):
                self._used(given)

    def _operand(self, a: Any, names: dict[fx.Node, str], outside: list[Array]) -> Operand:
        if not isinstance(a, fx.Node):
            return Operand(None, None, a)
        value = a.meta["val"]
        if isinstance(value, SymInt):
            return Operand(f"({size_of(value)})", torch.int64)
        if a in names:
            return Operand(names[a], value.dtype)
        array = self.values[a]
        if array.value is not None:
            return Operand(None, value.dtype, array.value)
        return Operand(f"v{outside.index(array)}", value.dtype)


def _is_constant(node: fx.Node) -> bool:
    return name_of(node) in FILLED or name_of(node) in CONSTANT


def _needed(outputs: Sequence[fx.Node]) -> set[fx.Node]:
    """What results depend on: constants are known by their shape."""
    found: set[fx.Node] = set()
    left = list(outputs)
    while left:
        node = left.pop()
        if node not in found and isinstance(node.meta["val"], Tensor):
            found.add(node)
            left += [] if _is_constant(node) else node.all_input_nodes
    return found


def better_turned(graph: fx.Graph) -> list[fx.Node]:
    """Matrices among the arguments that rows are multiplied with the columns of, and nothing else:
    weights of a first layer."""
    uses: dict[Any, set[bool]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and name_of(node) in ("mm", "addmm"):
            right, turned = node.args[-1], False
            while isinstance(right, fx.Node) and name_of(right) in ("t", "permute", "transpose"):
                right, turned = right.args[0], not turned
            uses.setdefault(right, set()).add(turned)
    return [
        node
        for node, found in uses.items()
        if node.op == "placeholder" and found == {True} and _is_matrix(shape_of(node))
    ]


def _is_matrix(shape: Sizes) -> bool:
    return all(size.each > 1 and not size.rows for size in shape)
