"""The parties of a run: N silos, each with a hub and K_j clients, and perhaps a server.

A hub is named by its silo, the server by SERVER, a client by (silo, name). Hubs form a complete
graph; a client talks to its own hub only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .errors import DataError

SERVER = "server"


class Client(NamedTuple):
    """A client of a silo: it holds some of the silo's rows."""

    silo: str
    name: str

    def __str__(self) -> str:
        return f"{self.silo}/{self.name}"


Party = str | Client
"""A hub, by the name of its silo; the server, by SERVER; or a client."""


def title(party: Party) -> str:
    """The name of a party in errors and logs."""
    if isinstance(party, Client):
        return f"client {party}"
    return party if party == SERVER else f"hub {party}"


@dataclass(frozen=True)
class Topology:
    """Silos in canonical order, with the names of their clients in canonical order."""

    clients: Mapping[str, tuple[str, ...]]
    server: bool = False

    def __post_init__(self) -> None:
        if not self.clients:
            raise DataError("a federation needs at least one silo")
        for silo, names in self.clients.items():
            if silo == SERVER or "/" in silo or not silo:
                raise DataError(f"{silo!r} cannot be a silo's name (no '/', not {SERVER!r})")
            if not names:
                raise DataError(f"silo {silo} has no clients")
            if len(set(names)) != len(names):
                raise DataError(f"silo {silo} names a client twice")

    @property
    def silos(self) -> tuple[str, ...]:
        return tuple(self.clients)

    def of(self, silo: str) -> tuple[Client, ...]:
        """The clients of a silo, in order."""
        return tuple(Client(silo, name) for name in self.clients[silo])

    @property
    def parties(self) -> tuple[Party, ...]:
        """All parties: hubs, then clients silo by silo, then the server."""
        everyone: list[Party] = [*self.silos]
        for silo in self.silos:
            everyone += self.of(silo)
        return (*everyone, SERVER) if self.server else tuple(everyone)


def known_to(topology: Topology, parties: Sequence[Party]) -> dict[str, tuple[str, ...]]:
    """The clients whose names these parties know: a hub knows its clients, a client itself."""
    hubs = {party for party in parties if isinstance(party, str)}
    clients = {party for party in parties if isinstance(party, Client)}
    known = {
        silo: tuple(c.name for c in topology.of(silo) if silo in hubs or c in clients)
        for silo in topology.silos
    }
    return {silo: names for silo, names in known.items() if names}
