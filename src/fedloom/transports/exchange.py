"""One exchange between who asks and who answers, as bytes; and the connection that exchanges make.

Exchanges of a lane are numbered and come one after the other. One that failed is repeated with its
number; who has answered it gives the same answer again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta, MsgspecError, Struct, msgpack

from ..core.errors import FrameError, RefusedError
from ..core.topology import Party, title
from ..fabric.kinds import Key
from .link import Link, Packet, Part
from .standing import Standing
from .talk import Talk

GREETING, OUT, IN = range(3)  # lanes: seen from who asks
Name = tuple[Annotated[str, Meta(max_length=64)], int]  # of a connection: who asks, how often


class Request(Struct, forbid_unknown_fields=True):
    """From who asks. On the way out, no packets mean that it hangs up."""

    talk: Name
    lane: Annotated[int, Meta(ge=GREETING, le=IN)]
    number: int
    packets: Sequence[Packet] = ()


class Answer(Struct, forbid_unknown_fields=True):
    """`why`: there is no connection of this name any more; `final`: and will be none."""

    talk: Name
    lane: int
    number: int
    packets: Sequence[Packet] = ()
    why: str = ""
    final: bool = False

    def check(self, peer: Party) -> None:
        if self.final:
            raise RefusedError(f"{title(peer)} refused: {self.why}")
        if self.why:
            raise ConnectionError(self.why)


encode = msgpack.Encoder().encode
_request, _answer = msgpack.Decoder(Request), msgpack.Decoder(Answer)


def request_of(data: bytes) -> Request:
    try:
        return _request.decode(data)
    except (MsgspecError, RecursionError, ValueError) as problem:
        raise FrameError(f"bytes that are no request ({problem})") from None


def answer_of(data: bytes) -> Answer:
    try:
        return _answer.decode(data)
    except (MsgspecError, RecursionError, ValueError) as problem:
        raise FrameError(f"bytes that are no answer ({problem})") from None


class ExchangeTalk(Talk):
    """A connection, for threads: what there is to say is taken in batches."""

    def __init__(self, standing: Standing, link: Link, start: Key, largest: int):
        super().__init__(standing, link, start, max(1, largest // 2))
        self._news, self._hearing = threading.Event(), threading.Lock()
        self._next = self.saying()
        self.over = threading.Event()
        self.finished = False  # goodbye was said, both ways
        self.problem: Exception | None = None

    def wake(self) -> None:
        self._news.set()

    def hang_up(self) -> None:
        """Nothing is heard any more when this returns."""
        with self._hearing:
            self.over.set()
        self.wake()

    def batch(self, within: float) -> list[Packet]:
        """What there is to say; where there is nothing, what comes up within so many seconds."""
        found: list[Packet] = []
        size, until = 0, time.monotonic() + within
        while size < self._piece and not self.over.is_set():
            packet = next(self._next, None)
            if packet is None:
                self.finished = True
                break
            if not isinstance(packet, float):
                found.append(packet)
                size += len(packet.data) if isinstance(packet, Part) else 0
                continue
            left = until - time.monotonic()
            if found or left <= 0:
                break
            self._news.wait(min(left, packet))
            self._news.clear()
        return found

    def take(self, packets: Sequence[Packet]) -> None:
        """Everything that came, in its order."""
        with self._hearing:
            if self.over.is_set():
                raise ConnectionError("hung up")
            for packet in packets:
                frame = self.hear(packet)
                if frame is not None:
                    self.receive(frame)
        self.heard = time.monotonic()
        self.wake()


class Served:
    """What a party that answers remembers of a peer: its connection, and the last answers."""

    def __init__(self) -> None:
        self._lanes = [threading.Lock() for _ in range(3)]
        self._last: dict[int, tuple[Name, int, bytes]] = {}
        self.name: Name = ("", 0)
        self.talk: ExchangeTalk | None = None

    def answer(self, request: Request, answer: Callable[[Request], Answer]) -> bytes:
        """Once for each request, however often it comes; one that was waited for no longer, as it
        seems, is turned away."""
        with self._lanes[request.lane]:
            name, number, last = self._last.get(request.lane, (request.talk, 0, b""))
            if (name, number) == (request.talk, request.number):
                return last
            before = number if name == request.talk else 0
            if request.number != before + 1:
                late = Answer(request.talk, request.lane, request.number, (), "out of turn")
                return encode(late)
            made = encode(answer(request))
            self._last[request.lane] = request.talk, request.number, made
            return made

    def is_late(self, name: Name) -> bool:
        """Whether a connection of the same process is older than the one that is there."""
        return name[0] == self.name[0] and name[1] <= self.name[1]

    def connection(self, name: Name) -> ExchangeTalk:
        if self.talk is None or name != self.name or self.talk.over.is_set():
            raise ConnectionError("no such connection")
        return self.talk
