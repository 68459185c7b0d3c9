"""How a party stands, for all its connections: who is there, whether and why the run was stopped,
who was refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from threading import RLock
from typing import Any, Protocol

from ..core.topology import Party
from .link import Link
from .mailbox import Mailbox
from .party import Note, Timing

DIFFERENT = 1000  # refusals that are counted each for itself
LONG = 500  # characters of what others have a say in


class Connected(Protocol):
    """A connection that is there."""

    link: Link
    beat: float

    def wake(self) -> None:
        """There may be something to say."""
        ...

    def hang_up(self) -> None:
        """This connection is over."""
        ...


@dataclass
class Standing:
    """Of one party."""

    mailbox: Mailbox
    timing: Timing
    note: Note
    pulsed: float = 0.0  # when it last made a move
    closing: bool = False  # it has nothing more to say
    cause: str | None = None  # why the run was stopped
    restore: bool = False  # and cannot go on before something is restored
    talks: dict[Party, Connected] = field(default_factory=dict)
    _refusals: Counter[bytes] = field(default_factory=Counter)  # by a digest: words can be long
    _lock: Any = field(default_factory=RLock)

    def stop(self, cause: str, told_by: Party | None = None, restore: bool = False) -> None:
        """The run is over: tell everyone. Of several causes, all parties settle on the first in
        the order of the alphabet."""
        cause = shortened(cause)
        with self._lock:
            if self.cause is not None and cause >= self.cause:
                return
            self.cause, self.restore = cause, restore
        self.mailbox.abort(cause)
        self.note("stopped", cause=cause, told_by=None if told_by is None else str(told_by))
        self.wake()

    def refused(self, why: str, peer: Party | None = None, address: str | None = None) -> None:
        """Into the log: the first time, the second, the fourth, the eighth, ... What differs in
        too many ways is counted together."""
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

    def joined(self, talk: Connected, **where: str | None) -> None:
        """There is a connection; if there was one already, it is over."""
        peer = talk.link.peer
        with self._lock:
            if peer in self.talks:
                self.left(self.talks[peer], "its next connection is here")
            self.talks[peer] = talk
        self.mailbox.back(peer)
        self.note("joined", peer=str(peer), beat=talk.beat, **where)

    def left(self, talk: Connected, why: str) -> bool:
        """The connection is over; whether it was still the one to this peer."""
        link = talk.link
        with self._lock:
            if self.talks.get(link.peer) is not talk:
                return False
            del self.talks[link.peer]
            link.drop()
        self.note("left", peer=str(link.peer), meant=link.bye, why=why)
        return True

    def wake(self) -> None:
        for talk in [*self.talks.values()]:
            talk.wake()


def shortened(text: str) -> str:
    return text if len(text) <= LONG else f"{text[:LONG]}..."
