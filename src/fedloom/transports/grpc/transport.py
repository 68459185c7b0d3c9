"""Parties on different machines: gRPC with mutual TLS.

Hubs (and the server) listen; a client dials its hub, and of two hubs the later in the order dials
the earlier. Each pair has one bidirectional stream at a time, which is opened again whenever it
breaks; what a link is over many connections is in link.py, one connection in talk.py, how they come
about in meeting.py. The engine runs in its own thread and knows nothing of all this; connections
live in one event loop beside it, so that signs of life go on while a party computes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any

from ...core import tree
from ...core.errors import LostError, ProtocolError, RefusedError
from ...core.topology import Client, Party, title
from ...fabric.kinds import Key, Message
from ...fabric.permits import Bounds, Permits
from .. import wire
from ..base import Mailbox
from ..link import Link
from ..position import Position
from .connection import Note, Standing, Timing
from .dialing import Meeting
from .listener import Front, Limits
from .tls import Address, Door, Identity, server_for


class GrpcTransport:
    """The links of one party: those that it `dials`, and those that come through its `door`."""

    def __init__(
        self,
        me: Party,
        run: str,
        identity: Identity,
        *,
        dials: Mapping[Party, Address] | None = None,
        door: Door | None = None,
        timing: Timing | None = None,
        permits: Permits | None = None,
        cap: int = wire.CAP,
        bounds: Bounds | None = None,
        position: Position | None = None,
        note: Note = lambda event, **facts: None,
    ):
        self.me, self._identity = me, identity
        self._dials, self._door = dict(dials or {}), door
        self._standing = Standing(Mailbox(me), timing or Timing(), note)
        joins, box = isinstance(me, Client), self._standing.mailbox
        self.position = position or Position()
        rules: dict[str, Any] = {"cap": cap, "permits": permits, "bounds": bounds}
        self.links = {
            peer: Link(me, peer, run, box, joins=joins, position=self.position, **rules)
            for peer in (*self._dials, *(door.expected if door else ()))
        }
        self._meeting = Meeting(me, run, identity, self.links, self._standing, self._dials, door)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: Any = None
        self._opened = False
        self._last: tuple[Key | None, Any, wire.Body | None] = (None, None, None)
        self.port: int | None = None
        self._loop = _event_loop()

    # What an engine asks for

    def send(self, message: Message) -> None:
        if message.to == self.me:
            copied = message._replace(payload=tree.copy(message.payload))
            self._standing.mailbox.put(copied)
            return
        if message.to not in self.links:
            where = f"{title(self.me)} has no link to {title(message.to)}"
            raise ProtocolError(f"{message.kind}: {where}")
        self.links[message.to].post(message, self._body(message))

    def _body(self, message: Message) -> wire.Body:
        """The payload as bytes: once for all who are sent the same in a move."""
        key, payload, body = self._last
        if body is None or key != message.key or payload is not message.payload:
            body = wire.body_of(message.payload, message.kind)
            self._last = message.key, message.payload, body
        return body

    def mailbox(self, party: Party) -> Mailbox:
        if party != self.me:
            raise ProtocolError(f"{title(party)} is not here")
        return self._standing.mailbox

    def pulse(self, party: Party) -> None:
        self._standing.pulsed = time.monotonic()

    def abort(self, cause: str, restore: bool = False) -> None:
        self._in_loop(self._stop(cause, restore)).result(self._standing.timing.linger)

    # Life

    def open(self, within: float = 30.0) -> None:
        """Listen and dial."""
        self._opened = True
        self._in_loop(self._open()).result(within)

    def await_peers(self, peers: Iterable[Party], within: float) -> None:
        """Until there has been a connection with each of them, in one attempt."""
        begun = time.monotonic()
        for peer in peers:
            link = self.links[peer]
            while not link.boot:
                self.still_here()
                # one that is agreeing with others where to go on from says that it is there
                if time.monotonic() > max(begun, self._standing.mailbox.last(peer)) + within:
                    where = f"{title(self.me)} was not connected with {title(peer)}"
                    raise LostError(f"{where} within {within:g} s")

    def still_here(self) -> None:
        """A moment later: those who wait for us wait on, and so do we, unless the run is over."""
        self.pulse(self.me)
        self._standing.mailbox.check()
        time.sleep(0.01)

    def close(self) -> None:
        """Let everyone hear what is on its way, within `linger` seconds, and hang up."""
        if self._opened:
            self._in_loop(self._close()).result(self._standing.timing.linger + 10)

    def abandon(self) -> None:
        """Hang up at once: this party will be back."""
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

    def keep(self) -> None:
        """What is taken from many is kept until it is forgotten."""
        self._standing.mailbox.kept = []

    def forget(self) -> None:
        if self._standing.mailbox.kept is not None:
            self._standing.mailbox.kept = []

    @property
    def kept(self) -> list[Message]:
        return self._standing.mailbox.kept or []

    @property
    def present(self) -> list[Party]:
        """To whom there is a connection now."""
        return list(self._standing.talks)

    @property
    def awaited(self) -> frozenset[Party]:
        """Whose message is waited for now."""
        return self._standing.mailbox.awaited

    @property
    def refusals(self) -> int:
        """How often anybody was refused."""
        return self._standing.refusals

    @property
    def strangers(self) -> int:
        """Connections that have not been let in."""
        return 0 if self._meeting.front is None else self._meeting.front.strangers

    @property
    def cause(self) -> str | None:
        """Why the run was stopped, if it was: the same at every party, once they have talked."""
        return self._standing.cause

    @property
    def restore(self) -> bool:
        """Whether it cannot go on before something is restored."""
        return self._standing.restore

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

    def _is_done(self, link: Link, waited: float) -> bool:
        """Both have said goodbye; or the other is not there to hear why the run was stopped."""
        standing, here = self._standing, link.peer in self._standing.talks
        patience = standing.timing.linger
        if standing.cause is not None and not here:
            patience = min(patience, standing.timing.silence / 2)
        return (link.bye and not here) or waited > patience

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
