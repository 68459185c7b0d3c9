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
from .simplify import changes, compiled, simplified

Unmet = Callable[[Sequence[Tensor]], str | None]


class Traced(NamedTuple):
    """`form`: of the result; `unmet`: why it does not hold for other tensors, or None."""

    play: Callable[..., Any]
    form: tree.Form
    unmet: Unmet


def traced(
    f: Callable[..., Any],
    tensors: Sequence[Tensor],
    form: tree.Form,
    varies: Sequence[bool],
    compile: Callable[..., Callable[..., Any]] | None = None,
) -> Traced:
    """f as a function of the tensors in its arguments. `varies`: of every axis of every tensor, in
    their order. `compile`: what makes a function of the graph, in place of running its operations
    one by one."""
    found: list[tree.Form] = []

    def flat(*mine: Tensor) -> list[Tensor]:
        results, shape = tree.apart(f(*tree.joined(form, mine)))
        found.append(shape)
        return results

    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    axes = iter(varies)
    with _disable_current_modes():  # those that are on outside, not those that f brings along
        with mode:
            fake = [mode.from_tensor(a, symbolic_context=_varying(a, axes)) for a in tensors]
        with mode, enable_python_dispatcher(), torch.no_grad():
            graph = make_fx(flat)(*fake)
        if compile is None:
            graph = simplified(graph)
            play = compiled(graph)
        else:
            play = compile(graph if changes(graph) else simplified(graph), fake)
    guards = env.produce_guards_expression(fake, ignore_static=False)
    return Traced(play, found[-1], _unmet(guards))


def _unmet(guards: str | None) -> Unmet:
    """Which of the things that were assumed about sizes does not hold for other tensors."""
    whole = ast.parse(guards or "True", mode="eval").body
    parts = [whole]
    if isinstance(whole, ast.BoolOp) and isinstance(whole.op, ast.And):
        parts = whole.values
    texts = [ast.unparse(part) for part in parts]
    codes = [compile(text, "<guards>", "eval") for text in texts]

    def unmet(given: Sequence[Tensor]) -> str | None:
        known = {"L": {f"t{i}": a for i, a in enumerate(given)}}
        each = zip(texts, codes, strict=True)
        return next((text for text, code in each if not eval(code, SYMPY_INTERP, known)), None)

    return unmet


def _varying(a: Tensor, axes: Iterator[bool]) -> StatelessSymbolicContext[Any, Any]:
    """Which axes of a tensor vary."""
    return StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DUCK if next(axes) else DimDynamic.STATIC for _ in range(a.ndim)]
    )
