"""Announcements: a decision of one party, sent to all hubs and by each hub to its clients.

All parties run the same program from their own side, so they must learn what one of them decides.
An announcement is no message of the algorithm, and is in no ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...core.errors import ProtocolError
from ...core.placed import AtHubs
from ...core.topology import Client, Party, title
from ...fabric.engine import RunIsOver
from ...fabric.kinds import Key, Kind, Message
from ...transports.base import Transport

ANNOUNCEMENT = Kind("told", "what happens next; carries a decision of the sender")


def all_hosted(
    hosted: Collection[Party], hubs: Collection[str], clients: Mapping[str, Sequence[Client]]
) -> bool:
    """Whether this process hosts all parties."""
    all_clients = [client for of_hub in clients.values() for client in of_hub]
    return all(party in hosted for party in (*hubs, *all_clients))


def announced(
    transport: Transport,
    hosted: Collection[Party],
    hubs: Collection[str],
    clients: Mapping[str, Sequence[Client]],
    key: Key,
    at: str,
    value: AtHubs[Any],
    seconds: float,
) -> Any:
    """Announce a decision and return it. `value`: the decision, at the party `at` that made it.
    Parties in one process need no message."""
    decisions: list[Any] = []
    if at in hosted:
        decisions.append(value.get(at, ANNOUNCEMENT.name))
    for hub in sorted(hubs):
        if at in hosted and hub not in hosted:
            transport.send(Message(key, ANNOUNCEMENT.name, at, hub, decisions[0]))
        elif at not in hosted and hub in hosted:
            decisions.append(_receive(transport, key, at, hub, seconds))
    for silo, of_silo in clients.items():
        for client in of_silo:
            if silo in hosted and client not in hosted:
                transport.send(Message(key, ANNOUNCEMENT.name, silo, client, decisions[0]))
            elif silo not in hosted and client in hosted:
                decisions.append(_receive(transport, key, silo, client, seconds))
    return decisions[0]


def _receive(transport: Transport, key: Key, source: str, to: Party, seconds: float) -> Any:
    mailbox = transport.mailbox(to)
    message = mailbox.take(source, key, ANNOUNCEMENT.name, seconds)
    if message is None and isinstance(to, Client) and mailbox.is_at_its_end(source):
        raise RunIsOver
    if message is None:
        raise ProtocolError(
            f"{key}: {title(source)} continued without announcing its decision to {title(to)}"
        )
    return message.payload
