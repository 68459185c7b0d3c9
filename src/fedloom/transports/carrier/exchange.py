"""Exchanges of a request and an answer, as bytes; and the connection made of them.

Exchanges of a lane are numbered and follow one another. A failed exchange is repeated with the same
number; the answering party gives the same answer again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta, MsgspecError, Struct, msgpack

from ...core.errors import FrameError, RefusedError
from ...core.topology import Party, title
from ...fabric.kinds import Key
from ..links.link import FramePart, Link, Packet
from ..links.party_state import PartyState
from ..links.session import Session

GREETING, OUT, IN = range(3)  # lanes, as the requesting party sees them
ConnectionName = tuple[
    Annotated[str, Meta(max_length=64)], int
]  # the requesting process, and its number of connections


class Request(Struct, forbid_unknown_fields=True):
    """A request. On lane OUT, no packets mean that the party disconnects."""

    talk: ConnectionName
    lane: Annotated[int, Meta(ge=GREETING, le=IN)]
    number: int
    packets: Sequence[Packet] = ()


class Answer(Struct, forbid_unknown_fields=True):
    """An answer. `why`: the connection does not exist any more; `final`: and will not be accepted
    again."""

    talk: ConnectionName
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
        raise FrameError(f"invalid request ({problem})") from None


def answer_of(data: bytes) -> Answer:
    try:
        return _answer.decode(data)
    except (MsgspecError, RecursionError, ValueError) as problem:
        raise FrameError(f"invalid answer ({problem})") from None


class ExchangeSession(Session):
    """A session for threads: packets are taken in batches."""

    def __init__(self, state: PartyState, link: Link, start: Key, largest: int):
        super().__init__(state, link, start, max(1, largest // 2))
        self._news, self._hearing = threading.Event(), threading.Lock()
        self._next = self.outgoing()
        self.over = threading.Event()
        self.finished = False  # both sides have sent Bye
        self.problem: Exception | None = None

    def wake(self) -> None:
        self._news.set()

    def hang_up(self) -> None:
        """Close the connection. No packet is handled any more when this returns."""
        with self._hearing:
            self.over.set()
        self.wake()

    def batch(self, within: float) -> list[Packet]:
        """Packets to send; where there are none, wait for some, up to so many seconds."""
        packets: list[Packet] = []
        size, until = 0, time.monotonic() + within
        while size < self._piece and not self.over.is_set():
            packet = next(self._next, None)
            if packet is None:
                self.finished = True
                break
            if not isinstance(packet, float):
                packets.append(packet)
                size += len(packet.data) if isinstance(packet, FramePart) else 0
                continue
            left = until - time.monotonic()
            if packets or left <= 0:
                break
            self._news.wait(min(left, packet))
            self._news.clear()
        return packets

    def take(self, packets: Sequence[Packet]) -> None:
        """Handle received packets, in their order."""
        with self._hearing:
            if self.over.is_set():
                raise ConnectionError("hung up")
            for packet in packets:
                frame = self.handle(packet)
                if frame is not None:
                    self.receive(frame)
        self.heard = time.monotonic()
        self.wake()


class PeerExchanges:
    """What the answering party remembers of a peer: its connection, and the last answers."""

    def __init__(self) -> None:
        self._lanes = [threading.Lock() for _ in range(3)]
        self._last: dict[int, tuple[ConnectionName, int, bytes]] = {}
        self.name: ConnectionName = ("", 0)
        self.session: ExchangeSession | None = None

    def answer(self, request: Request, answer: Callable[[Request], Answer]) -> bytes:
        """Compute the answer once for each request, however often it arrives. A request out of turn
        is refused."""
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

    def is_late(self, name: ConnectionName) -> bool:
        """Whether a connection of the same process is older than the current one."""
        return name[0] == self.name[0] and name[1] <= self.name[1]

    def connection(self, name: ConnectionName) -> ExchangeSession:
        if self.session is None or name != self.name or self.session.over.is_set():
            raise ConnectionError("no such connection")
        return self.session
