"""Makes connections: dialling, answering, authentication; one session after the other."""

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
from ..links.handshake import Handshakes, Retries, TakenError
from ..links.link import Hello, Link, pack
from ..links.party_state import PartyState, shortened
from ..links.position import NotYetError
from .connection import GrpcStream, StreamSession, next_packet
from .listener import Listener
from .tls import METHOD, SECONDS, Identity, ListenSettings, PeerAddress, channel_to, is_proved

UNUSABLE = ConnectionError, grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError
FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION)


class Peering:
    """The connections of one party: those that it dials, and those that it accepts."""

    def __init__(
        self,
        me: Party,
        run: str,
        identity: Identity,
        links: Mapping[Party, Link],
        state: PartyState,
        dials: Mapping[Party, PeerAddress],
        door: ListenSettings | None,
    ):
        self._me, self._run, self.identity = me, run, identity
        self._links, self._state = links, state
        self._dials, self._door = dials, door
        self._handshakes = Handshakes(links, state)
        self.over = False  # no more dialling
        self.listener: Listener | None = None  # accepts connections of peers that dial us
        self.clock: Callable[[], float] = time.time

    # Dialling

    async def keep_dialling(self, peer: Party) -> None:
        """Dial again and again, until Bye."""
        retries = Retries(self._links[peer], self._state)
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
        """One connection, until Bye. RefusedError and OutOfStepError are final; after
        ConnectionError, try again."""
        own, link = self.identity, self._links[peer]
        async with channel_to(self._dials[peer], own, self._state.timing) as channel:
            call = channel.stream_stream(METHOD)()
            try:
                challenge = secrets.token_bytes(32)
                hello = await self._exchange_hello(
                    call, link.hello(self._handshakes.boot, challenge)
                )
                self._authenticate(peer, hello, challenge)
                check = partial(self._check_certificate, peer, hello.certificate)
                await self._run_session(link, call, link.greeted(hello), check)
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

    def _authenticate(self, peer: Party, hello: Hello, challenge: bytes) -> None:
        """The peer must have the key of its certificate, and be on our allow-list."""
        self._check_certificate(peer, hello.certificate)
        if not is_proved(hello.certificate, hello.proof, challenge, self._run, self._me):
            raise self._not_authentic(peer, f"{title(peer)} did not prove that it has its key")

    def _check_certificate(self, peer: Party, certificate: bytes) -> None:
        try:
            party = self._dials[peer].gate.admit(certificate)
        except RefusedError as problem:
            raise self._not_authentic(peer, str(problem)) from None
        if party != peer:
            raise self._not_authentic(peer, f"{title(party)} answered in place of {title(peer)}")

    def _not_authentic(self, peer: Party, why: str) -> ConnectionError:
        """A ConnectionError, not final: the allow-list may be edited, or the right peer come
        back."""
        self._state.refused(why, peer)
        return ConnectionError(why)

    async def _exchange_hello(self, stream: GrpcStream, own: Hello | None = None) -> Hello:
        """Send our own Hello, if given, and receive the peer's."""
        try:
            async with asyncio.timeout(self._state.timing.silence):
                if own is not None:
                    await stream.write(pack(own))
                hello = await next_packet(stream)
        except TimeoutError:
            raise ConnectionError("no Hello came") from None
        if not isinstance(hello, Hello):
            raise RefusedError("the first packet was not a Hello")
        return hello

    # Listening

    async def answer(self, _: Any, context: Any) -> None:
        """Answer a call: authenticate the peer, admit it, run the session."""
        (pem,) = context.auth_context()["x509_pem_cert"]
        where = self._where(context)
        try:
            peer = self._admitted(pem)
            link, hello = self._links[peer], await self._exchange_hello(context)
            try:
                self._handshakes.admit(peer, hello)
            except TakenError as problem:
                await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(problem))
            proof = self.identity.prove(hello.challenge, self._run, peer)
            answer = link.hello(self._handshakes.boot, b"", self.identity.certificate, proof)
            try:
                start = link.greeted(hello)
            except (OutOfStepError, NotYetError):  # the peer needs our position, too
                await context.write(pack(answer))
                raise
            if peer in self._state.sessions:
                self._state.sessions[peer].hang_up()
            with self._let_in(context):
                await context.write(pack(answer))
                check = partial(self._admitted, pem)
                await self._run_session(link, context, start, check, address=where)
        except RefusedError as problem:
            await self._turn_away(context, problem)
        except OutOfStepError as problem:
            self._state.mailbox.fail(problem)
        except (ConnectionError, asyncio.InvalidStateError, grpc.RpcError):
            return

    async def tell_time(self, _: Any, context: Any) -> bytes:
        """Tell the time, to peers that would be admitted."""
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
        assert self.listener is not None
        return self.listener.address_of(context.peer())

    def _let_in(self, context: Any) -> AbstractContextManager[None]:
        assert self.listener is not None
        return self.listener.admitted(context.peer())

    async def _turn_away(self, context: Any, problem: RefusedError) -> None:
        self._state.refused(str(problem), address=self._where(context))
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, shortened(str(problem)))

    def _admitted(self, pem: bytes) -> Party:
        assert self._door is not None
        peer = self._door.gate.admit(pem)
        if peer not in self._door.expected:
            raise RefusedError(f"{title(peer)} does not belong to {title(self._me)}")
        return peer

    # Both sides

    async def _run_session(
        self,
        link: Link,
        stream: GrpcStream,
        start: Key,
        check: Callable[[], object],
        **where: str | None,
    ) -> None:
        state = self._state
        session = StreamSession(state, link, stream, start, check, link.peer in self._dials)
        state.joined(session, **where)
        why = "ended here"
        try:
            await session.run()
            why = "goodbye"
        except (ConnectionError, RefusedError, grpc.RpcError) as problem:
            why = _log_text(problem)
            raise
        finally:
            if state.left(session, why):
                self.may_be_missing(link)

    def may_be_missing(self, link: Link) -> None:
        """A peer has no connection: after some time, a client counts as gone."""
        if link.bye:
            self._state.mailbox.gone(link.peer)
        elif self._state.timing.absent is not None and isinstance(link.peer, Client):
            loop = asyncio.get_running_loop()
            loop.call_later(self._state.timing.absent, self._missing, link.peer)

    def _missing(self, peer: Party) -> None:
        if peer not in self._state.sessions:
            self._state.mailbox.gone(peer)


async def _why(call: Any, peer: Party, problem: Exception) -> Exception:
    """Why a call ended early: the peer's status, or the problem here."""
    with suppress(TimeoutError):
        code, details = await asyncio.wait_for(_status(call), 1.0)
        if code in FINAL:
            return RefusedError(f"{title(peer)} refused: {details}")
        if code != grpc.StatusCode.CANCELLED:  # cancelled here, because of the problem
            return ConnectionError(details or str(code))
    return ConnectionError(str(problem) or "hung up")


def _log_text(problem: Exception) -> str:
    """A problem as text for the log."""
    details = getattr(problem, "details", None)  # the str() of a gRPC error is a page long
    return shortened(str(details() if details else problem) or type(problem).__name__)


async def _status(call: Any) -> tuple[Any, str]:
    return await call.code(), await call.details()
