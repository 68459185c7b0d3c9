"""One connection of a link over a gRPC stream: tasks that read, write and watch for silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

import grpc

from ...core.errors import FrameError, RefusedError
from ...fabric.kinds import Key
from ..links.link import CHUNK, Link, Packet, pack, unpack
from ..links.party_state import PartyState
from ..links.session import Session

GOODBYE = 1.0  # seconds for the peer to end the stream


class GrpcStream(Protocol):
    """Either end of a gRPC stream."""

    def read(self) -> Awaitable[Any]: ...

    def write(self, data: bytes) -> Awaitable[None]: ...


async def next_packet(stream: GrpcStream) -> Any:
    data = await stream.read()
    if data is grpc.aio.EOF:
        raise ConnectionError("hung up")
    try:
        return unpack(data)
    except FrameError as problem:
        raise RefusedError(str(problem)) from None


class StreamSession(Session):
    """A session over a gRPC stream. `check`: raises when the peer is no longer on the allow-list.
    `dials`: the peer ends the stream, when it has our Bye."""

    def __init__(
        self,
        state: PartyState,
        link: Link,
        stream: GrpcStream,
        start: Key,
        check: Callable[[], object],
        dials: bool = False,
    ):
        super().__init__(state, link, start)
        self._stream, self._check, self._dials = stream, check, dials
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def wake(self) -> None:
        self._news.set()

    def hang_up(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def run(self) -> None:
        """Run until both sides have sent Bye; else ConnectionError or RefusedError."""
        problem = await self._until_it_ends()
        if problem is not None:
            raise problem

    async def _until_it_ends(self) -> BaseException | None:
        """Run, and return the problem, without a traceback, which would keep refused packets
        alive."""
        loop, link = asyncio.get_running_loop(), self.link
        link.wake = lambda: _quietly(loop, self.wake)
        works = (self._write(), self._listen(), self._watch())
        self._tasks = [loop.create_task(work) for work in works]
        write, listen, _ = self._tasks
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._dials and write in done and not write.cancelled() and not write.exception():
                # a read that is cancelled cancels the call, and our Bye with it
                await asyncio.wait([listen], timeout=GOODBYE)
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
        for packet in self.outgoing():
            if not isinstance(packet, float):
                await self._packet(packet)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(packet):
                    await self._news.wait()
            self._news.clear()

    async def _packet(self, packet: Packet) -> None:
        data = pack(packet)
        self.link.counts["on the wire"] += len(data)
        await self._stream.write(data)

    async def _listen(self) -> None:
        while True:
            frame = self.handle(await next_packet(self._stream))
            if frame is None:
                continue
            if len(frame) > CHUNK:
                await asyncio.to_thread(self.receive, frame)
            else:
                self.receive(frame)
            self.wake()
            while self.is_ahead:
                await asyncio.sleep(0.05)
                self.heard = time.monotonic()

    async def _watch(self) -> None:
        """Silence ends a connection, and so does a certificate that is no longer allowed. Time in
        which this process was suspended does not count."""
        timing, last = self.state.timing, time.monotonic()
        while True:
            await asyncio.sleep(timing.beat)
            now = time.monotonic()
            if now - last > timing.beat + timing.silence / 2:
                self.heard = now
            self.check_silence()
            last = now
            self._check()


def _quietly(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the process is ending
        loop.call_soon_threadsafe(wake)
