"""Writes the traced function of one client as C: loops over arrays that fit the nearest cache.

Consecutive elementwise operations of one shape are fused into a loop. Equal loops (the Q steps of a
round) are one function. Memory that is not needed any more is reused.
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
    Unsupported,
    contiguous_strides,
    element_index,
    loop_axes,
    nested_loops,
    numel,
    shape_of,
    size_of,
)
from .expressions import POINTWISE, TYPES, Operand, expression, literal, name_of, operands
from .rules import RULES, EmittedProduct, constant, product
from .views import RESHAPED, VIEWS, viewed

FILLED = {"full": 1, "full_like": 1, "scalar_tensor": 0}  # where the value stands
CONSTANT = {"zeros_like": 0, "ones_like": 1, "zeros": 0, "ones": 1}
PRODUCTS = {"mm", "addmm"}
LINE = 64  # bytes: where arrays begin
MOST_STORED = 4096  # numbers of a tensor that is written into the source


class Parameter(NamedTuple):
    """A parameter of the function. `turned`: a matrix stored by columns."""

    kind: torch.dtype
    shape: Sizes
    turned: bool


class Emitter:
    """Writes a graph as C. `turned`: arguments stored by columns."""

    def __init__(self, graph: fx.Graph, turned: Iterable[fx.Node] = ()):
        self.functions: dict[str, str] = {}  # source -> name
        self.calls: list[str] = []
        self.slots: list[Size] = []  # bytes of each memory slot
        self.parameters: list[Parameter] = []
        self.stored: list[str] = []  # declarations of tensors that the function holds
        self.work = [0, 0]  # rough number of operations: for each row, and for each client besides
        self.values: dict[fx.Node, Array] = {}
        self._turned = set(turned)
        self.by_columns = {shape_of(node) for node in self._turned}
        self._fused: list[fx.Node] = []  # operations of the current loop
        # a product that the current loop may be fused with
        self._product: tuple[fx.Node, EmittedProduct] | None = None
        self._free: dict[Size, list[int]] = {}
        self._slot: dict[str, int] = {}  # the slot of an array, by its name
        (last,) = (node for node in graph.nodes if node.op == "output")
        self._outputs: list[fx.Node] = list(last.args[0])
        self._live = _needed(self._outputs)
        self._uses_left = {node: len(self._users(node)) for node in self._live}
        for node in self._outputs:
            self._uses_left[node] += 1  # as results
        for node in graph.nodes:
            if node.op == "placeholder":
                self._argument(node)
            elif node.op == "get_attr":
                self._stored(node)
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
        strides = contiguous_strides(shape[::-1])[::-1] if turned else contiguous_strides(shape)
        self.values[node] = Array(f"a{len(self.parameters)}", kind, shape, strides)
        self.parameters.append(Parameter(kind, shape, turned))

    def _stored(self, node: fx.Node) -> None:
        """A tensor that the function holds, such as weights of classes: written into the source."""
        assert node.graph.owning_module is not None
        value = getattr(node.graph.owning_module, str(node.target)).detach().cpu()
        if value.dtype not in TYPES or value.numel() > MOST_STORED:
            raise Unsupported(f"a tensor of its own, {list(value.shape)} of {value.dtype}")
        node.meta["val"] = value
        name, shape = f"k{len(self.stored)}", tuple(Size(n) for n in value.shape)
        numbers = ", ".join(literal(number, value.dtype) for number in value.flatten().tolist())
        self.stored.append(f"static const {TYPES[value.dtype]} {name}[] = {{ {numbers} }};")
        self.values[node] = Array(name, value.dtype, shape, contiguous_strides(shape))

    def new(self, kind: torch.dtype, shape: Sizes, strides: Sizes | None = None) -> Array:
        """Memory for a value."""
        total = numel(shape) * Size(kind.itemsize)
        if not total.rows:
            total = Size(-(-max(total.each, 1) // LINE) * LINE)
        free = self._free.setdefault(total, [])
        if not free:
            free.append(len(self.slots))
            self.slots.append(total)
        slot = free.pop()
        array = Array(
            f"(({TYPES[kind]} *)s{slot})", kind, shape, strides or contiguous_strides(shape)
        )
        self._slot[array.name] = slot
        return array

    def _release(self, node: fx.Node) -> None:
        """Count a use of a node. Memory without further uses is freed."""
        self._uses_left[node] -= 1
        if self._uses_left[node] or node.op != "call_function" or node not in self.values:
            return
        name = self.values[node].name
        if name_of(node) in VIEWS | RESHAPED:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            copied = self.values[source].name != name
            self._release(source)
            if not copied:
                return
        if (slot := self._slot.get(name)) is not None:
            self._free[self.slots[slot]].append(slot)

    def _result(self, array: Array) -> Array:
        """An array that is contiguous in memory."""
        if array.dense:
            return array
        copied = self.new(array.kind, array.shape)
        self.copy(array, copied)
        return copied

    # Operations

    def _operation(self, node: fx.Node) -> None:
        name, value = name_of(node), node.meta.get("val")
        if not isinstance(value, Tensor):
            return  # a size: shapes have it
        if value.dtype not in TYPES:
            raise Unsupported(f"numbers of type {value.dtype}")
        if _is_constant(node):
            constant_value = node.args[FILLED[name]] if name in FILLED else CONSTANT[name]
            self.values[node] = constant(value.dtype, shape_of(node), constant_value)
        elif name in POINTWISE:
            self._fuse(node)
        else:
            if any(operand in self._fused for operand in self._inputs(node)):
                self._flush()
            if self._needs_product(self._inputs(node)):
                self._write_product()
            self._unfused(name, node)

    def _unfused(self, name: str, node: fx.Node) -> None:
        if name in VIEWS:
            a = self.values[self._inputs(node)[0]]
            self.values[node] = viewed(name, a, node.args[1:], shape_of(node))
        elif name in RESHAPED:
            self.values[node] = self._reshaped(self.values[self._inputs(node)[0]], shape_of(node))
        elif name in PRODUCTS:
            self._write_product()
            self._product = node, EmittedProduct(self, node)
        elif name in RULES:
            self.values[node] = RULES[name](self, node)
            for operand in self._inputs(node):
                self._release(operand)
        else:
            raise Unsupported(f"the operation {node.target}")

    def _reshaped(self, a: Array, shape: Sizes) -> Array:
        if a.value is not None:
            return constant(a.kind, shape, a.value)
        real = [d for d, size in enumerate(a.shape) if size != ONE]
        if tuple(a.strides[d] for d in real) != contiguous_strides(tuple(a.shape[d] for d in real)):
            copied = self.new(a.kind, a.shape)
            self.copy(a, copied)
            a = copied
        return replace(a, shape=shape, strides=contiguous_strides(shape))

    def effort(self, shape: Sizes) -> None:
        """Count an operation for each element of a shape."""
        total = numel(shape)
        self.work[not total.rows] += total.each

    # Loops

    def call(self, text: str, arrays: Sequence[Array], results: int = 1) -> None:
        """Write a loop as a function of pointers; those to results come last."""
        inputs = len(arrays) - results
        parameters = "".join(
            f", {'const ' if i < inputs else ''}{TYPES[a.kind]} *restrict p{i}"
            for i, a in enumerate(arrays)
        )
        source = f"(const I n{parameters}) {{ {text} }}"
        name = self.functions.setdefault(source, f"f{len(self.functions)}")
        self.calls.append(f"{name}(n{''.join(f', {a.at}' for a in arrays)});")

    def copy(self, a: Array, b: Array) -> None:
        sizes, (source, into) = loop_axes(b.shape, [a.along(b.shape), b.strides], b.strides)
        if a.value is not None:
            self.call(
                nested_loops(sizes, f"p0[{element_index(into)}] = {literal(a.value, b.kind)};"), [b]
            )
        else:
            self.call(
                nested_loops(sizes, f"p1[{element_index(into)}] = p0[{element_index(source)}];"),
                [a, b],
            )

    def _fuse(self, node: fx.Node) -> None:
        """Add an operation to the current loop, if its shape is the same. Views of the loop's
        results force it to be written first."""
        if self._fused and shape_of(self._fused[0]) != shape_of(node):
            self._flush()
        self._fused.append(node)
        self.effort(shape_of(node))

    def _flush(self) -> None:
        """Write the current loop: alone, or fused with the product before it."""
        group, self._fused = self._fused, []
        if not group:
            return
        shape, inside = shape_of(group[0]), set(group)
        read = [a for n in group for a in self._inputs(n) if a not in inside]
        fused_with = self._fusable_product(read, inside, shape)
        inputs = [self.values[a] for a in read if fused_with is None or a is not fused_with[0]]
        outside = list(dict.fromkeys(a for a in inputs if a.value is None))
        like = self._layout(shape, outside) if fused_with is None else fused_with[1].layout
        stored = [n for n in group if n in self._outputs or not inside.issuperset(self._users(n))]
        for node in stored:
            self.values[node] = self.new(node.meta["val"].dtype, shape, like)
        arrays = [*outside, *(self.values[node] for node in stored)]

        def body(at: Sequence[str], names: dict[fx.Node, str]) -> str:
            """`at`: C expressions of the arrays' elements; `names`: of computed values."""
            text = [f"const {TYPES[a.kind]} v{i} = {at[i]};" for i, a in enumerate(outside)]
            for node in group:
                value = expression(node, [self._operand(a, names, outside) for a in operands(node)])
                names[node] = f"y{len(names)}"
                text.append(f"const {TYPES[node.meta['val'].dtype]} {names[node]} = {value};")
            text += [f"{at[i]} = {names[node]};" for i, node in enumerate(stored, len(outside))]
            return " ".join(text)

        if fused_with is None:
            sizes, strides = loop_axes(shape, [a.along(shape) for a in arrays], like)
            at = [
                f"p{i}[{element_index(strides_of_array)}]"
                for i, strides_of_array in enumerate(strides)
            ]
            self.call(nested_loops(sizes, body(at, {})), arrays, len(stored))
        else:
            source, product = fused_with
            numbered = range(len(arrays))
            product.write(
                self,
                arrays,
                len(stored),
                lambda at, i, value: body([at(a, i, "j") for a in numbered], {source: value}),
            )
        for node in [*group, *([] if fused_with is None else [fused_with[0]])]:
            for a in self._inputs(node):
                self._release(a)

    def _layout(self, shape: Sizes, inputs: Sequence[Array]) -> Sizes:
        """The memory order of most inputs, so that reads are contiguous."""
        dense = [a.strides for a in inputs if a.shape == shape and a.dense]
        return max(dense, key=dense.count) if dense else contiguous_strides(shape)

    # A product is written late, so that operations on its result can be fused with it

    def _needs_product(self, nodes: Sequence[fx.Node]) -> bool:
        return self._product is not None and self._product[0] in nodes

    def _fusable_product(
        self, read: Sequence[fx.Node], inside: set[fx.Node], shape: Sizes
    ) -> tuple[fx.Node, EmittedProduct] | None:
        """The pending product, if only the operations inside need it."""
        if self._product is None or not self._needs_product(read):
            return None
        node, candidate = self._product
        alone = inside.issuperset(self._users(node)) and node not in self._outputs
        if not alone or candidate.shape != shape or not candidate.by_row:
            self._write_product()
            return None
        self._product = None
        return node, candidate

    def _write_product(self) -> None:
        """Write the pending product alone."""
        if self._product is not None:
            (node, product_to_write), self._product = self._product, None
            self.values[node] = product(self, product_to_write)
            for operand in self._inputs(node):
                self._release(operand)

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
    """The nodes that results depend on. Constants need only their shape."""
    needed: set[fx.Node] = set()
    remaining = list(outputs)
    while remaining:
        node = remaining.pop()
        if node not in needed and isinstance(node.meta["val"], Tensor):
            needed.add(node)
            remaining += [] if _is_constant(node) else node.all_input_nodes
    return needed


def better_turned(graph: fx.Graph) -> list[fx.Node]:
    """Arguments that are better stored by columns: matrices used only as transposed right factors,
    such as the weights of a first layer."""
    uses: dict[Any, set[bool]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and name_of(node) in ("mm", "addmm"):
            right, turned = node.args[-1], False
            while isinstance(right, fx.Node) and name_of(right) in ("t", "permute", "transpose"):
                right, turned = right.args[0], not turned
            uses.setdefault(right, set()).add(turned)
    return [
        node
        for node, ways_used in uses.items()
        if node.op == "placeholder" and ways_used == {True} and _is_matrix(shape_of(node))
    ]


def _is_matrix(shape: Sizes) -> bool:
    return all(size.each > 1 and not size.rows for size in shape)
