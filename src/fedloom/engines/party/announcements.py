"""What one party decides and everyone must know: it tells the hubs, and each hub its clients.

Not a message of the algorithm, and in no ledger: where a party decides what happens next, those who
run the same program from their own side must hear of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...core.errors import ProtocolError
from ...core.placed import AtHubs
from ...core.topology import Client, Party, title
from ...fabric.kinds import Key, Kind, Message
from ...transports.base import Transport

TOLD = Kind("told", "what happens next; carries a decision of the sender")


def all_here(
    hosted: Collection[Party], hubs: Collection[str], clients: Mapping[str, Sequence[Client]]
) -> bool:
    """Whether everyone shares this host."""
    known = [client for mine in clients.values() for client in mine]
    return all(party in hosted for party in (*hubs, *known))


def told(
    transport: Transport,
    hosted: Collection[Party],
    hubs: Collection[str],
    clients: Mapping[str, Sequence[Client]],
    key: Key,
    at: str,
    value: AtHubs[Any],
    seconds: float,
) -> Any:
    """The decision, at the parties hosted here; those that share a host need not be told."""
    decided: list[Any] = []
    if at in hosted:
        decided.append(value.get(at, TOLD.name))
    for hub in sorted(hubs):
        if at in hosted and hub not in hosted:
            transport.send(Message(key, TOLD.name, at, hub, decided[0]))
        elif at not in hosted and hub in hosted:
            decided.append(_hear(transport, key, at, hub, seconds))
    for silo, known in clients.items():
        for client in known:
            if silo in hosted and client not in hosted:
                transport.send(Message(key, TOLD.name, silo, client, decided[0]))
            elif silo not in hosted and client in hosted:
                decided.append(_hear(transport, key, silo, client, seconds))
    return decided[0]


def _hear(transport: Transport, key: Key, source: str, to: Party, seconds: float) -> Any:
    message = transport.mailbox(to).take(source, key, TOLD.name, seconds)
    if message is None:
        raise ProtocolError(f"{key}: {title(source)} went on without telling {title(to)}")
    return message.payload
