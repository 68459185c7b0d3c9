"""Simplifies a traced graph: the same bits with fewer operations."""

from __future__ import annotations

import copy
import functools
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import SymInt, Tensor, fx
from torch._functorch.compile_utils import fx_graph_cse

from .reuse import reuse_memory

aten = torch.ops.aten
FILLED = {aten.ones_like.default: 1, aten.zeros_like.default: 0}
RESHAPED = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.reshape.default}
SAME = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}
_BOUND = """add sub mul div neg clamp_min addcmul where bmm mm transpose unsqueeze permute view sum
any expand index_select exp log relu tanh sigmoid _log_softmax _log_softmax_backward_data"""
DIRECT = set(_BOUND.split())  # torch's functions, same arguments, are called with less overhead
TIMES = {aten.mul.Scalar, aten.mul.Tensor, aten.pow.Tensor_Scalar, aten.div.Tensor}


def mutation(graph: fx.GraphModule) -> torch._ops.OpOverload | None:
    """An operation of the graph that changes a tensor in place, if any."""
    ops = (node.target for node in graph.graph.nodes)
    operations = (
        op for op in ops if isinstance(op, torch._ops.OpOverload) and op._schema.is_mutable
    )
    return next(operations, None)


def simplified(graph: fx.GraphModule) -> fx.GraphModule:
    """Simplify a graph. Gradients start from ones in the shape of the loss; as constants they do
    not need the loss, so that its value is not computed. What is the same in every local step is
    computed once. This is sound only where nothing is changed in place."""
    if (op := mutation(graph)) is not None:
        raise ValueError(f"{op} changes a tensor in place")
    for node in list(graph.graph.nodes):
        if node.op == "call_function":
            if node.target in FILLED:
                _fill_by_shape(graph.graph, node, FILLED[node.target])
            elif _changes_nothing(node):
                node.replace_all_uses_with(node.args[0])
            elif (before := _untransposed(node)) is not None:
                node.replace_all_uses_with(before)
            elif node.target == aten.mul.Scalar and node.args[1] == 2:
                _double_by_add(graph.graph, node)
    graph.graph.eliminate_dead_code()
    graph.graph = fx_graph_cse(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def as_function(graph: fx.GraphModule) -> Callable[..., list[Tensor]]:
    """The graph as a Python function that calls torch's operations directly and reuses memory."""
    graph = copy.deepcopy(graph)
    reuse_memory(graph.graph)
    ops: dict[str, Any] = {}

    def direct(match: re.Match[str]) -> str:
        name = match.group(0).replace(".", "_")
        packet = match.group(0).split(".")[-2]
        ops[name] = operator.attrgetter(match.group(0)[len("torch.") :])(torch)._op
        if match.group(0).startswith("torch.ops.aten.") and packet in DIRECT:
            ops[name] = getattr(torch, packet, None) or getattr(Tensor, packet)
        return name

    code = graph.graph.python_code("self")
    text = re.sub(r"torch\.ops\.\w+\.\w+\.\w+", direct, code.src)
    namespace: dict[str, Any] = {**code.globals, **ops}
    exec(text, namespace)
    return functools.partial(namespace["forward"], graph)


def _double_by_add(graph: fx.Graph, node: fx.Node) -> None:
    """x + x instead of x * 2: the same bits, without a tensor for the 2."""
    once = node.args[0]
    if isinstance(once, fx.Node) and _alike(once.meta["val"], node.meta["val"]):
        with graph.inserting_before(node):
            new = graph.call_function(aten.add.Tensor, (once, once))
        new.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(new)


def _untransposed(node: fx.Node) -> Any:
    """The argument of a double transpose, or None."""
    inner = node.args[0] if node.args else None
    if node.target != aten.transpose.int or not isinstance(inner, fx.Node):
        return None
    twice = inner.target == node.target and {*inner.args[1:]} == {*node.args[1:]}
    return inner.args[0] if twice else None


def _changes_nothing(node: fx.Node) -> bool:
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return False
    if not _alike(before, after):
        return False
    if node.target in SAME or node.target in RESHAPED:
        return True
    return node.target in TIMES and isinstance(node.args[1], int | float) and node.args[1] == 1


def _alike(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.ndim != b.ndim:
        return False
    return [str(n) for n in a.shape] == [str(n) for n in b.shape]


def _fill_by_shape(graph: fx.Graph, node: fx.Node, value: int) -> None:
    """Replace a constant that depends only on another value's shape."""
    value_like = node.meta["val"]
    sizes = [_size(graph, size) for size in value_like.shape]
    if any(size is None for size in sizes):
        return
    with graph.inserting_before(node):
        new = graph.call_function(
            aten.full.default,
            (sizes, value),
            {"dtype": value_like.dtype, "device": value_like.device, "pin_memory": False},
        )
    new.meta["val"] = value_like
    node.replace_all_uses_with(new)


def _size(graph: fx.Graph, size: Any) -> Any:
    """A size in the graph: a number, or the length of an argument's axis."""
    if not isinstance(size, SymInt):
        return size
    for node in graph.nodes:
        if node.op != "placeholder":
            return None
        for axis, other in enumerate(node.meta["val"].shape):
            if isinstance(other, SymInt) and str(other) == str(size):
                after = next(n for n in graph.nodes if n.op != "placeholder")
                with graph.inserting_before(after):
                    size_node = graph.call_function(aten.sym_size.int, (node, axis))
                size_node.meta["val"] = size
                return size_node
    return None
