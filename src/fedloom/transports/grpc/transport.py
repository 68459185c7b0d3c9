"""Parties on different machines: gRPC with mutual TLS.

Hubs (and the server) listen; a client dials its hub, and of two hubs the later in the order dials
the earlier. Each pair has one bidirectional stream at a time, which is opened again whenever it
breaks; what a link is over many connections is in link.py, what is said over one in talk.py, how
they come about in dialing.py. The engine runs in its own thread and knows nothing of all this;
connections live in one event loop beside it, so that signs of life go on while a party computes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any, Unpack

from ...core.errors import RefusedError
from ...core.topology import Party, title
from ..linked import LinkedTransport
from ..party import Rules
from .dialing import Meeting
from .listener import Front, Limits
from .tls import Address, Door, Identity, server_for

OPENING = 30.0  # seconds, at most


class GrpcTransport(LinkedTransport):
    """The links of one party: those that it `dials`, and those that come through its `door`."""

    def __init__(
        self,
        me: Party,
        run: str,
        identity: Identity,
        *,
        dials: Mapping[Party, Address] | None = None,
        door: Door | None = None,
        **rules: Unpack[Rules],
    ):
        self._identity, self._dials, self._door = identity, dict(dials or {}), door
        super().__init__(me, run, (*self._dials, *(door.expected if door else ())), **rules)
        self._meeting = Meeting(me, run, identity, self.links, self._standing, self._dials, door)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: Any = None
        self._opened = False
        self.port: int | None = None
        self._loop = _event_loop()

    def abort(self, cause: str, restore: bool = False) -> None:
        self._in_loop(self._stop(cause, restore)).result(self._standing.timing.linger)

    def open(self) -> None:
        self._opened = True
        self._in_loop(self._open()).result(OPENING)

    def close(self) -> None:
        if self._opened:
            self._in_loop(self._close()).result(self._standing.timing.linger + 10)

    def abandon(self) -> None:
        if self._opened:
            self._in_loop(self._hang_up()).result(30)

    def _in_loop(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self) -> None:
        if self._door is not None:
            await self._listen(self._door)
        for peer in self._dials:
            self._tasks.append(self._loop.create_task(self._meeting.keep_dialling(peer)))
        for link in self.links.values():
            self._meeting.may_be_missing(link)

    async def _stop(self, cause: str, restore: bool) -> None:
        self._standing.stop(cause, restore=restore)

    @property
    def strangers(self) -> int:
        """Connections that have not been let in."""
        return 0 if self._meeting.front is None else self._meeting.front.strangers

    async def _close(self) -> None:
        standing, began = self._standing, time.monotonic()
        standing.closing = True
        standing.wake()
        while not all(
            self._is_done(link, time.monotonic() - began) for link in self.links.values()
        ):
            await asyncio.sleep(0.01)
        await self._hang_up()

    async def _hang_up(self) -> None:
        self._meeting.over = True  # a cancelled wait_for may forget it (before Python 3.12)
        for task in self._tasks:
            task.cancel()
        for talk in [*self._standing.talks.values()]:
            talk.hang_up()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(0.5)
        if self._meeting.front is not None:
            await self._meeting.front.close()

    async def _listen(self, door: Door) -> None:
        meeting, standing = self._meeting, self._standing
        limits = Limits.beside(len(door.expected))
        self._server, inner = server_for(
            door, self._identity, standing.timing, meeting.answer, meeting.tell_time
        )
        try:
            front = Front(door.bind, inner, limits, standing.refused_at)
        except RefusedError as problem:
            raise RefusedError(f"{title(self.me)} {problem}") from None
        await self._server.start()
        front.open()
        meeting.front, self.port = front, front.port


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """One for the connections of this process, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="connections", daemon=True).start()
    return loop
