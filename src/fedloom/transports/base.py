"""The interface between engines and transports."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from ..core.topology import Party
from ..fabric.kinds import Message
from .mailbox import Mailbox


class Transport(Protocol):
    """Delivers messages between parties."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Deliver a message; never blocks on the receiver."""

    @abstractmethod
    def mailbox(self, party: Party) -> Mailbox: ...

    @abstractmethod
    def pulse(self, party: Party) -> None:
        """A sign of life of this party to those who wait for it."""

    @abstractmethod
    def abort(self, cause: str) -> None:
        """Stop the run at all parties, with one cause."""
