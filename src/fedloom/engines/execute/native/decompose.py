"""Decomposes traced functions into the few operations that emit.py knows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx

from ..tracing.simplify import simplified

aten = torch.ops.aten
MORE = [  # further operations that torch can decompose
    aten._softmax,
    aten._softmax_backward_data,
    aten._log_softmax,
    aten._log_softmax_backward_data,
    aten.native_layer_norm,
    aten.native_layer_norm_backward,
    aten.gelu,
    aten.gelu_backward,
    aten.leaky_relu,
    aten.leaky_relu_backward,
    aten.addmv,
]


def decomposed(graph: fx.GraphModule, fake: Sequence[Tensor]) -> fx.GraphModule:
    table: Any = {**core_aten_decompositions(), **get_decompositions(MORE)}
    table[aten.split_with_sizes.default] = _split
    table[aten.mean.dim] = _mean
    table[aten.var_mean.correction] = _var_mean
    mode, pure = cast(Any, fake[0]).fake_mode, torch.func.functionalize(graph)
    with mode, enable_python_dispatcher(), torch.no_grad():
        graph_module = make_fx(pure, decomposition_table=table)(*fake)
    for node in graph_module.graph.nodes:
        if (before := _permuted_back(node)) is not None:
            node.replace_all_uses_with(before)
    return simplified(graph_module)


def _permuted_back(node: fx.Node) -> fx.Node | None:
    """The argument of a permutation that is undone at once."""
    inner = node.args[0] if node.args else None
    if node.target != aten.permute.default or not isinstance(inner, fx.Node):
        return None
    if inner.target != aten.permute.default:
        return None
    first, second = cast(Any, inner.args[1]), cast(Any, node.args[1])
    same = [first[d] for d in second] == list(range(len(first)))
    return cast(fx.Node, inner.args[0]) if same else None


def _split(a: Tensor, sizes: Sequence[int], axis: int = 0) -> list[Tensor]:
    ends = list(itertools.accumulate(sizes))
    return [aten.slice.Tensor(a, axis, end - n, end) for n, end in zip(sizes, ends, strict=True)]


def _count(a: Tensor, axes: Sequence[int] | None) -> Any:
    return math.prod(a.shape[d] for d in (axes or range(a.ndim)))


def _mean(a: Tensor, axes: Any, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return a.sum(axes, keepdim, dtype=dtype) / _count(a, axes)


def _var_mean(
    a: Tensor, axes: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    axes, least = list(axes or range(a.ndim)), 1 if correction is None else correction
    mean = a.sum(axes, True) / _count(a, axes)
    apart = a - mean
    var = (apart * apart).sum(axes, keepdim) / (_count(a, axes) - least)
    return var, mean if keepdim else mean.squeeze(axes)
