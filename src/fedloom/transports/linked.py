"""What every transport is that has links: a party's mailbox, its links by peer, how it stands.

What is missing is what carries: how connections come about, and end (`grpc/`, `carried.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from ..core import tree
from ..core.errors import ProtocolError
from ..core.topology import Client, Party, title
from ..fabric.kinds import Key, Message
from . import wire
from .link import Link
from .mailbox import Mailbox
from .party import Health, PartyTransport, Rules, Timing
from .position import Position
from .standing import Standing


class LinkedTransport(PartyTransport):
    """Of `me`, with a link to each of the `peers`, in the run with this fingerprint."""

    def __init__(self, me: Party, run: str, peers: Iterable[Party], **rules: Unpack[Rules]):
        self.me = me
        timing, note = rules.get("timing") or Timing(), rules.get("note") or _nowhere
        self._standing = Standing(Mailbox(me), timing, note)
        self.position = rules.get("position") or Position()
        held: dict[str, Any] = {
            "cap": rules.get("cap", wire.CAP),
            "permits": rules.get("permits"),
            "bounds": rules.get("bounds"),
            "position": self.position,
            "joins": isinstance(me, Client),
        }
        self.links: Mapping[Party, Link] = {
            peer: Link(me, peer, run, self._standing.mailbox, **held) for peer in peers
        }
        self._last: tuple[Key | None, Any, wire.Body | None] = (None, None, None)

    def send(self, message: Message) -> None:
        if message.to == self.me:
            copied = message._replace(payload=tree.copy(message.payload))
            self._standing.mailbox.put(copied)
            return
        if message.to not in self.links:
            where = f"{title(self.me)} has no link to {title(message.to)}"
            raise ProtocolError(f"{message.kind}: {where}")
        self.links[message.to].post(message, self._body(message))

    def _body(self, message: Message) -> wire.Body:
        """The payload as bytes: once for all who are sent the same in a move."""
        key, payload, body = self._last
        if body is None or key != message.key or payload is not message.payload:
            body = wire.body_of(message.payload, message.kind)
            self._last = message.key, message.payload, body
        return body

    def mailbox(self, party: Party) -> Mailbox:
        if party != self.me:
            raise ProtocolError(f"{title(party)} is not here")
        return self._standing.mailbox

    def pulse(self, party: Party) -> None:
        self._standing.pulsed = time.monotonic()

    @property
    def cause(self) -> str | None:
        return self._standing.cause

    @property
    def restore(self) -> bool:
        return self._standing.restore

    def health(self) -> Health:
        return Health([*self._standing.talks], self._standing.refusals, self.strangers)

    @property
    def strangers(self) -> int:
        """Connections that have not been let in, where a transport has such."""
        return 0

    def _is_done(self, link: Link, waited: float) -> bool:
        """Both have said goodbye; or the other is not there to hear why the run was stopped."""
        standing, here = self._standing, link.peer in self._standing.talks
        patience = standing.timing.linger
        if standing.cause is not None and not here:
            patience = min(patience, standing.timing.silence / 2)
        return (link.bye and not here) or waited > patience


def _nowhere(event: str, **facts: Any) -> None:
    """No log."""
