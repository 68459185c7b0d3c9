"""Keeps parties within one round of each other.

A party that has sent to another in a round, and received nothing from it, waits for a word from it
at the round's end. Sent messages are kept for two rounds only, so that a restarted party can
receive them again; a sender that ran ahead would lose some. These words are no messages of the
algorithm, and are in no ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...core.topology import Client, Party
from ...fabric.kinds import PACE, Key, Message
from ...transports.base import Transport
from .timeouts import Waits


class Pace:
    """Which parties hosted here have sent to whom in this round, and received from whom."""

    def __init__(self, hosted: Collection[Party]):
        self._hosted = hosted
        self._sent: set[tuple[Party, Party]] = set()
        self._heard: set[tuple[Party, Party]] = set()
        self._asked: set[str] = set()  # hubs whose clients had to answer

    def begin(self) -> None:
        for pairs in (self._sent, self._heard, self._asked):
            pairs.clear()

    def sent(self, party: Party, to: Party) -> None:
        self._sent.add((party, to))

    def heard(self, party: Party, source: Party) -> None:
        self._heard.add((party, source))

    def asked(self, hub: str) -> None:
        """This hub has asked its clients for an answer."""
        self._asked.add(hub)

    def end(
        self, transport: Transport, key: Key, clients: Mapping[str, Sequence[Client]], waits: Waits
    ) -> None:
        """Exchange the words. `clients`: of each hub, absent ones too."""
        for party, to in self._unanswered(clients):
            if not (isinstance(to, Client) and transport.mailbox(party).is_gone(to)):
                transport.send(Message(key, PACE.name, party, to, None))
        for party, hub in sorted(self._sent - self._heard, key=str):
            if hub not in self._hosted and not isinstance(hub, Client):
                seconds = waits.for_own_hub if isinstance(party, Client) else waits.for_hub
                transport.mailbox(party).take(hub, key, PACE.name, seconds)

    def _unanswered(self, clients: Mapping[str, Sequence[Client]]) -> list[tuple[Party, Party]]:
        """Pairs of a party and the party that it owes a word: hubs that it received from and sent
        nothing to; and, for a hub that sent to none of its clients, all of them, since a late
        client waits, too."""
        to_hubs = {pair for pair in self._heard - self._sent if not isinstance(pair[0], Client)}
        silent = self._asked - {source for source, to in self._sent if isinstance(to, Client)}
        to_clients = {(hub, client) for hub in silent for client in clients[hub]}
        unanswered = {pair for pair in to_hubs | to_clients if pair[1] not in self._hosted}
        return sorted(unanswered, key=str)
