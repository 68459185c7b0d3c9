"""Trees of tensors: dicts, tuples and NamedTuples whose leaves are tensors or constants.

Leaves that are not tensors (a silo's part of the model, a label that is absent) are passed through
unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Tree = Any


def map_tensors(f: Callable[..., Any], first: Tree, *others: Tree) -> Tree:
    """f of corresponding tensors; other leaves are those of the first tree."""
    if type(first) is Tensor or isinstance(first, Tensor):
        return f(first, *others)
    if isinstance(first, dict):
        if not others:
            return {k: map_tensors(f, a) for k, a in first.items()}
        if any(first.keys() != other.keys() for other in others):
            raise ValueError("trees with different keys")
        return {k: map_tensors(f, a, *[other[k] for other in others]) for k, a in first.items()}
    if isinstance(first, tuple | list):
        if any(len(first) != len(other) for other in others):
            raise ValueError("trees of different lengths")
        parts = [map_tensors(f, *items) for items in zip(first, *others, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first


def unbound(tree: Tree, count: int) -> list[Tree]:
    """A tree whose tensors are stacked along their first axis, as `count` trees."""
    tensors, form = apart(tree)
    if not tensors:
        return [tree] * count
    return [joined(form, slices) for slices in zip(*[a.unbind() for a in tensors], strict=True)]


Form = Any  # a tree without its tensors; hashable


class _Opaque:
    """A leaf that is no tensor and no plain constant: compared by identity."""

    def __init__(self, leaf: Any):
        self.leaf = leaf

    def __hash__(self) -> int:
        return id(self.leaf)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Opaque) and self.leaf is other.leaf


_HOLE = _Opaque(None)  # stands for a tensor
_PLAIN = (int, float, bool, str, bytes, type(None))


def apart(tree: Tree) -> tuple[list[Tensor], Form]:
    """A tree's tensors, and its form: the rest of it."""
    tensors: list[Tensor] = []
    return tensors, _form(tree, tensors)


def _form(tree: Tree, tensors: list[Tensor]) -> Form:
    if type(tree) is Tensor or isinstance(tree, Tensor):
        tensors.append(tree)
        return _HOLE
    kind = type(tree)
    if kind is dict:
        return (dict, tuple(tree), tuple([_form(a, tensors) for a in tree.values()]))
    if isinstance(tree, tuple | list):
        return (kind, None, tuple([_form(a, tensors) for a in tree]))
    return (kind, tree, None) if kind in _PLAIN else _Opaque(tree)


def joined(form: Form, tensors: Iterable[Tensor]) -> Tree:
    """The inverse of `apart`: the tree of this form with these tensors."""
    return _filled(form, iter(tensors))


def _filled(form: Form, tensors: Iterator[Tensor]) -> Tree:
    if form is _HOLE:
        return next(tensors)
    if isinstance(form, _Opaque):
        return form.leaf
    kind, names, parts = form
    if parts is None:
        return names
    inside = [_filled(part, tensors) for part in parts]
    if kind is dict:
        return dict(zip(names, inside, strict=True))
    return kind(*inside) if hasattr(kind, "_fields") else kind(inside)


def axes(tree: Tree, axis: int | None) -> Tree:
    """`axis` for every tensor and None for every other leaf: vmap's in_dims."""
    if isinstance(tree, dict):
        return {k: axes(a, axis) for k, a in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [axes(a, axis) for a in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return axis if isinstance(tree, Tensor) else None


def leaves(tree: Tree) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def tensors(tree: Tree) -> list[Tensor]:
    collected: list[Tensor] = []
    _collect(tree, collected)
    return collected


def _collect(tree: Tree, collected: list[Tensor]) -> None:
    if type(tree) is Tensor:
        collected.append(tree)
    elif type(tree) is dict:
        for part in tree.values():
            _collect(part, collected)
    elif isinstance(tree, tuple | list):
        for part in tree:
            _collect(part, collected)
    elif isinstance(tree, Tensor):
        collected.append(tree)


def named(tree: Tree) -> dict[str, Tensor]:
    """The tensors of a tree by their path in it, as text."""
    tensors, form = apart(tree)
    return dict(zip(described(form)[0], tensors, strict=True))


def described(form: Form) -> tuple[list[str], list[Any]]:
    """The paths of a form's tensors, as text, and its other leaves."""
    places: list[str] = []
    others: list[Any] = []
    _describe(form, "", places, others)
    return places, others


def _describe(form: Form, at: str, places: list[str], others: list[Any]) -> None:
    if form is _HOLE:
        places.append(at)
        return
    kind, names, parts = (None, form.leaf, None) if isinstance(form, _Opaque) else form
    if parts is None:
        if names is not None:
            others.append(names)
        return
    fields = names if kind is dict else getattr(kind, "_fields", range(len(parts)))
    for field, part in zip(fields, parts, strict=True):
        own = f".{field}" if hasattr(kind, "_fields") else f"[{field!r}]"
        _describe(part, at + own, places, others)


def filled(like: Tree, tensors: Mapping[str, Tensor]) -> Tree:
    """The tree with other tensors, given by path; KeyError where one is missing."""
    _, form = apart(like)
    return joined(form, [tensors[path] for path in described(form)[0]])


def nbytes(tree: Tree) -> int:
    """Bytes of payload, without framing."""
    return sum([a.nbytes for a in tensors(tree)])


def is_finite(tree: Tree) -> bool:
    """Whether no number is NaN or infinite. A sum that is finite proves it; only where it is not
    (perhaps it only overflowed) every number is checked."""
    real = [a for a in tensors(tree) if a.is_floating_point()]
    sums = [a.sum() for a in real]
    totals = [float(sums[0])] if len(sums) == 1 else torch.stack(sums).tolist() if sums else []
    return all(map(math.isfinite, totals)) or all(bool(torch.isfinite(a).all()) for a in real)


def copy(tree: Tree) -> Tree:
    return map_tensors(lambda a: a.detach().clone(), tree)


def sent(tree: Tree, device: torch.device) -> Tree:
    """The tree on this device. A copy to a GPU is asynchronous."""

    if device.type != "cuda":
        if type(tree) is Tensor:
            return tree if tree.device == device else tree.to(device)
        return map_tensors(lambda a: a.to(device), tree)

    def to_gpu(a: Tensor) -> Tensor:
        return a.pin_memory().to(device, non_blocking=True) if a.device.type == "cpu" else a

    return map_tensors(to_gpu, tree)


def add(first: Tree, second: Tree) -> Tree:
    return map_tensors(torch.add, first, second)


def scale(tree: Tree, factor: Any) -> Tree:
    return map_tensors(lambda a: a * factor, tree)


def widened(tree: Tree) -> Tree:
    """In double precision, so that rounding in sums over many clients does not show."""
    return map_tensors(lambda a: a.double(), tree)


def divided(total: Tree, by: float, like: Tree) -> Tree:
    """A sum in double precision, divided, in the precision of another tree."""
    return map_tensors(lambda a, b: (a / by).to(b.dtype), total, like)


def signature(tree: Tree, without: int = 0) -> tuple[Any, ...]:
    """Structure, shapes and dtypes: equal for trees that can be stacked. `without`: the number of
    leading axes to leave out."""
    if isinstance(tree, Tensor):
        return (tuple(tree.shape)[without:], tree.dtype)
    if isinstance(tree, dict):
        return ("dict", tuple(tree), tuple([signature(a, without) for a in tree.values()]))
    if isinstance(tree, tuple | list):
        return (type(tree).__name__, tuple([signature(a, without) for a in tree]))
    return (type(tree).__name__,)


def largest_difference(first: Tree, second: Tree) -> float:
    """The largest absolute difference; infinite where the trees differ in structure or shape, or
    where either is not finite."""
    if signature(first) != signature(second):
        return float("inf")
    worst = 0.0
    for a, b in zip(tensors(first), tensors(second), strict=True):
        if a.numel():
            largest = float((a.double() - b.double()).abs().max())
            worst = max(worst, float("inf") if math.isnan(largest) else largest)
    return worst
