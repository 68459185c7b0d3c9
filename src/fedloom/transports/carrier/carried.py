"""Links over any carrier that takes a request to a peer and brings its answer back.

Of two parties, one sends requests (a client to its hub; of two hubs, the later in the order) and
the other answers, so that only one of them must be reachable. A connection begins with a Hello.
Then it has two lanes of exchanges: one for packets of the requesting party, and one on which it
waits for packets of the answering party. Lost, repeated and delayed exchanges do no harm
(exchange.py). Other failures end the connection, and the link continues over the next one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, Unpack

from ...core.errors import FrameError, OutOfStepError, ProtocolError, RefusedError
from ...core.topology import Client, Party, title
from ..links.handshake import SOON, Handshakes, Retries
from ..links.link import CHUNK, Hello, Link, Packet
from ..links.linked import LinkedTransport
from ..links.party import TransportOptions
from ..links.party_state import shortened
from ..links.position import NotYetError
from .exchange import (
    GREETING,
    IN,
    OUT,
    Answer,
    ConnectionName,
    ExchangeSession,
    PeerExchanges,
    Request,
    answer_of,
    encode,
    request_of,
)

Answering = Callable[[Party, bytes], bytes]


class Carrier(Protocol):
    """What a messaging system must provide. It must authenticate peers: those whose requests it
    delivers, and those that answer."""

    def open(self, answer: Answering) -> None:
        """From now on, call `answer(peer, request)` for each request to this party. It may be
        called from several threads at once, and takes up to a beat."""
        ...

    def carry(self, peer: Party, request: bytes) -> bytes:
        """Send a request; returns the peer's answer. OSError (ConnectionError, TimeoutError) where
        none came, whether or not the request arrived. It should give up after some beats."""
        ...

    def close(self) -> None: ...


class CarriedTransport(LinkedTransport):
    """The links of one party: to peers that it `dials`, and to peers that are `expected` to dial
    it. `largest`: about so many bytes in an exchange."""

    def __init__(
        self,
        me: Party,
        run: str,
        carrier: Carrier,
        *,
        dials: Iterable[Party] = (),
        expected: Iterable[Party] = (),
        largest: int = CHUNK,
        **options: Unpack[TransportOptions],
    ):
        self._dials, self._served = tuple(dials), {peer: PeerExchanges() for peer in expected}
        super().__init__(me, run, (*self._dials, *self._served), **options)
        self._carrier, self._largest = carrier, largest
        self._handshakes = Handshakes(self.links, self._state)
        self._count = itertools.count(1)  # of connections that this party dialled
        self._alone = dict.fromkeys(self.links, time.monotonic())  # time of the last disconnection
        self._over, self._opened = threading.Event(), False
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        self._opened, self._state.opened = True, time.monotonic()
        self._carrier.open(self._answer)
        self._alone = dict.fromkeys(self.links, time.monotonic())
        for peer in self._dials:
            self._threads.append(_thread(self._keep_dialling, peer))
        self._threads.append(_thread(self._watch))

    def abort(self, cause: str, restore: bool = False) -> None:
        self._state.stop(cause, restore=restore)

    def close(self) -> None:
        if self._opened:
            state, began = self._state, time.monotonic()
            state.closing = True
            state.wake()
            while not all(
                self._is_done(link, time.monotonic() - began) for link in self.links.values()
            ):
                time.sleep(0.01)
            self.abandon()

    def abandon(self) -> None:
        if self._opened:
            self._over.set()
            for session in [*self._state.sessions.values()]:
                session.hang_up()
            for thread in self._threads:
                thread.join(self._state.timing.silence)
            self._carrier.close()

    # Dialling

    def _keep_dialling(self, peer: Party) -> None:
        """One connection after the other, until Bye."""
        retries = Retries(self.links[peer], self._state)
        while not self._over.is_set():
            try:
                self._connect(peer)
                return
            except (RefusedError, OutOfStepError, ConnectionError) as problem:
                pause = None if self._over.is_set() else retries.pause(problem)
            except Exception as problem:
                self._failed(problem)
                return
            if pause is None:
                return
            self._over.wait(pause)

    def _failed(self, problem: Exception) -> None:
        """A carrier that raises anything but OSError is broken: stop."""
        why = f"{title(self.me)}: its carrier failed ({type(problem).__name__}: {problem})"
        self._state.mailbox.fail(ProtocolError(why))

    def _connect(self, peer: Party) -> None:
        link, name = self.links[peer], (self._handshakes.boot, next(self._count))
        lanes = _Lanes(self._carrier, link, name, self._state.timing.silence, self._over)
        answer = lanes.ask(GREETING, [link.hello(self._handshakes.boot)])
        start = link.greeted(_hello_of(answer.packets))
        answer.check(peer)
        session = ExchangeSession(self._state, link, start, self._largest)
        self._state.joined(session)
        why = "ended here"
        try:
            _thread(self._receive_from, session, lanes)
            self._send_to(session, lanes)
            why = "goodbye"
        except (ConnectionError, RefusedError) as problem:
            why = shortened(str(problem))
            raise
        finally:
            session.hang_up()
            with suppress(ConnectionError, RefusedError):
                lanes.ask(OUT, (), once=not session.finished)
            self._left(session, why)

    def _send_to(self, session: ExchangeSession, lanes: _Lanes) -> None:
        while not session.over.is_set():
            if packets := session.batch(session.beat):
                lanes.ask(OUT, packets)
            if session.finished:
                return
        raise session.problem or ConnectionError("hung up")

    def _receive_from(self, session: ExchangeSession, lanes: _Lanes) -> None:
        try:
            while not session.over.is_set():
                if session.is_ahead:
                    session.over.wait(SOON)
                else:
                    session.take(lanes.ask(IN, ()).packets)
        except (ConnectionError, RefusedError) as problem:
            session.problem = problem.with_traceback(None)
        except Exception as problem:
            self._failed(problem)
        finally:
            session.hang_up()

    # Answering

    def _answer(self, peer: Party, data: bytes) -> bytes:
        try:
            request = request_of(data)
        except FrameError as problem:
            self._state.refused(str(problem), peer)
            return encode(Answer(("", 0), GREETING, 0, (), str(problem)))
        if peer not in self._served:
            why = f"{title(peer)} does not belong to {title(self.me)}"
            self._state.refused(why, peer)
            return encode(Answer(request.talk, request.lane, request.number, (), why, True))
        answer = self._served[peer].answer(request, lambda request: self._first(peer, request))
        self.links[peer].counts["on the wire"] += len(answer)
        return answer

    def _first(self, peer: Party, request: Request) -> Answer:
        """The answer to a new request."""
        answer = Answer(request.talk, request.lane, request.number)
        try:
            if request.lane == GREETING:
                self._meet(peer, request, answer)
            else:
                answer.packets = self._go_on(peer, request)
        except (RefusedError, ConnectionError) as problem:
            answer.why, answer.final = shortened(str(problem)), isinstance(problem, RefusedError)
            if answer.final:
                self._state.refused(str(problem), peer)
        except OutOfStepError as problem:
            self._state.mailbox.fail(problem)
            answer.why = str(problem)
        return answer

    def _meet(self, peer: Party, request: Request, answer: Answer) -> None:
        served, link, state = self._served[peer], self.links[peer], self._state
        if self._over.is_set() or served.is_late(request.talk):
            raise ConnectionError("no such connection")
        hello = _hello_of(request.packets)
        if hello.boot != request.talk[0]:
            raise RefusedError(f"{title(peer)} sent a Hello under another name")
        self._handshakes.admit(peer, hello)
        own = link.hello(self._handshakes.boot)
        try:
            start = link.greeted(hello)
        except (OutOfStepError, NotYetError):  # the peer needs our position, too
            answer.packets = (own,)
            raise
        if served.session is not None:
            served.session.hang_up()
        served.name, served.session = (
            request.talk,
            ExchangeSession(state, link, start, self._largest),
        )
        state.joined(served.session)
        answer.packets = (own,)

    def _go_on(self, peer: Party, request: Request) -> Sequence[Packet]:
        session = self._served[peer].connection(request.talk)
        session.heard = time.monotonic()
        if request.lane == IN:
            return session.batch(session.beat)
        if not request.packets:
            self._end(session, "goodbye" if session.link.bye else "hung up")
            return ()
        try:
            session.take(request.packets)
        except RefusedError as problem:
            self._end(session, shortened(str(problem)))
            raise
        until = time.monotonic() + session.beat
        while session.is_ahead and time.monotonic() < until:
            session.over.wait(SOON)
        return ()

    # Both sides

    def _end(self, session: ExchangeSession, why: str) -> None:
        session.hang_up()
        self._left(session, why)

    def _left(self, session: ExchangeSession, why: str) -> None:
        link = session.link
        if self._state.left(session, why):
            self._alone[link.peer] = time.monotonic()
            if link.bye:
                self._state.mailbox.gone(link.peer)

    def _watch(self) -> None:
        """Silence ends a connection that the peer dialled. A client without a connection for too
        long counts as gone. Time in which this process was suspended does not count."""
        timing, last = self._state.timing, time.monotonic()
        while not self._over.wait(timing.beat):
            now = time.monotonic()
            lost = now - last if now - last > timing.beat + timing.silence / 2 else 0.0
            last = now
            for served in self._served.values():
                session = served.session
                if session is not None and not session.over.is_set():
                    session.heard += lost
                    try:
                        session.check_silence()
                    except ConnectionError as problem:
                        self._end(session, str(problem))
            for link in self.links.values():
                self._may_be_missing(link, now)

    def _may_be_missing(self, link: Link, now: float) -> None:
        absent, mailbox = self._state.timing.absent, self._state.mailbox
        if absent is None or not isinstance(link.peer, Client):
            return
        connected = link.peer in self._state.sessions
        if (
            not connected
            and not mailbox.is_gone(link.peer)
            and now - self._alone[link.peer] > absent
        ):
            mailbox.gone(link.peer)


class _Lanes:
    """The exchanges of a connection that this party dialled."""

    def __init__(
        self, carrier: Carrier, link: Link, name: ConnectionName, patience: float, over: Any
    ):
        self._carrier, self._link, self._name = carrier, link, name
        self._patience, self._over = patience, over
        self._numbers = [0, 0, 0]

    def ask(self, lane: int, packets: Sequence[Packet], once: bool = False) -> Answer:
        """Repeat a request until there is an answer, for as long as there is patience."""
        self._numbers[lane] += 1
        asked = self._name, lane, self._numbers[lane]
        request, until = encode(Request(*asked, packets)), time.monotonic() + self._patience
        while True:
            self._link.counts["on the wire"] += len(request)
            try:
                answer = answer_of(self._carrier.carry(self._link.peer, request))
                if (answer.talk, answer.lane, answer.number) == asked:
                    break
                why = answer.why or "an answer to something else"
            except (OSError, FrameError) as problem:
                why = str(problem) or type(problem).__name__
            if once or self._over.is_set() or time.monotonic() > until:
                raise ConnectionError(why)
            self._over.wait(SOON)
        if not answer.packets:
            answer.check(self._link.peer)
        return answer


def _hello_of(packets: Sequence[Packet]) -> Hello:
    if len(packets) != 1 or not isinstance(packets[0], Hello):
        raise RefusedError("the first packet was not a Hello")
    return packets[0]


def _thread(work: Callable[..., None], *given: Any) -> threading.Thread:
    made = threading.Thread(target=work, args=given, name="connections", daemon=True)
    made.start()
    return made
