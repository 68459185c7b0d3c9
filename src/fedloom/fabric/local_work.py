"""Local work: the functions that may be applied where values live, and their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar

from torch import Tensor

from ..core import tree
from ..core.errors import PlacementError
from ..core.placed import AtClients, AtHubs, Known, PerSilo, Placed
from ..core.topology import Client, Party, title

Local = Callable[..., Any]
L = TypeVar("L", bound=Local)


def name_of(f: Local) -> str:
    return getattr(f, "__qualname__", None) or repr(f)


def by_rows(f: L) -> L:
    """A decorator for local work whose result for a row depends only on that row, and on values
    that are the same at all clients of a silo. An engine may compute the rows of many clients at
    once."""
    f.by_rows = True  # type: ignore[attr-defined]
    return f


def by_rows_unless_mixed(f: L) -> L:
    """As `by_rows`, but for blocks that mix a client's rows in training."""
    f.by_rows_unless_mixed = True  # type: ignore[attr-defined]
    return f


def in_shares(f: L) -> L:
    """A decorator for local work that, with one local step, is linear in the mask.

    For clients with the same weights, its mean over them equals its result for all of their rows
    together, with each row's share in the mean as its mask. That is so where the result is a
    constant plus a sum over rows weighted by the mask. (Not where a block mixes a client's rows:
    then each client is computed by itself.)"""
    f.in_shares = True  # type: ignore[attr-defined]
    return f


def check_local(f: Local) -> None:
    """Refuse a function that has access to values of the run besides its arguments."""
    for inside in _carried(f):
        if isinstance(inside, Placed | Tensor):
            raise PlacementError(
                f"{name_of(f)} carries a value of the run inside it: pass it as an argument, so "
                "that it is known where it lives"
            )


def _carried(f: Any) -> Iterator[Any]:
    """Values that a function can access besides its arguments."""
    if isinstance(f, partial):
        yield from (*f.args, *f.keywords.values(), *_carried(f.func))
        return
    plain = getattr(f, "__func__", f)
    yield from getattr(plain, "__defaults__", None) or ()
    yield from (getattr(plain, "__kwdefaults__", None) or {}).values()
    for cell in getattr(plain, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # an empty cell
            continue


@lru_cache(256)
def giving_tensors(f: Local) -> Local:
    """f with a check that its result is made of tensors: results of clients are stacked, averaged
    or sent."""

    @wraps(f)
    def checked(*args: Any) -> Any:
        result = f(*args)
        if not all(isinstance(leaf, Tensor) for leaf in tree.leaves(result)):
            raise TypeError("it must return tensors, or tuples and dicts of tensors")
        return result

    return checked


def of_nothing(f: Local) -> Local:
    """A function without arguments, as one that ignores its argument."""

    @wraps(f)
    def ignoring(_: None) -> Any:
        return f()

    return ignoring


def argument(value: Any, party: Party, user: str) -> Any:
    """The value of a placed value at one party: the argument of a local function there."""
    if isinstance(value, Known):
        return value.value
    if isinstance(value, PerSilo):
        home = party.silo if isinstance(party, Client) else party
        if home not in value.values:
            raise PlacementError(f"{user} at {title(party)}: this is not known there")
        return value.values[home]
    if isinstance(value, AtClients) and isinstance(party, Client):
        return value.get(party, user)
    if isinstance(value, AtHubs) and isinstance(party, str):
        return value.get(party, user)
    raise misplaced(value, title(party), user)


def misplaced(value: Any, where: str, user: str) -> PlacementError:
    """The error for a value that does not live where it is used."""
    if isinstance(value, AtHubs):
        return PlacementError(
            f"{user} at {where} was given a value that lives {value.where()}: bring it down with "
            "to_clients, scatter or spread"
        )
    if isinstance(value, AtClients):
        return PlacementError(
            f"{user} at {where} was given a value that lives at the clients: bring it up with "
            "gather, mean or collect"
        )
    return PlacementError(
        f"{user} was given {type(value).__name__}, which has no place: use fed.known(...)"
    )
