"""Gradients of local functions.

`grad` means the same as torch.func's. Outside of transforms (one client alone, a hub, the master)
it uses plain autograd: several times less overhead, and layers keep the fast kernels that they lose
under torch.func (an LSTM on the CPU: a factor of five). Inside a transform it is `torch.func.grad`,
unless an engine has a faster one (`use_levels`).

Engines may also compute gradients and local steps in their own way (`gradients_by`, `steps_by`).
Algorithms do not depend on that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Protocol

import torch
from torch import Tensor

from . import tree

GradientWay = Callable[[Hashable, Callable[..., Any], Sequence[Any]], Any]
StepsWay = Callable[..., Any]
_gradient_way: ContextVar[GradientWay | None] = ContextVar(
    "gradients of many clients", default=None
)
_steps_way: ContextVar[StepsWay | None] = ContextVar("local steps of many clients", default=None)


class Levels(Protocol):
    """Facts about the current transforms of torch.func."""

    def transforming(self) -> bool:
        """Whether any transform is active."""

    def in_one_vmap(self) -> bool:
        """Whether exactly one transform is active, and it is a vmap."""

    def gradients(
        self, f: Callable[..., Any], places: tuple[int, ...], args: Sequence[Any]
    ) -> tuple[Sequence[Any], Any]:
        """The gradients of f by the arguments at these positions, inside a transform; and what else
        f gives: it returns a number and a tree."""


class PublicLevels:
    """Uses the documented interface of torch only."""

    def transforming(self) -> bool:
        try:
            torch.zeros(()).requires_grad_()
        except RuntimeError:  # torch refuses this inside of transforms only
            return True
        return False

    def in_one_vmap(self) -> bool:
        return False  # unknown, so nothing is compiled

    def gradients(
        self, f: Callable[..., Any], places: tuple[int, ...], args: Sequence[Any]
    ) -> tuple[Sequence[Any], Any]:
        return torch.func.grad(f, places, has_aux=True)(*args)


_levels: Levels = PublicLevels()


def use_levels(levels: Levels) -> Levels:
    """Use these levels from now on; returns the previous ones. Results do not change."""
    global _levels
    before, _levels = _levels, levels
    return before


@contextmanager
def gradients_by(way: GradientWay | None) -> Iterator[None]:
    """Inside exactly one vmap, compute gradients and functions marked `whole` by `way(key, f,
    args)`."""
    before = _gradient_way.set(way)
    try:
        yield
    finally:
        _gradient_way.reset(before)


@contextmanager
def steps_by(way: StepsWay | None) -> Iterator[None]:
    """Offer plain local steps to `way(descend, *args)`. It returns their result, equal up to
    rounding, or None to decline."""
    before = _steps_way.set(way)
    try:
        yield
    finally:
        _steps_way.reset(before)


def plain_steps(descend: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Mark local steps that follow the gradient of a loss by `descend`, and do nothing else when
    called without keywords: an engine may compute them in a shorter way (`steps_by`)."""

    def mark(steps: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(steps)
        def call(*args: Any, **more: Any) -> Any:
            steps_way = _steps_way.get()
            if steps_way is not None and _gradient_way.get() is None and not any(more.values()):
                result = steps_way(descend, *args)
                if result is not None:
                    return result
            return steps(*args, **more)

        return call

    return mark


def whole(f: Callable[..., Any]) -> Callable[..., Any]:
    """Mark f, which takes a gradient and uses it: where gradients are compiled, all of f is
    compiled in one piece."""

    @wraps(f)
    def call(*args: Any) -> Any:
        way = _gradient_way.get()
        if way is None or not _levels.in_one_vmap():
            return f(*args)
        return way(f, partial(_uncompiled, f), args)

    return call


def _uncompiled(f: Callable[..., Any], *args: Any) -> Any:
    with gradients_by(None):
        return f(*args)


def grad(
    f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The gradient of f, which returns one number, by some of its arguments (trees of tensors).
    `has_aux`: f returns the number and a tree, and so does its gradient."""
    places = (argnums,) if isinstance(argnums, int) else argnums

    @wraps(f)
    def gradient(*args: Any) -> Any:
        if not _levels.transforming() and not any(a.requires_grad for a in tree.tensors(args)):
            results, aux = _autograd_gradients(f, places, has_aux, args)
        elif (way := _gradient_way.get()) is not None and _levels.in_one_vmap():
            compute = partial(_transformed_gradients, f, places, has_aux)
            results, aux = way((f, places), compute, args)
        else:
            results, aux = _transformed_gradients(f, places, has_aux, *args)
        chosen = results[0] if isinstance(argnums, int) else tuple(results)
        return (chosen, aux) if has_aux else chosen

    return gradient


def _transformed_gradients(
    f: Callable[..., Any], places: tuple[int, ...], has_aux: bool, *args: Any
) -> Any:
    return _levels.gradients(f if has_aux else partial(_without_aux, f), places, args)


def _without_aux(f: Callable[..., Tensor], *args: Any) -> tuple[Tensor, tuple[()]]:
    return f(*args), ()


def _autograd_gradients(
    f: Callable[..., Any], places: Sequence[int], has_aux: bool, args: Sequence[Any]
) -> tuple[list[Any], Any]:
    leaves, form = tree.apart([args[place] for place in places])
    with torch.enable_grad():
        fresh = [a.detach().requires_grad_() for a in leaves]
        result = f(*_replaced(args, places, tree.joined(form, fresh)))
    value, aux = result if has_aux else (result, ())
    aux = tree.map_tensors(Tensor.detach, aux)
    return tree.joined(form, gradients(value, fresh)), aux


def _replaced(args: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    replaced = list(args)
    for place, value in zip(places, values, strict=True):
        replaced[place] = value
    return replaced


def gradients(value: Tensor, leaves: Sequence[Tensor], create_graph: bool = False) -> list[Tensor]:
    """The gradients of a value by tensors; zero where it does not depend on a tensor."""
    if not value.requires_grad or not leaves:
        return [torch.zeros_like(a) for a in leaves]
    grads = torch.autograd.grad(value, leaves, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(a) if b is None else b for a, b in zip(leaves, grads, strict=True)]


def by_row(f: Callable[..., Any], *rows: Any, loop: bool = False) -> Any:
    """Apply f to every row and stack the results. `loop`: one row after the other, for functions
    that vmap cannot run."""
    if not loop:
        return torch.func.vmap(
            f, in_dims=tuple(tree.axes(tree_of_rows, 0) for tree_of_rows in rows)
        )(*rows)
    count = len(tree.tensors(rows)[0])
    by_index = [tree.map_tensors(lambda a, i=i: a[i], rows) for i in range(count)]
    return tree.map_tensors(lambda *a: torch.stack(a), *(f(*row) for row in by_index))
