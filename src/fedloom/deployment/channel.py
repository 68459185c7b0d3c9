"""Messages beside the moves of an algorithm: one of each kind over a link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.errors import AbortedError, DataError, FedLoomError
from ..core.topology import Client, Party, title
from ..fabric.kinds import Key, Message
from ..transports.links.party import PartyTransport
from .party_file import WaitsSection


@dataclass
class Channel:
    """`moves`: kinds, by their order. Waits are graded, so that the party next to a silent one
    names it."""

    transport: PartyTransport
    me: Party
    moves: Mapping[str, int]
    waits: WaitsSection

    def open(self) -> None:
        """Until all peers are connected."""
        self.transport.open()
        self.transport.await_peers(self.transport.links, self.waits.start)

    def send(self, kind: str, to: Party, payload: Mapping[str, Tensor], round: int = 0) -> None:
        key = Key(round, self.moves[kind])
        self.transport.send(Message(key, kind, self.me, to, dict(payload)))

    def receive(self, kind: str, source: Party, round: int = 0) -> Any:
        key = Key(round, self.moves[kind])
        message = self.transport.mailbox(self.me).take(source, key, kind, self._seconds(source))
        if message is None:
            raise DataError(f"protocol violation: {title(source)} skipped its {kind}")
        return message.payload

    def _seconds(self, source: Party) -> float:
        """How long to wait; others may still be waiting for somebody to connect."""
        steps = 1 if isinstance(source, Client) else 4 if isinstance(self.me, Client) else 2
        return self.waits.start + steps * self.waits.patience

    def fail(self, problem: BaseException) -> None:
        """Tells everyone why."""
        if self.transport.cause is None and not isinstance(problem, AbortedError):
            why = str(problem) if isinstance(problem, FedLoomError) else "it stopped before the end"
            self.transport.abort(f"{title(self.me)}: {why}")

    def close(self) -> None:
        self.transport.close()

    @property
    def cause(self) -> str | None:
        return self.transport.cause

    def totals(self) -> dict[str, Any]:
        """Bytes to and from each peer, and by kind of what left."""
        links = self.transport.links.items()
        return {
            "links": {str(peer): dict(link.counts) for peer, link in links},
            "left": {str(peer): dict(link.left) for peer, link in links},
        }
