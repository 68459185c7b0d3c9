"""The interface between a party's program and its transport, beside that of engines (base.py).

In deployment, a party is a process. Its links outlive connections, it opens and closes the
transport, and it learns why a run was stopped.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypedDict

from ...core.errors import LostError
from ...core.topology import Party, title
from ...fabric.permits import Bounds, Permits
from ..base import Transport
from .link import Link
from .position import Position

Note = Callable[..., None]  # writes an event, with facts by name, into a party's log


@dataclass(frozen=True)
class Timing:
    """Seconds. `beat`: between heartbeats. `silence`: a connection without heartbeats is closed
    after so long. `linger`: how long to stay at the end until peers have received everything.
    `absent`: a client without a connection counts as gone after so long (none: waits decide)."""

    beat: float = 1.0
    silence: float = 5.0
    linger: float = 10.0
    absent: float | None = None


class TransportOptions(TypedDict, total=False):
    """Options of every transport of a party; all have defaults. `cap`: the largest message in
    bytes."""

    timing: Timing
    permits: Permits | None
    bounds: Bounds | None
    cap: int
    position: Position | None
    note: Note


class Links(Protocol):
    """Whom a party is connected with: what a transport is made for."""

    @property
    def me(self) -> Party:
        """The party."""
        ...

    @property
    def dials(self) -> Sequence[Party]:
        """Whom it dials."""
        ...

    @property
    def expected(self) -> Sequence[Party]:
        """Who dials it."""
        ...


class Health(NamedTuple):
    """The state of connections. `present`: connected peers; `refusals`: how often a connection was
    refused; `strangers`: connections that are not admitted yet."""

    present: list[Party]
    refusals: int
    strangers: int


class PartyTransport(Transport, Protocol):
    """The links of one party, `me`. `cause`: why the run was stopped, if it was; all parties agree
    on it in the end. `restore`: whether the run can only continue after a backup is restored."""

    me: Party
    links: Mapping[Party, Link]
    position: Position

    @property
    @abstractmethod
    def cause(self) -> str | None: ...

    @property
    @abstractmethod
    def restore(self) -> bool: ...

    @abstractmethod
    def abort(self, cause: str, restore: bool = False) -> None: ...

    @abstractmethod
    def open(self) -> None:
        """Begin to listen and to dial."""

    @abstractmethod
    def close(self) -> None:
        """Deliver the remaining messages, within `linger` seconds, and disconnect."""

    @abstractmethod
    def abandon(self) -> None:
        """Disconnect at once: this party will be back."""

    @abstractmethod
    def health(self) -> Health: ...

    # What follows from these

    def await_peers(self, peers: Iterable[Party], within: float) -> None:
        """Wait until there has been a connection with each of them, in the same attempt."""
        begun, mailbox = time.monotonic(), self.mailbox(self.me)
        for peer in peers:
            while not self.links[peer].boot:
                self.pause()
                # a hub that is agreeing on a rollback sends signs of life
                if time.monotonic() > max(begun, mailbox.last(peer)) + within:
                    where = f"{title(self.me)} was not connected with {title(peer)}"
                    raise LostError(f"{where} within {within:g} s")

    def pause(self) -> None:
        """Wait a moment, with a sign of life; raises where the run is over."""
        self.pulse(self.me)
        self.mailbox(self.me).check()
        time.sleep(0.01)
