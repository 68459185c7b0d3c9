"""The protocol of one connection, for any transport.

A connection begins with a Hello from both sides. Then both send messages, heartbeats, perhaps Stop,
and Bye. This file does no input or output, and does not wait.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeVar

from ...core.errors import FrameError, RefusedError
from ...core.topology import title
from ...fabric.kinds import AT_THE_END, Key
from ..wire import Frame
from .link import CHUNK, Beat, Bye, FramePart, Hello, Link, Packet, Stop
from .party_state import PartyState

T = TypeVar("T")
R = TypeVar("R")
SLACK = 1 << 15  # a rest of so many bytes is no piece of its own
AHEAD = 64  # messages of one peer that may wait to be taken
OFTENER = 3  # how often the interval of heartbeats is halved, at most


class Session(ABC):
    """From the Hello until either side disconnects. `start`: the key after which to send; `piece`:
    how many bytes of a message are sent at once.

    A firewall may forget a quiet connection and drop its packets: the connection falls silent, and
    so does the next one. So a link that has lost connections sends heartbeats more often."""

    def __init__(self, state: PartyState, link: Link, start: Key, piece: int = CHUNK):
        self.state, self.link = state, link
        self._sent, self._piece = start, piece
        self.beat = state.timing.beat / 2 ** min(link.counts["lost"], OFTENER)
        self._acknowledged: Key | None = None  # the last key that the peer knows we have received
        self.heard = time.monotonic()  # time of the last packet

    @abstractmethod
    def wake(self) -> None:
        """There may be something to send."""

    @abstractmethod
    def hang_up(self) -> None:
        """Close this connection."""

    def outgoing(self) -> Iterator[Packet | float]:
        """The packets to send; a number where there is nothing to send for so many seconds, unless
        `wake` is called. It ends after a Bye from both sides."""
        state, link = self.state, self.link
        pulsed, due, said_bye, counted = 0.0, 0.0, False, 0
        cause: str | None = None
        while not (said_bye and link.bye):
            while (sent := link.after(self._sent)) is not None:
                yield from self._parts(sent.frame)
                self._sent = sent.key
            much = link.counts["received"] - counted > CHUNK
            if much or self._is_awaited() or time.monotonic() >= due:
                self._acknowledged, counted = link.got, link.counts["received"]
                pulse, pulsed = state.pulsed > pulsed, state.pulsed
                yield Beat(self._acknowledged, pulse)
                due = time.monotonic() + self.beat
            if state.cause is not None and state.cause != cause:
                cause = state.cause
                yield Stop(cause, state.restore)
            if state.closing and not said_bye and (link.is_heard or cause is not None):
                yield Bye()
                said_bye = True
            if not (said_bye and link.bye):
                yield max(0.0, due - time.monotonic())

    def _is_awaited(self) -> bool:
        """Whether the peer may be waiting for our acknowledgement of its last message. Otherwise
        the next heartbeat acknowledges it."""
        ending = self.state.closing or self.link.got == AT_THE_END
        return ending and self.link.got != self._acknowledged

    def _parts(self, frame: Frame) -> Iterator[FramePart]:
        left = sum(map(len, frame))
        self.link.counts["sent"] += left
        for piece in pieces(frame, self._piece):
            left -= len(piece)
            yield FramePart(left, piece)

    def handle(self, packet: Packet) -> bytearray | None:
        """Handle a packet. Returns a frame when it is complete; pass it to `receive`."""
        link, self.heard = self.link, time.monotonic()
        match packet:
            case FramePart():
                return self._refusing(link.part, packet)
            case Beat():
                link.acknowledged = max(link.acknowledged, Key(*packet.got))
                if packet.pulse:
                    self.state.mailbox.heard(link.peer)
                if self.state.closing:
                    self.wake()
            case Stop():
                self.state.stop(packet.cause, link.peer, packet.restore)
            case Bye():
                link.bye = True
                self.wake()
            case Hello():
                raise RefusedError(f"{title(link.peer)} sent Hello twice")
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
        """Whether so many messages of the peer wait that no more are read, to save memory."""
        state = self.state
        return state.mailbox.waiting(self.link.peer) >= AHEAD and not state.closing

    def check_silence(self) -> None:
        """ConnectionError after too long a silence."""
        silence = self.state.timing.silence
        if time.monotonic() - self.heard > silence:
            raise ConnectionError(f"silent for {silence:g} s")


def pieces(frame: Frame, most: int = CHUNK) -> Iterator[memoryview]:
    """A frame in as few pieces as possible."""
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
