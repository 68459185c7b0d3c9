"""Tracing a function of tensors, with axes that may vary, into torch's operations."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    SYMPY_INTERP,
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._python_dispatch import _disable_current_modes

from ....core import tree
from .simplify import as_function, mutation, simplified

Unmet = Callable[[Sequence[Tensor]], str | None]


class Trace(NamedTuple):
    """A traced function. `form`: of the result; `unmet`: why it is not valid for other tensors, or
    None."""

    run: Callable[..., Any]
    form: tree.Form
    unmet: Unmet


def traced(
    f: Callable[..., Any],
    tensors: Sequence[Tensor],
    form: tree.Form,
    varies: Sequence[bool],
    compile: Callable[..., Callable[..., Any]] | None = None,
) -> Trace:
    """Trace f as a function of the tensors in its arguments. `varies`: for every axis of every
    tensor, in order, whether its size varies. `compile`: makes a function of the graph, instead of
    running its operations one by one."""
    forms: list[tree.Form] = []

    def flat(*flat_args: Tensor) -> list[Tensor]:
        results, shape = tree.apart(f(*tree.joined(form, flat_args)))
        forms.append(shape)
        return results

    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    axes = iter(varies)
    with _disable_current_modes():  # the modes outside, not those that f uses itself
        with mode:
            fake = [mode.from_tensor(a, symbolic_context=_varying(a, axes)) for a in tensors]
        with mode, enable_python_dispatcher(), torch.no_grad():
            graph = make_fx(flat)(*fake)
        if compile is None:
            graph = simplified(graph)
            run = as_function(graph)
        else:
            run = compile(graph if mutation(graph) else simplified(graph), fake)
    guards = env.produce_guards_expression(fake, ignore_static=False)
    return Trace(run, forms[-1], _unmet(guards))


def _unmet(guards: str | None) -> Unmet:
    """A check of the guards that tracing assumed; it returns the first that fails, as text."""
    expression = ast.parse(guards or "True", mode="eval").body
    parts = [expression]
    if isinstance(expression, ast.BoolOp) and isinstance(expression.op, ast.And):
        parts = expression.values
    texts = [ast.unparse(part) for part in parts]
    codes = [compile(text, "<guards>", "eval") for text in texts]

    def unmet(tensors: Sequence[Tensor]) -> str | None:
        scope = {"L": {f"t{i}": a for i, a in enumerate(tensors)}}
        guards = zip(texts, codes, strict=True)
        return next((text for text, code in guards if not eval(code, SYMPY_INTERP, scope)), None)

    return unmet


def _varying(a: Tensor, axes: Iterator[bool]) -> StatelessSymbolicContext[Any, Any]:
    """The symbolic axes of a tensor."""
    return StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DUCK if next(axes) else DimDynamic.STATIC for _ in range(a.ndim)]
    )
