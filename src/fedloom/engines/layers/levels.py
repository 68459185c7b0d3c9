"""Asks torch.func which transforms are active, by private parts of torch.

They avoid the steps of torch.func.grad that turn torch's compiler off, which import the compiler;
that takes as long as importing torch. Where one of these parts is missing, only what torch
documents is used (`core/gradients.py`), and nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...core import tree
from ...core.gradients import gradients, use_levels

try:
    from torch._C._functorch import (
        TransformType,
        _unwrap_for_grad,
        get_interpreter_stack,
        peek_interpreter_stack,
    )
    from torch._functorch.eager_transforms import (
        _create_differentiable,
        _wrap_tensor_for_grad,
        grad_increment_nesting,
    )

    KNOWN = True
except ImportError:
    KNOWN = False


def vmaps() -> int:
    """The number of active vmap levels; 0 if unknown."""
    if not KNOWN:
        return 0
    return sum(level.key() == TransformType.Vmap for level in get_interpreter_stack() or [])


class PrivateLevels:
    """Uses torch's stack of transforms."""

    def transforming(self) -> bool:
        return peek_interpreter_stack() is not None

    def in_one_vmap(self) -> bool:
        return vmaps() == len(get_interpreter_stack() or []) == 1

    def gradients(
        self, f: Callable[..., Any], places: tuple[int, ...], args: Sequence[Any]
    ) -> tuple[Sequence[Any], Any]:
        """The gradient as in torch.func.grad: one level deeper, with the graph kept for outer
        levels."""
        with grad_increment_nesting() as level, torch.enable_grad():
            wrapped_args = tree.map_tensors(lambda a: _wrap_tensor_for_grad(a, level), list(args))
            fresh, form = tree.apart([wrapped_args[place] for place in places])
            for a in fresh:
                _create_differentiable(a, level)
            value, aux = f(*wrapped_args)
            grads = gradients(value, fresh, create_graph=True)
            unwrapped = [_unwrap_for_grad(a, level) for a in grads]
            aux = tree.map_tensors(lambda a: _unwrap_for_grad(a, level), aux)
            return tree.joined(form, unwrapped), aux


if KNOWN:
    use_levels(PrivateLevels())
