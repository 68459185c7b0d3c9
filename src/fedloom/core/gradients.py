"""Gradients of local functions.

`grad` is torch.func's, and means the same. Where no transform is going on (a client by itself, a
hub, the master) it goes through plain autograd instead: several times less overhead, and layers
keep the kernels that they lose among torch.func's wrapped tensors (an LSTM on the CPU: a factor
of five). Inside a transform it is `torch.func.grad`, unless an engine knows a faster one
(`use_levels`). Engines may also compute gradients and local steps in their own way (`gradients_by`,
`steps_by`); an algorithm sees none of that.
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

Way = Callable[[Hashable, Callable[..., Any], Sequence[Any]], Any]
StepsWay = Callable[..., Any]
_way: ContextVar[Way | None] = ContextVar("gradients of many clients", default=None)
_steps_way: ContextVar[StepsWay | None] = ContextVar("local steps of many clients", default=None)


class Levels(Protocol):
    """What is known of the transforms of torch.func that are going on."""

    def transforming(self) -> bool:
        """Whether there are any."""

    def in_one_vmap(self) -> bool:
        """Whether there is one, a vmap."""

    def gradients(
        self, f: Callable[..., Tensor], places: tuple[int, ...], args: Sequence[Any]
    ) -> Sequence[Any]:
        """Those of f by the arguments at these places, inside a transform."""


class PublicLevels:
    """By what torch documents."""

    def transforming(self) -> bool:
        try:
            torch.zeros(()).requires_grad_()
        except RuntimeError:  # it is refused inside of transforms, and nowhere else
            return True
        return False

    def in_one_vmap(self) -> bool:
        return False  # it cannot be known, so that nothing is compiled

    def gradients(
        self, f: Callable[..., Tensor], places: tuple[int, ...], args: Sequence[Any]
    ) -> Sequence[Any]:
        return torch.func.grad(f, places)(*args)


_levels: Levels = PublicLevels()


def use_levels(levels: Levels) -> Levels:
    """From now on, ask these; those before are given back. Results are the same."""
    global _levels
    before, _levels = _levels, levels
    return before


@contextmanager
def gradients_by(way: Way | None) -> Iterator[None]:
    """Gradients, and what is `whole`, inside one vmap, and nothing else, are computed by
    `way(what, f, args)`."""
    before = _way.set(way)
    try:
        yield
    finally:
        _way.reset(before)


@contextmanager
def steps_by(way: StepsWay | None) -> Iterator[None]:
    """Plain local steps are offered to `way(descend, *args)`, which gives their result up to the
    last digits, or None for "I cannot"."""
    before = _steps_way.set(way)
    try:
        yield
    finally:
        _steps_way.reset(before)


def plain_steps(descend: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Marks local steps along a loss's gradient, which go down by `descend` and are nothing else
    where they are given no keyword: an engine may know a shorter way (`steps_by`)."""

    def mark(steps: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(steps)
        def call(*args: Any, **more: Any) -> Any:
            way = _steps_way.get()
            if way is not None and _way.get() is None and not any(more.values()):
                result = way(descend, *args)
                if result is not None:
                    return result
            return steps(*args, **more)

        return call

    return mark


def whole(f: Callable[..., Any]) -> Callable[..., Any]:
    """f, which takes a gradient and goes on with it: where gradients are compiled, all of it is, in
    one piece."""

    @wraps(f)
    def call(*args: Any) -> Any:
        way = _way.get()
        if way is None or not _levels.in_one_vmap():
            return f(*args)
        return way(f, partial(_by_itself, f), args)

    return call


def _by_itself(f: Callable[..., Any], *args: Any) -> Any:
    with gradients_by(None):
        return f(*args)


def grad(f: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The gradient of f, which gives one number, by some of its arguments (trees of tensors)."""
    places = (argnums,) if isinstance(argnums, int) else argnums

    @wraps(f)
    def gradient(*args: Any) -> Any:
        if not _levels.transforming() and not any(a.requires_grad for a in tree.tensors(args)):
            found = _plain(f, places, args)
        elif (way := _way.get()) is not None and _levels.in_one_vmap():
            found = way((f, places), partial(_inside, f, places), args)
        else:
            found = _inside(f, places, *args)
        return found[0] if isinstance(argnums, int) else tuple(found)

    return gradient


def _inside(f: Callable[..., Tensor], places: tuple[int, ...], *args: Any) -> Any:
    return _levels.gradients(f, places, args)


def _plain(f: Callable[..., Tensor], places: Sequence[int], args: Sequence[Any]) -> list[Any]:
    leaves, form = tree.apart([args[place] for place in places])
    with torch.enable_grad():
        fresh = [a.detach().requires_grad_() for a in leaves]
        value = f(*_with(args, places, tree.joined(form, fresh)))
    return tree.joined(form, gradients(value, fresh))


def _with(args: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    given = list(args)
    for place, mine in zip(places, others, strict=True):
        given[place] = mine
    return given


def gradients(value: Tensor, leaves: Sequence[Tensor], create_graph: bool = False) -> list[Tensor]:
    """Those of a value by tensors; zero where it does not depend on one."""
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
