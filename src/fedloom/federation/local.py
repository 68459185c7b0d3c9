"""Local work: which functions may be applied where values live, and what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..errors import PlacementError
from .placed import AtClients, AtHubs, Known, PerSilo, Placed
from .topology import Client, Party, title

Local = Callable[..., Any]


def name_of(f: Local) -> str:
    return getattr(f, "__qualname__", repr(f))


def check_local(f: Local) -> None:
    """A local function sees its arguments and nothing else of the run."""
    plain = getattr(f, "__func__", f)
    for cell in getattr(plain, "__closure__", None) or ():
        try:
            inside = cell.cell_contents
        except ValueError:  # a cell that is not filled yet
            continue
        if isinstance(inside, Placed | Tensor):
            raise PlacementError(
                f"{name_of(f)} carries a value of the run inside it: pass it as an argument, so "
                "that it is known where it lives"
            )


def argument(value: Any, party: Party, user: str) -> Any:
    """A placed value as a local function at a party is given it."""
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
    """The error for a value that is not where it is used."""
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
