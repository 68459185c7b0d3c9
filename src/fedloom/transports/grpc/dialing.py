"""How two parties meet: dialling and answering, who is who, and one talk after another."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import grpc

from ...core.errors import OutOfStepError, RefusedError
from ...core.topology import Client, Party, title
from ...fabric.kinds import Key
from ..greeting import Greetings, Retries, TakenError
from ..link import Hello, Link, pack
from ..position import NotYetError
from ..standing import Standing, shortened
from .connection import Stream, StreamTalk, next_packet
from .listener import Front
from .tls import METHOD, SECONDS, Address, Door, Identity, channel_to, is_proved

UNUSABLE = ConnectionError, grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError
FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION)


class Meeting:
    """The connections of one party: those that it dials, and those that come through its door."""

    def __init__(
        self,
        me: Party,
        run: str,
        identity: Identity,
        links: Mapping[Party, Link],
        standing: Standing,
        dials: Mapping[Party, Address],
        door: Door | None,
    ):
        self._me, self._run, self.identity = me, run, identity
        self._links, self._standing = links, standing
        self._dials, self._door = dials, door
        self._greetings = Greetings(links, standing)
        self.over = False  # nobody is dialled any more
        self.front: Front | None = None  # where those come in who dial us
        self.clock: Callable[[], float] = time.time

    # Dialling

    async def keep_dialling(self, peer: Party) -> None:
        """Until goodbye, or until it is over."""
        retries = Retries(self._links[peer], self._standing)
        while not self.over:
            try:
                await self._dial(peer)
                return
            except (RefusedError, OutOfStepError, ConnectionError) as problem:
                pause = retries.pause(problem)
            if pause is None:
                return
            await asyncio.sleep(pause)

    async def _dial(self, peer: Party) -> None:
        """One connection, until goodbye; RefusedError and OutOfStepError are for good,
        ConnectionError is not."""
        own, link = self.identity, self._links[peer]
        async with channel_to(self._dials[peer], own, self._standing.timing) as channel:
            call = channel.stream_stream(METHOD)()
            try:
                challenge = secrets.token_bytes(32)
                hello = await self._greeting(call, link.hello(self._greetings.boot, challenge))
                self._believe(peer, hello, challenge)
                check = partial(self._listed, peer, hello.certificate)
                await self._talk(link, call, link.greeted(hello), check)
                await call.done_writing()
                await asyncio.wait_for(call.code(), 1.0)
            except NotYetError:
                raise
            except UNUSABLE as problem:
                raise await _why(call, peer, problem) from None
            except TimeoutError:
                return
            finally:
                call.cancel()

    def _believe(self, peer: Party, hello: Hello, challenge: bytes) -> None:
        """Whom we dialled has the key of the certificate that it shows, and it is on our list."""
        self._listed(peer, hello.certificate)
        if not is_proved(hello.certificate, hello.proof, challenge, self._run, self._me):
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

    async def answer(self, _: Any, context: Any) -> None:
        """One call: from whom, by its certificate; may it; and then the talk."""
        (pem,) = context.auth_context()["x509_pem_cert"]
        where = self._where(context)
        try:
            peer = self._admitted(pem)
            link, hello = self._links[peer], await self._greeting(context)
            try:
                self._greetings.admit(peer, hello)
            except TakenError as problem:
                await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(problem))
            proof = self.identity.prove(hello.challenge, self._run, peer)
            answer = link.hello(self._greetings.boot, b"", self.identity.certificate, proof)
            try:
                start = link.greeted(hello)
            except (OutOfStepError, NotYetError):  # it has to know where we are, too
                await context.write(pack(answer))
                raise
            if peer in self._standing.talks:
                self._standing.talks[peer].hang_up()
            with self._let_in(context):
                await context.write(pack(answer))
                check = partial(self._admitted, pem)
                await self._talk(link, context, start, check, address=where)
        except RefusedError as problem:
            await self._turn_away(context, problem)
        except OutOfStepError as problem:
            self._standing.mailbox.fail(problem)
        except (ConnectionError, asyncio.InvalidStateError, grpc.RpcError):
            return

    async def tell_time(self, _: Any, context: Any) -> bytes:
        """To those whom we would talk to."""
        (pem,) = context.auth_context()["x509_pem_cert"]
        try:
            self._admitted(pem)
            with self._let_in(context):
                return SECONDS.pack(self.clock())
        except RefusedError as problem:
            await self._turn_away(context, problem)
            raise
        except ConnectionError as problem:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(problem))
            raise

    def _where(self, context: Any) -> str | None:
        assert self.front is not None
        return self.front.knock(context.peer())

    def _let_in(self, context: Any) -> AbstractContextManager[None]:
        assert self.front is not None
        return self.front.let_in(context.peer())

    async def _turn_away(self, context: Any, problem: RefusedError) -> None:
        self._standing.refused(str(problem), address=self._where(context))
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, shortened(str(problem)))

    def _admitted(self, pem: bytes) -> Party:
        assert self._door is not None
        peer = self._door.gate.admit(pem)
        if peer not in self._door.expected:
            raise RefusedError(f"{title(peer)} does not belong to {title(self._me)}")
        return peer

    # Both

    async def _talk(
        self,
        link: Link,
        stream: Stream,
        start: Key,
        check: Callable[[], object],
        **where: str | None,
    ) -> None:
        standing = self._standing
        talk = StreamTalk(standing, link, stream, start, check)
        standing.joined(talk, **where)
        why = "ended here"
        try:
            await talk.run()
            why = "goodbye"
        except (ConnectionError, RefusedError, grpc.RpcError) as problem:
            why = _said(problem)
            raise
        finally:
            if standing.left(talk, why):
                self.may_be_missing(link)

    def may_be_missing(self, link: Link) -> None:
        """There is no connection: after some time, a client counts as gone."""
        if link.bye:
            self._standing.mailbox.gone(link.peer)
        elif self._standing.timing.absent is not None and isinstance(link.peer, Client):
            loop = asyncio.get_running_loop()
            loop.call_later(self._standing.timing.absent, self._missing, link.peer)

    def _missing(self, peer: Party) -> None:
        if peer not in self._standing.talks:
            self._standing.mailbox.gone(peer)


async def _why(call: Any, peer: Party, problem: Exception) -> Exception:
    """Why a call ended before its time: what the other says, or what went wrong here."""
    with suppress(TimeoutError):
        code, details = await asyncio.wait_for(_status(call), 1.0)
        if code in FINAL:
            return RefusedError(f"{title(peer)} refused: {details}")
        if code != grpc.StatusCode.CANCELLED:  # by us, over the problem
            return ConnectionError(details or str(code))
    return ConnectionError(str(problem) or "hung up")


def _said(problem: Exception) -> str:
    """In a line of a log."""
    details = getattr(problem, "details", None)  # of gRPC's, whose text is a page
    return shortened(str(details() if details else problem) or type(problem).__name__)


async def _status(call: Any) -> tuple[Any, str]:
    return await call.code(), await call.details()
