"""What is known of torch.func's transforms, by parts of torch that may go.

They save the steps of torch.func.grad that make sure torch's compiler is off: it imports the
compiler for that, which takes as long as importing torch. Where one of these parts is missing,
everything goes by what torch documents (`core/gradients.py`), and nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

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
    """How many levels of vmap are going on, as far as that can be known."""
    if not KNOWN:
        return 0
    return sum(level.key() == TransformType.Vmap for level in get_interpreter_stack() or [])


class PrivateLevels:
    """By torch's own stack of transforms."""

    def transforming(self) -> bool:
        return peek_interpreter_stack() is not None

    def in_one_vmap(self) -> bool:
        return vmaps() == len(get_interpreter_stack() or []) == 1

    def gradients(
        self, f: Callable[..., Tensor], places: tuple[int, ...], args: Sequence[Any]
    ) -> Sequence[Any]:
        """As torch.func.grad does it: one level deeper, the graph kept for levels further out."""
        with grad_increment_nesting() as level, torch.enable_grad():
            own = tree.map_tensors(lambda a: _wrap_tensor_for_grad(a, level), list(args))
            fresh, form = tree.apart([own[place] for place in places])
            for a in fresh:
                _create_differentiable(a, level)
            found = gradients(f(*own), fresh, create_graph=True)
            return tree.joined(form, [_unwrap_for_grad(a, level) for a in found])


if KNOWN:
    use_levels(PrivateLevels())
