"""The state that all connections of a party share: who is connected, whether and why the run was
stopped, who was refused."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from threading import RLock
from typing import Any, Protocol

from ...core.topology import Party
from ..mailbox import Mailbox
from .link import Link
from .party import Note, Timing

DIFFERENT = 1000  # kinds of refusal that are counted separately
LONG = 500  # characters of a text that comes from a peer


class Connection(Protocol):
    """An open connection."""

    link: Link
    beat: float

    def wake(self) -> None:
        """There may be something to send."""
        ...

    def hang_up(self) -> None:
        """Close this connection."""
        ...


@dataclass
class PartyState:
    """The shared state of one party's connections."""

    mailbox: Mailbox
    timing: Timing
    note: Note
    opened: float = 0.0  # time since when peers can connect
    pulsed: float = 0.0  # time of the last move of this party
    closing: bool = False  # it has nothing more to send
    cause: str | None = None  # why the run was stopped
    restore: bool = False  # it can only continue after a backup is restored
    sessions: dict[Party, Connection] = field(default_factory=dict)
    _ended: dict[Party, float] = field(default_factory=dict)  # times of last connections' ends
    _refusals: Counter[bytes] = field(default_factory=Counter)  # by a digest: words can be long
    _lock: Any = field(default_factory=RLock)

    def stop(self, cause: str, from_peer: Party | None = None, restore: bool = False) -> None:
        """Stop the run, and tell everyone. Of several causes, all parties take the first one in
        alphabetical order."""
        cause = shortened(cause)
        with self._lock:
            if self.cause is not None and cause >= self.cause:
                return
            self.cause, self.restore = cause, restore
        self.mailbox.abort(cause)
        self.note("stopped", cause=cause, told_by=None if from_peer is None else str(from_peer))
        self.wake()

    def refused(self, why: str, peer: Party | None = None, address: str | None = None) -> None:
        """Log a refusal: the first one, the second, the fourth, the eighth, ... of each kind.
        Beyond DIFFERENT kinds, all are counted together."""
        about = {"peer": None if peer is None else str(peer), "address": address}
        facts = {"why": shortened(why), **{k: v for k, v in about.items() if v is not None}}
        key = sha256(str(facts).encode("utf-8", "backslashreplace")).digest()
        with self._lock:
            if key not in self._refusals and len(self._refusals) >= DIFFERENT:
                key = b"others"
            self._refusals[key] += 1
            times = self._refusals[key]
        if times & (times - 1) == 0:
            self.note("refused", **facts, **({"times": times} if times > 1 else {}))

    def refused_at(self, why: str, address: str) -> None:
        self.refused(why, address=address)

    @property
    def refusals(self) -> int:
        return self._refusals.total()

    def joined(self, session: Connection, **where: str | None) -> None:
        """A connection has opened; it replaces an older one to the same peer."""
        peer = session.link.peer
        with self._lock:
            if peer in self.sessions:
                self.left(self.sessions[peer], "its next connection is here")
            self.sessions[peer] = session
        self.mailbox.back(peer)
        self.note("joined", peer=str(peer), beat=session.beat, **where)

    def left(self, session: Connection, why: str) -> bool:
        """A connection has closed. Returns whether it was the current one to its peer."""
        link = session.link
        with self._lock:
            if self.sessions.get(link.peer) is not session:
                return False
            del self.sessions[link.peer]
            self._ended[link.peer] = time.monotonic()
            link.drop()
        self.note("left", peer=str(link.peer), meant=link.bye, why=why)
        return True

    def away(self, peer: Party) -> float:
        """For how many seconds this peer, which is not connected, could have been."""
        return time.monotonic() - self._ended.get(peer, self.opened)

    def wake(self) -> None:
        for session in [*self.sessions.values()]:
            session.wake()


def shortened(text: str) -> str:
    return text if len(text) <= LONG else f"{text[:LONG]}..."
