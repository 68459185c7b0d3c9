"""What a party's program asks of its transport, beside what its engine asks.

A party of a real federation is a process of its own: its links live longer than its connections,
it opens and closes, and it knows why a run was stopped.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypedDict

from ..core.errors import LostError
from ..core.topology import Party, title
from ..fabric.permits import Bounds, Permits
from .base import Transport
from .link import Link
from .position import Position

Note = Callable[..., None]  # an event, and facts by name: into a party's log


@dataclass(frozen=True)
class Timing:
    """Seconds. `beat`: between signs of life; `silence`: without any, a connection is given up;
    `linger`: how long to stay at the end for those who have not heard everything; `absent`: after
    so long without a link a client counts as gone (none: whoever waits for it decides)."""

    beat: float = 1.0
    silence: float = 5.0
    linger: float = 10.0
    absent: float | None = None


class Rules(TypedDict, total=False):
    """What every transport of a party holds to; what is left out has a default. `cap`: bytes of a
    message."""

    timing: Timing
    permits: Permits | None
    bounds: Bounds | None
    cap: int
    position: Position | None
    note: Note


class Health(NamedTuple):
    """How connections stand. `present`: to whom there is one; `refusals`: how often anybody was
    refused; `strangers`: connections that have not been let in."""

    present: list[Party]
    refusals: int
    strangers: int


class PartyTransport(Transport, Protocol):
    """The links of one party, `me`. `cause`: why the run was stopped, if it was, the same at every
    party once they have talked; `restore`: it cannot go on before something is restored."""

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
        """Listen and dial."""

    @abstractmethod
    def close(self) -> None:
        """Let everyone hear what is on its way, within `linger` seconds, and hang up."""

    @abstractmethod
    def abandon(self) -> None:
        """Hang up at once: this party will be back."""

    @abstractmethod
    def health(self) -> Health: ...

    # What follows from these

    def await_peers(self, peers: Iterable[Party], within: float) -> None:
        """Until there has been a connection with each of them, in one attempt."""
        begun, mailbox = time.monotonic(), self.mailbox(self.me)
        for peer in peers:
            while not self.links[peer].boot:
                self.still_here()
                # one that is agreeing with others where to go on from says that it is there
                if time.monotonic() > max(begun, mailbox.last(peer)) + within:
                    where = f"{title(self.me)} was not connected with {title(peer)}"
                    raise LostError(f"{where} within {within:g} s")

    def still_here(self) -> None:
        """A moment later: those who wait for us wait on, and so do we, unless the run is over."""
        self.pulse(self.me)
        self.mailbox(self.me).check()
        time.sleep(0.01)
