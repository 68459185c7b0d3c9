"""The base of transports with links: a party's mailbox, its links by peer, and its state.

Subclasses make connections (`grpc/`, `carrier/`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from ...core import tree
from ...core.errors import ProtocolError
from ...core.topology import Client, Party, title
from ...fabric.kinds import Key, Message
from .. import wire
from ..mailbox import Mailbox
from .link import Link
from .party import Health, PartyTransport, Timing, TransportOptions
from .party_state import PartyState
from .position import Position


class LinkedTransport(PartyTransport):
    """The transport of party `me`, with a link to each of the `peers`. `run`: its fingerprint."""

    def __init__(
        self, me: Party, run: str, peers: Iterable[Party], **options: Unpack[TransportOptions]
    ):
        self.me = me
        timing, note = options.get("timing") or Timing(), options.get("note") or _nowhere
        self._state = PartyState(Mailbox(me), timing, note)
        self.position = options.get("position") or Position()
        shared: dict[str, Any] = {
            "cap": options.get("cap", wire.CAP),
            "permits": options.get("permits"),
            "bounds": options.get("bounds"),
            "position": self.position,
            "joins": isinstance(me, Client),
        }
        self.links: Mapping[Party, Link] = {
            peer: Link(me, peer, run, self._state.mailbox, **shared) for peer in peers
        }
        self._last: tuple[Key | None, Any, wire.Body | None] = (None, None, None)

    def send(self, message: Message) -> None:
        if message.to == self.me:
            copied = message._replace(payload=tree.copy(message.payload))
            self._state.mailbox.put(copied)
            return
        if message.to not in self.links:
            where = f"{title(self.me)} has no link to {title(message.to)}"
            raise ProtocolError(f"{message.kind}: {where}")
        self.links[message.to].post(message, self._body(message))

    def _body(self, message: Message) -> wire.Body:
        """The payload as bytes, encoded once for all receivers of a move."""
        key, payload, body = self._last
        if body is None or key != message.key or payload is not message.payload:
            body = wire.body_of(message.payload, message.kind)
            self._last = message.key, message.payload, body
        return body

    def mailbox(self, party: Party) -> Mailbox:
        if party != self.me:
            raise ProtocolError(f"{title(party)} is not here")
        return self._state.mailbox

    def pulse(self, party: Party) -> None:
        self._state.pulsed = time.monotonic()

    @property
    def cause(self) -> str | None:
        return self._state.cause

    @property
    def restore(self) -> bool:
        return self._state.restore

    def health(self) -> Health:
        return Health([*self._state.sessions], self._state.refusals, self.strangers)

    @property
    def strangers(self) -> int:
        """Connections that are not admitted yet, where a transport has such."""
        return 0

    def _is_done(self, link: Link, waited: float) -> bool:
        """Whether both sides have sent Bye, or there is no longer a point in waiting for the peer.
        After a stop, a peer whose connection has just broken has `linger` to come back and hear the
        cause; one that has been away for so long is not waited for."""
        state, connected = self._state, link.peer in self._state.sessions
        if state.cause is not None and not connected:
            waited = max(waited, state.away(link.peer))
        return (link.bye and not connected) or waited > state.timing.linger


def _nowhere(event: str, **facts: Any) -> None:
    """No log."""
