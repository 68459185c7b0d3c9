"""Reuses memory in a traced graph: results overwrite values that are not needed any more.

Between two steps, the weights of a chunk are read and written several times. Allocating memory for
each result would take longer than the arithmetic. The bits are the same.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from ...layers import cpu  # noqa: F401  (its operations)

aten = torch.ops.aten
FEW = 8  # least number of clients for each that does not move
INTO = {  # op -> (its out variant, that keyword, arguments that it may overwrite)
    aten.add.Tensor: (aten.add.out, "out", (0, 1)),
    aten.sub.Tensor: (aten.sub.out, "out", (0, 1)),
    aten.mul.Tensor: (aten.mul.out, "out", (0, 1)),
    aten.div.Tensor: (aten.div.out, "out", (0, 1)),
    aten.neg.default: (aten.neg.out, "out", (0,)),
    aten.clamp_min.default: (aten.clamp_min.out, "out", (0,)),
    aten.addcmul.default: (aten.addcmul.out, "out", (1, 2, 0)),
    aten.where.self: (aten.where.self_out, "out", (1, 2)),
    aten.threshold_backward.default: (aten.threshold_backward.grad_input, "grad_input", (0, 1)),
}
FRESH = {  # ops that return new memory
    *INTO,
    aten.bmm.default,
    aten.mm.default,
    torch.ops.fedloom_cpu.product.default,
    torch.ops.fedloom_cpu.convolution_derivative.default,
}


def reuse_memory(graph: fx.Graph) -> None:
    """Write a result over an argument of the same form, if that is not needed any more: neither
    itself, nor through another view, nor as a result."""
    nodes = list(graph.nodes)
    owner: dict[fx.Node, fx.Node] = {}  # of the memory that a node's value is in
    last: dict[fx.Node, int] = {}  # use of an owner's memory
    for at, node in enumerate(nodes):
        for argument in node.all_input_nodes:
            last[owner[argument]] = at
        owner[node] = owner[node.all_input_nodes[0]] if _is_view(node) else node
        last.setdefault(owner[node], at)
    idle: dict[fx.Node, fx.Node] = {}  # clients, by who moves
    for at, node in enumerate(nodes):
        if node.op != "call_function" or node.target not in INTO:
            continue
        op, name, places = INTO[node.target]
        argument = [node.args[place] for place in places]
        free = (
            a
            for a in argument
            if isinstance(a, fx.Node)
            and owner[a].target in FRESH
            and last[owner[a]] == at
            and not any(b is not a and owner[b] is owner[a] for b in node.all_input_nodes)
            and _alike(a, node)
        )
        if (into := next(free, None)) is None:
            continue
        with graph.inserting_before(node):
            if node.target == aten.where.self and into is node.args[1] and _by_client(node.args[0]):
                moves = node.args[0]
                clients = owner[moves] if _all_of(owner[moves], moves) else moves
                if clients not in idle:
                    with graph.inserting_before(_first_after(clients)):
                        idle[clients] = graph.call_function(unmoved, (clients,))
                new = graph.call_function(moved, (moves, idle[clients], into, node.args[2]))
            else:
                new = graph.call_function(op, node.args, {**node.kwargs, name: into})
        new.meta = node.meta
        last[owner[into]] = max(last[owner[into]], last[owner[node]])
        before = owner[node]
        for other in nodes:
            if owner[other] is before:
                owner[other] = owner[into]
        owner[new] = owner[into]
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def unmoved(moves: Tensor) -> Tensor | None:
    """The indices of clients that do not move; None if all do."""
    return None if bool(moves.all()) else moves.flatten().logical_not().nonzero().flatten()


def moved(moves: Tensor, idle: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    """torch.where, in the memory of `new`. torch.where takes longer than the step itself, and
    mostly all clients move, or nearly all."""
    if idle is None:
        return new
    one_each = moves.ndim == new.ndim and len(moves) == len(new)
    if one_each and FEW * len(idle) <= len(new) and old.shape == new.shape:
        return new.index_copy_(0, idle, old.index_select(0, idle))
    return torch.where(moves, new, old, out=new)


def _by_client(moves: Any) -> bool:
    """Whether it has one number for each client and is on the CPU, so that reading it does not
    wait."""
    value = moves.meta.get("val")
    narrow = isinstance(value, Tensor) and all(str(size) == "1" for size in value.shape[1:])
    return narrow and value.device.type == "cpu"


def _all_of(a: fx.Node, view: fx.Node) -> bool:
    """Whether a view has all numbers of `a`, one for each client, and so in order."""
    value, view_value = a.meta.get("val"), view.meta.get("val")
    if not isinstance(value, Tensor) or not isinstance(view_value, Tensor) or value.ndim != 1:
        return False
    return str(value.shape[0]) == str(view_value.shape[0])


def _first_after(node: fx.Node) -> fx.Node:
    """The next node that is no argument."""
    node = node.next
    while node.op == "placeholder":
        node = node.next
    return node


def _is_view(node: fx.Node) -> bool:
    """Whether a node's value shares the memory of its first argument."""
    if node.target in (operator.getitem, aten._unsafe_view.default):
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or not node.all_input_nodes:
        return False
    return any(given.alias_info is not None for given in node.target._schema.returns)


def _alike(a: fx.Node, b: fx.Node) -> bool:
    """Whether both values have the same shape and strides, without overlap."""
    first, second = a.meta.get("val"), b.meta.get("val")
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    if first.dtype != second.dtype or first.device != second.device:
        return False
    sizes = [[str(n) for n in value.shape] for value in (first, second)]
    strides = [[str(n) for n in value.stride()] for value in (first, second)]
    return sizes[0] == sizes[1] and strides[0] == strides[1] and first.is_contiguous()
