"""What an engine asks of a transport: four verbs."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from ..core.topology import Party
from ..fabric.kinds import Message
from .mailbox import Mailbox


class Transport(Protocol):
    """Takes messages from party to party."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Deliver; never blocks on the receiver."""

    @abstractmethod
    def mailbox(self, party: Party) -> Mailbox: ...

    @abstractmethod
    def pulse(self, party: Party) -> None:
        """This party is alive, though it may have nothing to send to those who wait for it."""

    @abstractmethod
    def abort(self, cause: str) -> None:
        """Stop everyone, with one cause."""
