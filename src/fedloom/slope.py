"""Derivatives of local functions.

`grad` is torch.func's, and means the same. Where no transform is going on (a client by itself, a
hub, the master) it goes through plain autograd instead: several times less overhead, and layers
keep the kernels that they lose among torch.func's wrapped tensors (an LSTM on the CPU: a factor
of five).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from . import tree


def grad(f: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The derivative of f, which gives one number, by some of its arguments (trees of tensors)."""

    @wraps(f)
    def slope(*args: Any) -> Any:
        if _transforming() or any(a.requires_grad for a in tree.tensors(args)):
            return torch.func.grad(f, argnums)(*args)
        places = (argnums,) if isinstance(argnums, int) else argnums
        leaves, spec = pytree.tree_flatten([args[place] for place in places])
        given = list(args)
        with torch.enable_grad():
            fresh = [a.detach().requires_grad_() for a in leaves]
            for place, mine in zip(places, pytree.tree_unflatten(fresh, spec), strict=True):
                given[place] = mine
            value = f(*given)
        found: list[Tensor | None] = [None] * len(leaves)
        if value.requires_grad:
            found = list(torch.autograd.grad(value, fresh, allow_unused=True))
        found = [
            torch.zeros_like(a) if b is None else b for a, b in zip(leaves, found, strict=True)
        ]
        slopes = pytree.tree_unflatten(found, spec)
        return slopes[0] if isinstance(argnums, int) else tuple(slopes)

    return slope


def by_row(f: Callable[..., Any], *rows: Any, loop: bool = False) -> Any:
    """f of every row, results stacked; `loop`: one after the other, for what vmap cannot run."""
    if not loop:
        return torch.func.vmap(f, in_dims=tuple(tree.axes(one, 0) for one in rows))(*rows)
    count = len(tree.tensors(rows)[0])
    lines = [tree.map_tensors(lambda a, i=i: a[i], rows) for i in range(count)]
    return tree.map_tensors(lambda *a: torch.stack(a), *(f(*line) for line in lines))


def _transforming() -> bool:
    """Whether vmap or grad of torch.func is going on."""
    return torch._C._functorch.peek_interpreter_stack() is not None
