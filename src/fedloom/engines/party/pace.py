"""Nobody runs ahead of those who hear it: where a party has sent to another in a round and heard
nothing from it, it waits at the end of the round for a word from it.

For what was sent is kept for two rounds only, so that a party that was killed can hear it again. No
message of the algorithm, and in no ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...core.topology import Client, Party
from ...fabric.kinds import PACE, Key, Message
from ...transports.base import Transport
from .timeouts import Waits


class Pace:
    """Who has sent to whom in this round, and heard from whom, of the parties hosted here."""

    def __init__(self, hosted: Collection[Party]):
        self._hosted = hosted
        self._sent: set[tuple[Party, Party]] = set()
        self._heard: set[tuple[Party, Party]] = set()
        self._asked: set[str] = set()  # hubs whose clients were to answer

    def begin(self) -> None:
        for pairs in (self._sent, self._heard, self._asked):
            pairs.clear()

    def sent(self, party: Party, to: Party) -> None:
        self._sent.add((party, to))

    def heard(self, party: Party, source: Party) -> None:
        self._heard.add((party, source))

    def asked(self, hub: str) -> None:
        """Its clients for an answer."""
        self._asked.add(hub)

    def end(
        self, transport: Transport, key: Key, clients: Mapping[str, Sequence[Client]], waits: Waits
    ) -> None:
        """`clients`: of each hub, also those that did not answer."""
        for party, to in self._to_be_told(clients):
            if not (isinstance(to, Client) and transport.mailbox(party).is_gone(to)):
                transport.send(Message(key, PACE.name, party, to, None))
        for party, hub in sorted(self._sent - self._heard, key=str):
            if hub not in self._hosted and not isinstance(hub, Client):
                seconds = waits.for_own_hub if isinstance(party, Client) else waits.for_hub
                transport.mailbox(party).take(hub, key, PACE.name, seconds)

    def _to_be_told(self, clients: Mapping[str, Sequence[Client]]) -> list[tuple[Party, Party]]:
        """Hubs that one has heard and sent nothing to; and the clients of a hub that sent to none
        of them: a client that was late waits, too."""
        hubs = {pair for pair in self._heard - self._sent if not isinstance(pair[0], Client)}
        silent = self._asked - {source for source, to in self._sent if isinstance(to, Client)}
        own = {(hub, client) for hub in silent for client in clients[hub]}
        told = {pair for pair in hubs | own if pair[1] not in self._hosted}
        return sorted(told, key=str)
