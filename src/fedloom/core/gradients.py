"""Derivatives of local functions.

`grad` is torch.func's, and means the same. Where no transform is going on (a client by itself, a
hub, the master) it goes through plain autograd instead: several times less overhead, and layers
keep the kernels that they lose among torch.func's wrapped tensors (an LSTM on the CPU: a factor
of five). Inside a transform it takes the steps of torch.func.grad but one: to be sure that torch's
compiler is off, that one imports it, which takes as long as importing torch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from . import tree

try:  # parts of torch that may go
    from torch._C._functorch import _unwrap_for_grad
    from torch._functorch.eager_transforms import (
        _create_differentiable,
        _wrap_tensor_for_grad,
        grad_increment_nesting,
    )
except ImportError:
    grad_increment_nesting = None  # type: ignore[assignment]

Way = Callable[[Hashable, Callable[..., Any], Sequence[Any]], Any]
_way: ContextVar[Way | None] = ContextVar("derivatives of many clients", default=None)
_shorter: ContextVar[bool] = ContextVar("whether there may be a shorter way", default=False)


@contextmanager
def derivatives_by(way: Way | None) -> Iterator[None]:
    """Derivatives, and what is `whole`, inside one vmap, and nothing else, are computed by
    `way(what, f, args)`."""
    before = _way.set(way)
    try:
        yield
    finally:
        _way.reset(before)


@contextmanager
def shortening() -> Iterator[None]:
    """Local work may take a shorter way to the same result, up to its last digits."""
    before = _shorter.set(True)
    try:
        yield
    finally:
        _shorter.reset(before)


def shortened() -> bool:
    """Whether it may, here: not where derivatives are computed by another way."""
    return _shorter.get() and _way.get() is None


def whole(f: Callable[..., Any]) -> Callable[..., Any]:
    """f, which takes a derivative and goes on with it: where derivatives are compiled, all of it
    is, in one piece."""

    @wraps(f)
    def call(*args: Any) -> Any:
        way = _way.get()
        if way is None or grad_increment_nesting is None or not _in_one_vmap():
            return f(*args)
        return way(f, partial(_by_itself, f), args)

    return call


def _by_itself(f: Callable[..., Any], *args: Any) -> Any:
    with derivatives_by(None):
        return f(*args)


def grad(f: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The derivative of f, which gives one number, by some of its arguments (trees of tensors)."""
    places = (argnums,) if isinstance(argnums, int) else argnums

    @wraps(f)
    def slope(*args: Any) -> Any:
        if not _transforming() and not any(a.requires_grad for a in tree.tensors(args)):
            slopes = _plain(f, places, args)
        elif grad_increment_nesting is None:
            return torch.func.grad(f, argnums)(*args)
        elif (way := _way.get()) is not None and _in_one_vmap():
            slopes = way((f, places), partial(_inside, f, places), args)
        else:
            slopes = _inside(f, places, *args)
        return slopes[0] if isinstance(argnums, int) else tuple(slopes)

    return slope


def _plain(f: Callable[..., Tensor], places: Sequence[int], args: Sequence[Any]) -> list[Any]:
    leaves, form = tree.apart([args[place] for place in places])
    with torch.enable_grad():
        fresh = [a.detach().requires_grad_() for a in leaves]
        value = f(*_with(args, places, tree.joined(form, fresh)))
    return tree.joined(form, _slopes(value, fresh))


def _inside(f: Callable[..., Tensor], places: Sequence[int], *args: Any) -> list[Any]:
    """As torch.func.grad does it: one level deeper, and the graph kept for levels further out."""
    with grad_increment_nesting() as level, torch.enable_grad():
        own = tree.map_tensors(lambda a: _wrap_tensor_for_grad(a, level), list(args))
        fresh, form = tree.apart([own[place] for place in places])
        for a in fresh:
            _create_differentiable(a, level)
        found = _slopes(f(*own), fresh, create_graph=True)
        return tree.joined(form, [_unwrap_for_grad(a, level) for a in found])


def _with(args: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    given = list(args)
    for place, mine in zip(places, others, strict=True):
        given[place] = mine
    return given


def _slopes(value: Tensor, leaves: Sequence[Tensor], create_graph: bool = False) -> list[Tensor]:
    """Zero where the value does not depend on a tensor."""
    if not value.requires_grad or not leaves:
        return [torch.zeros_like(a) for a in leaves]
    found = torch.autograd.grad(value, leaves, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(a) if b is None else b for a, b in zip(leaves, found, strict=True)]


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


def vmaps() -> int:
    """How many levels of vmap are going on."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return sum(level.key() == torch._C._functorch.TransformType.Vmap for level in stack)


def _in_one_vmap() -> bool:
    return vmaps() == len(torch._C._functorch.get_interpreter_stack() or []) == 1
