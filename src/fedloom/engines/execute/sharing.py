"""What two functions compute alike of the same tensors: computed by the first, given to the second.

Clients embed their rows, and then take a step that begins by embedding them again. Both are traced,
so what they have in common can be seen: the same operations on the same arguments. The first then
also hands out what the second needs of it. Same operations on same numbers: the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from ..layers import cpu  # noqa: F401  (its operations)

aten = torch.ops.aten
WORTH = {  # what is worth being handed on: without one of these, nothing is
    aten.bmm.default,
    aten.mm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    torch.ops.fedloom_cpu.product.default,
    torch.ops.fedloom_cpu.convolution.default,
}


def shared(
    giver: fx.GraphModule, taker: fx.GraphModule, same: Mapping[int, int]
) -> tuple[fx.GraphModule, fx.GraphModule, int] | None:
    """The giver with more results, the taker with as many more arguments, after their own, and how
    many results are the giver's own; None if that saves nothing. `same`: arguments of the taker
    that are arguments of the giver."""
    giver, taker = copy.deepcopy(giver), copy.deepcopy(taker)
    arguments = _arguments(giver)
    alike: dict[fx.Node, fx.Node] = {  # nodes of the taker, as nodes of the giver
        mine: arguments[same[at]] for at, mine in enumerate(_arguments(taker)) if at in same
    }
    known = {_said(node, {}): node for node in giver.graph.nodes if node.op == "call_function"}
    for node in taker.graph.nodes:
        of_alike = node.op == "call_function" and all(a in alike for a in node.all_input_nodes)
        if of_alike and (found := known.get(_said(node, alike))) is not None:
            alike[node] = found
    if not any(node.target in WORTH for node in alike):
        return None
    wanted = [node for node in alike if node.op == "call_function" and _is_wanted(node, alike)]
    last = next(node for node in giver.graph.nodes if node.op == "output")
    own = list(last.args[0])
    last.args = ([*own, *(alike[node] for node in wanted)],)
    after = _arguments(taker)[-1]
    for number, node in enumerate(wanted):
        with taker.graph.inserting_after(after):
            after = taker.graph.placeholder(f"given_{number}")
        after.meta = node.meta
        node.replace_all_uses_with(after)
    for graph in (giver, taker):
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return giver, taker, len(own)


def _is_wanted(node: fx.Node, alike: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether it is a tensor that something else than what is alike needs."""
    return isinstance(node.meta.get("val"), Tensor) and any(
        user not in alike for user in node.users
    )


def _arguments(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _said(node: fx.Node, alike: Mapping[fx.Node, fx.Node]) -> Hashable:
    """What a node does with which others."""

    def of(a: Any) -> Hashable:
        if isinstance(a, fx.Node):
            return alike.get(a, a)
        if isinstance(a, list | tuple):
            return (type(a).__name__, *map(of, a))
        if isinstance(a, dict):
            return tuple((k, of(v)) for k, v in a.items())
        return (type(a).__name__, str(a))

    return node.target, of(node.args), of(node.kwargs)
