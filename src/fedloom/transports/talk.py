"""What is said over one connection, and what becomes of what is heard; whatever carries it.

A connection is made by a greeting, either way. Then both sides say messages, signs of life, the
word to stop, and goodbye. This file does no input or output and does not wait.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeVar

from ..core.errors import FrameError, RefusedError
from ..core.topology import title
from ..fabric.kinds import AT_THE_END, Key
from .link import CHUNK, Beat, Bye, Hello, Link, Packet, Part, Stop
from .standing import Standing
from .wire import Frame

T = TypeVar("T")
R = TypeVar("R")
SLACK = 1 << 15  # bytes that are not worth a piece of their own
AHEAD = 64  # messages that wait to be taken, of one peer
OFTENER = 3  # times that a beat is halved, at most


class Talk(ABC):
    """From the greeting until either side hangs up. `start`: the key after which to send; `piece`:
    as many bytes of a message as go at once.

    A firewall may forget a connection that was quiet for longer than it likes, and drop what comes
    then: silence, a new connection, and the same again. So a link that has lost connections beats
    oftener, until it is never quiet for so long."""

    def __init__(self, standing: Standing, link: Link, start: Key, piece: int = CHUNK):
        self.standing, self.link = standing, link
        self._sent, self._piece = start, piece
        self.beat = standing.timing.beat / 2 ** min(link.counts["lost"], OFTENER)
        self._told: Key | None = None  # the last key that the other was told has come
        self.heard = time.monotonic()  # when anything came

    @abstractmethod
    def wake(self) -> None:
        """There may be something to say."""

    @abstractmethod
    def hang_up(self) -> None:
        """This connection is over."""

    def saying(self) -> Iterator[Packet | float]:
        """What to say next; a number where there is nothing, for so many seconds, unless something
        happens. It ends after a goodbye from both sides."""
        standing, link = self.standing, self.link
        pulsed, due, said, counted = 0.0, 0.0, False, 0
        told: str | None = None
        while not (said and link.bye):
            while (sent := link.after(self._sent)) is not None:
                yield from self._parts(sent.frame)
                self._sent = sent.key
            much = link.counts["received"] - counted > CHUNK
            if much or self._is_awaited() or time.monotonic() >= due:
                self._told, counted = link.got, link.counts["received"]
                pulse, pulsed = standing.pulsed > pulsed, standing.pulsed
                yield Beat(self._told, pulse)
                due = time.monotonic() + self.beat
            if standing.cause is not None and standing.cause != told:
                told = standing.cause
                yield Stop(told, standing.restore)
            if standing.closing and not said and (link.is_heard or told is not None):
                yield Bye()
                said = True
            if not (said and link.bye):
                yield max(0.0, due - time.monotonic())

    def _is_awaited(self) -> bool:
        """Whether the other may be waiting to hear that we have its last message. Else it hears so
        with the next sign of life, unless it keeps much for us."""
        ending = self.standing.closing or self.link.got == AT_THE_END
        return ending and self.link.got != self._told

    def _parts(self, frame: Frame) -> Iterator[Part]:
        left = sum(map(len, frame))
        self.link.counts["sent"] += left
        for piece in pieces(frame, self._piece):
            left -= len(piece)
            yield Part(left, piece)

    def hear(self, packet: Packet) -> bytearray | None:
        """What came; a frame, when it is whole, is still to be received."""
        link, self.heard = self.link, time.monotonic()
        match packet:
            case Part():
                return self._refusing(link.part, packet)
            case Beat():
                link.acknowledged = max(link.acknowledged, Key(*packet.got))
                if packet.pulse:
                    self.standing.mailbox.heard(link.peer)
                if self.standing.closing:
                    self.wake()
            case Stop():
                self.standing.stop(packet.cause, link.peer, packet.restore)
            case Bye():
                link.bye = True
                self.wake()
            case Hello():
                raise RefusedError(f"{title(link.peer)} greeted twice")
        return None

    def receive(self, frame: bytearray) -> None:
        self._refusing(self.link.receive, frame)

    def _refusing(self, work: Callable[[T], R], given: T) -> R:
        try:
            return work(given)
        except FrameError as problem:
            self.link.counts["refused"] += 1
            raise RefusedError(str(problem)) from None

    @property
    def is_ahead(self) -> bool:
        """Nobody reads on for one who is far ahead: its messages would only fill our memory."""
        standing = self.standing
        return standing.mailbox.held(self.link.peer) >= AHEAD and not standing.closing

    def check_silence(self) -> None:
        """It ends a connection."""
        silence = self.standing.timing.silence
        if time.monotonic() - self.heard > silence:
            raise ConnectionError(f"silent for {silence:g} s")


def pieces(frame: Frame, most: int = CHUNK) -> Iterator[memoryview]:
    """A frame in as few pieces as can be: a small one in one."""
    size, slack = sum(map(len, frame)), min(SLACK, most)
    if size <= most + slack:
        yield memoryview(b"".join(frame))
        return
    for part in frame:
        view, at = memoryview(part), 0
        while at < len(view):
            end = len(view) if len(view) - at <= most + slack else at + most
            yield view[at:end]
            at = end
