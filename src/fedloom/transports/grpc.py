"""Parties on different machines: gRPC with mutual TLS.

Hubs (and the server) listen; a client dials its hub, and of two hubs the later in the order dials
the earlier. Each pair has one bidirectional stream at a time, which is opened again whenever it
breaks; what a link is over many connections is in link.py, one connection in talk.py. The engine
runs in its own thread and knows nothing of all this; connections live in one event loop beside it,
so that signs of life go on while a party computes.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial
from typing import Any

import grpc

from .. import tree
from ..errors import LostError, ProtocolError, RefusedError
from ..federation.messages import Key, Message
from ..federation.permits import Permits
from ..federation.topology import Client, Party, title
from . import wire
from .base import Mailbox
from .link import Hello, Link, pack
from .secure import METHOD, Address, Door, Identity, channel_to, is_proved, server_at
from .talk import Note, Standing, Stream, Talk, Timing, next_packet

FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION)


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
        largest: float = math.inf,
        note: Note = lambda event, **facts: None,
    ):
        self.me, self._run, self._identity = me, run, identity
        self._dials, self._door = dict(dials or {}), door
        self._standing = Standing(Mailbox(me), timing or Timing(), note)
        self._boot = secrets.token_hex(8)
        joins, box = isinstance(me, Client), self._standing.mailbox
        self.links = {
            peer: Link(me, peer, run, box, cap=cap, joins=joins, permits=permits, largest=largest)
            for peer in (*self._dials, *(door.expected if door else ()))
        }
        self._replaced: set[str] = set()  # boots of processes that others took the place of
        self._tasks: list[asyncio.Task[None]] = []
        self._server: Any = None
        self._opened = self._over = False
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

    def abort(self, cause: str) -> None:
        self._in_loop(self._stop(cause)).result(self._standing.timing.linger)

    # Life

    def open(self, within: float = 30.0) -> None:
        """Listen and dial."""
        self._opened = True
        self._in_loop(self._open()).result(within)

    def await_peers(self, peers: Iterable[Party], within: float) -> None:
        """Until there has been a connection with each of them."""
        until = time.monotonic() + within
        for peer in peers:
            while not self.links[peer].boot:
                self._standing.mailbox.check()
                if time.monotonic() > until:
                    where = f"{title(self.me)} was not connected with {title(peer)}"
                    raise LostError(f"{where} within {within:g} s")
                time.sleep(0.01)

    def close(self) -> None:
        """Let everyone hear what is on its way, within `linger` seconds, and hang up."""
        if self._opened:
            self._in_loop(self._close()).result(self._standing.timing.linger + 10)

    def _in_loop(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self) -> None:
        if self._door is not None:
            await self._listen(self._door)
        for peer, address in self._dials.items():
            self._tasks.append(self._loop.create_task(self._keep_dialling(peer, address)))
        for link in self.links.values():
            self._may_be_missing(link)

    async def _stop(self, cause: str) -> None:
        self._standing.stop(cause)

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
    def cause(self) -> str | None:
        """Why the run was stopped, if it was: the same at every party, once they have talked."""
        return self._standing.cause

    async def _close(self) -> None:
        standing, began = self._standing, time.monotonic()
        standing.closing = True
        standing.wake()
        while not all(
            self._is_done(link, time.monotonic() - began) for link in self.links.values()
        ):
            await asyncio.sleep(0.01)
        self._over = True  # a cancelled wait_for may forget it (before Python 3.12)
        for task in self._tasks:
            task.cancel()
        for talk in [*standing.talks.values()]:
            talk.hang_up()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(0.5)

    def _is_done(self, link: Link, waited: float) -> bool:
        """Both have said goodbye; or the other is not there to hear why the run was stopped."""
        standing, here = self._standing, link.peer in self._standing.talks
        patience = standing.timing.linger
        if standing.cause is not None and not here:
            patience = min(patience, standing.timing.silence / 2)
        return (link.bye and not here) or waited > patience

    # Dialling

    async def _keep_dialling(self, peer: Party, address: Address) -> None:
        pause, told, link = 0.05, "", self.links[peer]
        while not self._over:
            met = link.meetings
            try:
                await self._dial(peer, address)
                return
            except RefusedError as problem:
                self._standing.refused(str(problem), peer)
                self._standing.mailbox.fail(problem)
                return
            except ConnectionError as problem:
                if str(problem) != told:
                    told = str(problem)
                    self._standing.note("unreachable", peer=str(peer), why=told)
                pause = 0.05 if link.meetings > met else min(1.0, 2 * pause)
            await asyncio.sleep(pause)

    async def _dial(self, peer: Party, address: Address) -> None:
        """One connection, until goodbye; RefusedError is for good, ConnectionError is not."""
        own, link = self._identity, self.links[peer]
        async with channel_to(address, own, self._standing.timing) as channel:
            call = channel.stream_stream(METHOD)()
            try:
                challenge = secrets.token_bytes(32)
                hello = await self._greeting(call, link.hello(self._boot, challenge))
                self._believe(peer, hello, challenge)
                check = partial(self._listed, peer, hello.certificate)
                await self._talk(link, call, link.greeted(hello), check)
                await call.done_writing()
                await asyncio.wait_for(call.code(), 1.0)
            except (ConnectionError, grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
                raise await _why(call, peer) from None
            except TimeoutError:
                return
            finally:
                call.cancel()

    def _believe(self, peer: Party, hello: Hello, challenge: bytes) -> None:
        """Whom we dialled has the key of the certificate that it shows, and it is on our list."""
        self._listed(peer, hello.certificate)
        if not is_proved(hello.certificate, hello.proof, challenge, self._run, self.me):
            raise self._unbelieved(peer, f"{title(peer)} did not prove that it has its key")

    def _listed(self, peer: Party, certificate: bytes) -> None:
        try:
            found = self._dials[peer].gate.admit(certificate)
        except RefusedError as problem:
            raise self._unbelieved(peer, str(problem)) from None
        if found != peer:
            raise self._unbelieved(peer, f"{title(found)} answered in place of {title(peer)}")

    def _unbelieved(self, peer: Party, why: str) -> ConnectionError:
        """Not for good: the list may be edited, or the right one may come back."""
        self._standing.refused(why, peer)
        return ConnectionError(why)

    async def _greeting(self, stream: Stream, own: Hello | None = None) -> Hello:
        """The other's greeting, after one's own if that comes first."""
        try:
            async with asyncio.timeout(self._standing.timing.silence):
                if own is not None:
                    await stream.write(pack(own))
                hello = await next_packet(stream)
        except TimeoutError:
            raise ConnectionError("no greeting came") from None
        if not isinstance(hello, Hello):
            raise RefusedError("something else than a greeting came first")
        return hello

    # Listening

    async def _listen(self, door: Door) -> None:
        try:
            self._server, self.port = server_at(
                door, self._identity, self._standing.timing, self._answer
            )
        except RuntimeError as problem:
            raise RefusedError(
                f"{title(self.me)} cannot listen on {door.bind}: {problem}"
            ) from None
        await self._server.start()

    async def _answer(self, _: Any, context: Any) -> None:
        """One call: from whom, by its certificate; may it; and then the talk."""
        (pem,) = context.auth_context()["x509_pem_cert"]
        try:
            peer = self._admitted(pem)
            link, hello = self.links[peer], await self._greeting(context)
            if hello.boot in self._replaced:
                raise RefusedError(f"{title(peer)}: a newer process has taken its place")
            if link.boot != hello.boot and peer in self._standing.talks:
                self._standing.refused("it is connected already", peer)
                await context.abort(grpc.StatusCode.ALREADY_EXISTS, "connected already")
            if link.boot not in ("", hello.boot):
                self._replaced.add(link.boot)
            proof = self._identity.prove(hello.challenge, self._run, peer)
            start = link.greeted(hello)
            answer = link.hello(self._boot, b"", self._identity.certificate, proof)
            if peer in self._standing.talks:
                self._standing.talks[peer].hang_up()
            await context.write(pack(answer))
            await self._talk(link, context, start, lambda: self._admitted(pem))
        except RefusedError as problem:
            self._standing.refused(str(problem))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(problem))
        except (ConnectionError, asyncio.InvalidStateError, grpc.RpcError):
            return

    def _admitted(self, pem: bytes) -> Party:
        assert self._door is not None
        peer = self._door.gate.admit(pem)
        if peer not in self._door.expected:
            raise RefusedError(f"{title(peer)} does not belong to {title(self.me)}")
        return peer

    # Both

    async def _talk(
        self, link: Link, stream: Stream, start: Key, check: Callable[[], object]
    ) -> None:
        standing, peer = self._standing, link.peer
        talk = Talk(standing, link, stream, start, check)
        standing.talks[peer] = talk
        standing.mailbox.back(peer)
        standing.note("joined", peer=str(peer))
        try:
            await talk.run()
        finally:
            if standing.talks.get(peer) is talk:
                del standing.talks[peer]
                standing.note("left", peer=str(peer), meant=link.bye)
                self._may_be_missing(link)

    def _may_be_missing(self, link: Link) -> None:
        """There is no connection: after some time, a client counts as gone."""
        if link.bye:
            self._standing.mailbox.gone(link.peer)
        elif self._standing.timing.absent is not None and isinstance(link.peer, Client):
            self._loop.call_later(self._standing.timing.absent, self._missing, link.peer)

    def _missing(self, peer: Party) -> None:
        if peer not in self._standing.talks:
            self._standing.mailbox.gone(peer)


async def _why(call: Any, peer: Party) -> Exception:
    """Why a call ended before its time."""
    with suppress(TimeoutError):
        code, details = await asyncio.wait_for(_status(call), 1.0)
        if code in FINAL:
            return RefusedError(f"{title(peer)} refused: {details}")
        return ConnectionError(details or str(code))
    return ConnectionError("hung up")


async def _status(call: Any) -> tuple[Any, str]:
    return await call.code(), await call.details()


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """One for the connections of this process, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="connections", daemon=True).start()
    return loop
