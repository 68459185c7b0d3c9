"""One connection of a link: what is written to it, what is read from it, and whether it lives."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc

from ...core.errors import FrameError, RefusedError
from ...core.topology import Party, title
from ...fabric.kinds import AT_THE_END, Key
from ..base import Mailbox
from ..link import CHUNK, Beat, Bye, Hello, Link, Part, Stop, pack, unpack
from ..wire import Frame

Note = Callable[..., None]
SLACK = 1 << 15  # bytes that are not worth a piece of their own
AHEAD = 64  # messages that wait to be taken, of one peer
DIFFERENT = 1000  # refusals that are counted each for itself
LONG = 500  # characters of what others have a say in
OFTENER = 3  # times that a beat is halved, at most


class Stream(Protocol):
    """Either end of a gRPC stream."""

    def read(self) -> Awaitable[Any]: ...

    def write(self, data: bytes) -> Awaitable[None]: ...


@dataclass(frozen=True)
class Timing:
    """Seconds. `beat`: between signs of life; `silence`: without any, a connection is given up;
    `linger`: how long to stay at the end for those who have not heard everything; `absent`: after
    so long without a link a client counts as gone (none: whoever waits for it decides)."""

    beat: float = 1.0
    silence: float = 5.0
    linger: float = 10.0
    absent: float | None = None


@dataclass
class Standing:
    """How the party stands, for all its connections."""

    mailbox: Mailbox
    timing: Timing
    note: Note
    pulsed: float = 0.0  # when it last made a move
    closing: bool = False  # it has nothing more to say
    cause: str | None = None  # why the run was stopped
    restore: bool = False  # and cannot go on before something is restored
    talks: dict[Party, Talk] = field(default_factory=dict)
    _refusals: Counter[str] = field(default_factory=Counter)

    def stop(self, cause: str, told_by: Party | None = None, restore: bool = False) -> None:
        """The run is over: tell everyone. Of several causes, all parties settle on the first in
        the order of the alphabet."""
        cause = shortened(cause)
        if self.cause is None or cause < self.cause:
            self.cause, self.restore = cause, restore
            self.mailbox.abort(cause)
            self.note("stopped", cause=cause, told_by=None if told_by is None else str(told_by))
            self.wake()

    def refused(self, why: str, peer: Party | None = None, address: str | None = None) -> None:
        """Into the log: the first time, the second, the fourth, the eighth, ... What differs in
        too many ways is counted together."""
        about = {"peer": None if peer is None else str(peer), "address": address}
        facts = {"why": shortened(why), **{k: v for k, v in about.items() if v is not None}}
        key = str(facts)
        if key not in self._refusals and len(self._refusals) >= DIFFERENT:
            key = "others"
        self._refusals[key] += 1
        times = self._refusals[key]
        if times & (times - 1) == 0:
            self.note("refused", **facts, **({"times": times} if times > 1 else {}))

    def refused_at(self, why: str, address: str) -> None:
        self.refused(why, address=address)

    @property
    def refusals(self) -> int:
        return self._refusals.total()

    def wake(self) -> None:
        for talk in self.talks.values():
            talk.wake()


def shortened(text: str) -> str:
    return text if len(text) <= LONG else f"{text[:LONG]}..."


async def next_packet(stream: Stream) -> Any:
    data = await stream.read()
    if data is grpc.aio.EOF:
        raise ConnectionError("hung up")
    try:
        return unpack(data)
    except FrameError as problem:
        raise RefusedError(str(problem)) from None


class Talk:
    """From the greeting until either side hangs up. `start`: the key after which to send; `check`:
    raises when the peer is no longer welcome.

    A firewall may forget a connection that was quiet for longer than it likes, and drop what comes
    then: silence, a new connection, and the same again. So a link that has lost connections beats
    oftener, until it is never quiet for so long."""

    def __init__(
        self,
        standing: Standing,
        link: Link,
        stream: Stream,
        start: Key,
        check: Callable[[], object],
    ):
        self._standing, self._link, self._stream = standing, link, stream
        self._sent, self._check = start, check
        self.beat = standing.timing.beat / 2 ** min(link.counts["lost"], OFTENER)
        self._told: Key | None = None  # the last key that the other was told has come
        self._news = asyncio.Event()
        self._heard = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    def wake(self) -> None:
        self._news.set()

    def hang_up(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def run(self) -> None:
        """Returns after a goodbye from both sides; ConnectionError, RefusedError otherwise."""
        problem = await self._until_it_ends()
        if problem is not None:
            raise problem

    async def _until_it_ends(self) -> BaseException | None:
        """And why; by itself, without a traceback that would keep what was refused."""
        loop, link = asyncio.get_running_loop(), self._link
        link.wake = lambda: _quietly(loop, self.wake)
        works = (self._write(), self._listen(), self._watch())
        self._tasks = [loop.create_task(work) for work in works]
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.hang_up()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = []
        for task in done:
            problem = ConnectionError("hung up") if task.cancelled() else task.exception()
            if problem is not None:
                problem.__context__ = None
                return problem.with_traceback(None)
        return None

    async def _write(self) -> None:
        """Messages, signs of life, the word to stop, goodbye."""
        standing, link = self._standing, self._link
        pulsed, due, said, counted = 0.0, 0.0, False, 0
        told: str | None = None
        while not (said and link.bye):
            self._news.clear()
            while (sent := link.after(self._sent)) is not None:
                await self._frame(sent.frame)
                self._sent = sent.key
            much = link.counts["received"] - counted > CHUNK
            if much or self._is_awaited() or time.monotonic() >= due:
                self._told, counted = link.got, link.counts["received"]
                pulse, pulsed = standing.pulsed > pulsed, standing.pulsed
                await self._packet(Beat(self._told, pulse))
                due = time.monotonic() + self.beat
            if standing.cause is not None and standing.cause != told:
                told = standing.cause
                await self._packet(Stop(told, standing.restore))
            if standing.closing and not said and (link.is_heard or told is not None):
                await self._packet(Bye())
                said = True
            with suppress(TimeoutError):
                if not (said and link.bye):
                    async with asyncio.timeout(max(0.0, due - time.monotonic())):
                        await self._news.wait()

    def _is_awaited(self) -> bool:
        """Whether the other may be waiting to hear that we have its last message. Else it hears so
        with the next sign of life, unless it keeps much for us."""
        ending = self._standing.closing or self._link.got == AT_THE_END
        return ending and self._link.got != self._told

    async def _frame(self, frame: Frame) -> None:
        left = sum(map(len, frame))
        self._link.counts["sent"] += left
        for piece in pieces(frame):
            left -= len(piece)
            await self._packet(Part(left, piece))

    async def _packet(self, packet: Any) -> None:
        data = pack(packet)
        self._link.counts["on the wire"] += len(data)
        await self._stream.write(data)

    async def _listen(self) -> None:
        link = self._link
        while True:
            packet = await next_packet(self._stream)
            self._heard = time.monotonic()
            match packet:
                case Part():
                    await self._part(packet)
                case Beat():
                    link.acknowledged = max(link.acknowledged, Key(*packet.got))
                    if packet.pulse:
                        self._standing.mailbox.heard(link.peer)
                    if self._standing.closing:
                        self.wake()
                case Stop():
                    self._standing.stop(packet.cause, link.peer, packet.restore)
                case Bye():
                    link.bye = True
                    self.wake()
                case Hello():
                    raise RefusedError(f"{title(link.peer)} greeted twice")

    async def _part(self, part: Part) -> None:
        try:
            frame = self._link.part(part)
            if frame is None:
                return
            if len(frame) > CHUNK:
                await asyncio.to_thread(self._link.receive, frame)
            else:
                self._link.receive(frame)
            self.wake()
            await self._pause()
        except FrameError as problem:
            self._link.counts["refused"] += 1
            raise RefusedError(str(problem)) from None

    async def _pause(self) -> None:
        """Nobody reads on for one who is far ahead: its messages would only fill our memory."""
        standing = self._standing
        while standing.mailbox.held(self._link.peer) >= AHEAD and not standing.closing:
            await asyncio.sleep(0.05)
            self._heard = time.monotonic()

    async def _watch(self) -> None:
        """Silence ends a connection, and so does a certificate that is no longer welcome. Time in
        which this process itself stood still does not count."""
        timing, last = self._standing.timing, time.monotonic()
        while True:
            await asyncio.sleep(timing.beat)
            now = time.monotonic()
            if now - last > timing.beat + timing.silence / 2:
                self._heard = now
            if now - self._heard > timing.silence:
                raise ConnectionError(f"silent for {timing.silence:g} s")
            last = now
            self._check()


def pieces(frame: Frame) -> Iterator[memoryview]:
    """A frame in as few pieces as can be: a small one in one."""
    size = sum(map(len, frame))
    if size <= CHUNK + SLACK:
        yield memoryview(b"".join(frame))
        return
    for part in frame:
        view, at = memoryview(part), 0
        while at < len(view):
            end = len(view) if len(view) - at <= CHUNK + SLACK else at + CHUNK
            yield view[at:end]
            at = end


def _quietly(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: so is the process, almost
        loop.call_soon_threadsafe(wake)
