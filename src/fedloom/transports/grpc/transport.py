"""The transport between machines: gRPC with mutual TLS.

Hubs (and the server) listen. A client dials its hub; of two hubs, the later in the order dials the
earlier. Each pair has one bidirectional stream at a time, which is opened again when it breaks.
links/link.py is a link over many connections, links/session.py the protocol of one.

The engine runs in its own thread. Connections run in one event loop beside it, so that heartbeats
go on while a party computes.
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
from ..links.linked import LinkedTransport
from ..links.party import TransportOptions
from .dialing import Peering
from .listener import Listener, StrangerLimits
from .tls import Identity, ListenSettings, PeerAddress, server_for

OPENING = 30.0  # seconds, at most


class GrpcTransport(LinkedTransport):
    """The links of one party: to peers that it `dials`, and to peers that dial it (`door`)."""

    def __init__(
        self,
        me: Party,
        run: str,
        identity: Identity,
        *,
        dials: Mapping[Party, PeerAddress] | None = None,
        door: ListenSettings | None = None,
        **options: Unpack[TransportOptions],
    ):
        self._identity, self._dials, self._door = identity, dict(dials or {}), door
        super().__init__(me, run, (*self._dials, *(door.expected if door else ())), **options)
        self._peering = Peering(me, run, identity, self.links, self._state, self._dials, door)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: Any = None
        self._opened = False
        self.port: int | None = None
        self._loop = _event_loop()

    def abort(self, cause: str, restore: bool = False) -> None:
        self._in_loop(self._stop(cause, restore)).result(self._state.timing.linger)

    def open(self) -> None:
        self._opened, self._state.opened = True, time.monotonic()
        self._in_loop(self._open()).result(OPENING)

    def close(self) -> None:
        if self._opened:
            self._in_loop(self._close()).result(self._state.timing.linger + 10)

    def abandon(self) -> None:
        if self._opened:
            self._in_loop(self._hang_up()).result(30)

    def _in_loop(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self) -> None:
        if self._door is not None:
            await self._listen(self._door)
        for peer in self._dials:
            self._tasks.append(self._loop.create_task(self._peering.keep_dialling(peer)))
        for link in self.links.values():
            self._peering.may_be_missing(link)

    async def _stop(self, cause: str, restore: bool) -> None:
        self._state.stop(cause, restore=restore)

    @property
    def strangers(self) -> int:
        """Connections that are not admitted yet."""
        return 0 if self._peering.listener is None else self._peering.listener.strangers

    async def _close(self) -> None:
        state, began = self._state, time.monotonic()
        state.closing = True
        state.wake()
        while not all(
            self._is_done(link, time.monotonic() - began) for link in self.links.values()
        ):
            await asyncio.sleep(0.01)
        await self._hang_up()

    async def _hang_up(self) -> None:
        self._peering.over = True  # a cancelled wait_for may forget it (before Python 3.12)
        for task in self._tasks:
            task.cancel()
        for session in [*self._state.sessions.values()]:
            session.hang_up()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(0.5)
        if self._peering.listener is not None:
            await self._peering.listener.close()

    async def _listen(self, door: ListenSettings) -> None:
        peering, state = self._peering, self._state
        limits = StrangerLimits.beside(len(door.expected))
        self._server, inner = server_for(
            door, self._identity, state.timing, peering.answer, peering.tell_time
        )
        try:
            listener = Listener(door.bind, inner, limits, state.refused_at)
        except RefusedError as problem:
            raise RefusedError(f"{title(self.me)} {problem}") from None
        await self._server.start()
        listener.open()
        peering.listener, self.port = listener, listener.port


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The event loop for all connections of this process, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="connections", daemon=True).start()
    return loop
