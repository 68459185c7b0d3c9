"""Parties in one process: a message is copied into the receiver's mailbox."""

from __future__ import annotations

from collections.abc import Iterable

from ..core import tree
from ..core.errors import ProtocolError
from ..core.topology import Party, title
from ..fabric.kinds import Message
from .mailbox import Mailbox


class MemoryTransport:
    """Mailboxes shared by all parties of this process."""

    def __init__(self, parties: Iterable[Party]):
        self._mailboxes = {party: Mailbox(party) for party in parties}

    def send(self, message: Message) -> None:
        if message.to not in self._mailboxes:
            raise ProtocolError(f"{message.kind}: there is no {title(message.to)}")
        copied = message._replace(payload=tree.copy(message.payload))
        self._mailboxes[message.to].put(copied)

    def mailbox(self, party: Party) -> Mailbox:
        return self._mailboxes[party]

    def pulse(self, party: Party) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.heard(party)

    def abort(self, cause: str) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.abort(cause)

    def close(self, party: Party) -> None:
        """This party has left: all links to it are down."""
        for mailbox in self._mailboxes.values():
            mailbox.gone(party)
