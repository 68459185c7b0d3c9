"""A party's links over anything that takes bytes to a peer and brings its answer back.

Of two parties one asks (a client its hub, of two hubs the later in the order) and the other
answers, so that only one of them need be reachable. A connection is a greeting and then two lanes
of exchanges: on one goes out what the asking party has to say, on the other it waits for what the
answering one has to say. A lost, repeated or delayed exchange changes nothing (exchange.py); what
cannot be mended so ends the connection, and links go on over the next one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, Unpack

from ..core.errors import FrameError, OutOfStepError, ProtocolError, RefusedError
from ..core.topology import Client, Party, title
from .exchange import (
    GREETING,
    IN,
    OUT,
    Answer,
    ExchangeTalk,
    Name,
    Request,
    Served,
    answer_of,
    encode,
    request_of,
)
from .greeting import SOON, Greetings, Retries
from .link import CHUNK, Hello, Link, Packet
from .linked import LinkedTransport
from .party import Rules
from .position import NotYetError
from .standing import shortened

Answering = Callable[[Party, bytes], bytes]


class Carrier(Protocol):
    """What a messaging system has to do for a party. It vouches for who a peer is: whose request it
    hands over, and who answers."""

    def open(self, answer: Answering) -> None:
        """From now on `answer(peer, request)` gives the answers to those who ask this party. It
        may be called from any thread, by several at once, and takes up to a beat."""
        ...

    def carry(self, peer: Party, request: bytes) -> bytes:
        """The peer's answer. OSError (ConnectionError, TimeoutError) where none came, whether or
        not the request arrived; that is for it to notice, some beats later."""
        ...

    def close(self) -> None: ...


class CarriedTransport(LinkedTransport):
    """The links of one party: to those that it `dials`, and those `expected` to dial it. `largest`:
    bytes of an exchange, about."""

    def __init__(
        self,
        me: Party,
        run: str,
        carrier: Carrier,
        *,
        dials: Iterable[Party] = (),
        expected: Iterable[Party] = (),
        largest: int = CHUNK,
        **rules: Unpack[Rules],
    ):
        self._dials, self._served = tuple(dials), {peer: Served() for peer in expected}
        super().__init__(me, run, (*self._dials, *self._served), **rules)
        self._carrier, self._largest = carrier, largest
        self._greetings = Greetings(self.links, self._standing)
        self._count = itertools.count(1)  # of connections that this party asked for
        self._alone = dict.fromkeys(self.links, time.monotonic())  # since when without one
        self._over, self._opened = threading.Event(), False
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        self._opened = True
        self._carrier.open(self._answer)
        self._alone = dict.fromkeys(self.links, time.monotonic())
        for peer in self._dials:
            self._threads.append(_thread(self._keep_asking, peer))
        self._threads.append(_thread(self._watch))

    def abort(self, cause: str, restore: bool = False) -> None:
        self._standing.stop(cause, restore=restore)

    def close(self) -> None:
        if self._opened:
            standing, began = self._standing, time.monotonic()
            standing.closing = True
            standing.wake()
            while not all(
                self._is_done(link, time.monotonic() - began) for link in self.links.values()
            ):
                time.sleep(0.01)
            self.abandon()

    def abandon(self) -> None:
        if self._opened:
            self._over.set()
            for talk in [*self._standing.talks.values()]:
                talk.hang_up()
            for thread in self._threads:
                thread.join(self._standing.timing.silence)
            self._carrier.close()

    # Asking

    def _keep_asking(self, peer: Party) -> None:
        """One connection after the other, until goodbye, or until it is over."""
        retries = Retries(self.links[peer], self._standing)
        while not self._over.is_set():
            try:
                self._talk_to(peer)
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
        """A carrier that does not do as it promised is nothing to try again with."""
        why = f"{title(self.me)}: its carrier failed ({type(problem).__name__}: {problem})"
        self._standing.mailbox.fail(ProtocolError(why))

    def _talk_to(self, peer: Party) -> None:
        link, name = self.links[peer], (self._greetings.boot, next(self._count))
        lanes = _Lanes(self._carrier, link, name, self._standing.timing.silence, self._over)
        answer = lanes.ask(GREETING, [link.hello(self._greetings.boot)])
        start = link.greeted(_greeting(answer.packets))
        answer.check(peer)
        talk = ExchangeTalk(self._standing, link, start, self._largest)
        self._standing.joined(talk)
        why = "ended here"
        try:
            _thread(self._hear_from, talk, lanes)
            self._say_to(talk, lanes)
            why = "goodbye"
        except (ConnectionError, RefusedError) as problem:
            why = shortened(str(problem))
            raise
        finally:
            talk.hang_up()
            with suppress(ConnectionError, RefusedError):
                lanes.ask(OUT, (), once=not talk.finished)
            self._left(talk, why)

    def _say_to(self, talk: ExchangeTalk, lanes: _Lanes) -> None:
        while not talk.over.is_set():
            if packets := talk.batch(talk.beat):
                lanes.ask(OUT, packets)
            if talk.finished:
                return
        raise talk.problem or ConnectionError("hung up")

    def _hear_from(self, talk: ExchangeTalk, lanes: _Lanes) -> None:
        try:
            while not talk.over.is_set():
                if talk.is_ahead:
                    talk.over.wait(SOON)
                else:
                    talk.take(lanes.ask(IN, ()).packets)
        except (ConnectionError, RefusedError) as problem:
            talk.problem = problem.with_traceback(None)
        except Exception as problem:
            self._failed(problem)
        finally:
            talk.hang_up()

    # Answering

    def _answer(self, peer: Party, data: bytes) -> bytes:
        try:
            request = request_of(data)
        except FrameError as problem:
            self._standing.refused(str(problem), peer)
            return encode(Answer(("", 0), GREETING, 0, (), str(problem)))
        if peer not in self._served:
            why = f"{title(peer)} does not belong to {title(self.me)}"
            self._standing.refused(why, peer)
            return encode(Answer(request.talk, request.lane, request.number, (), why, True))
        answer = self._served[peer].answer(request, lambda request: self._first(peer, request))
        self.links[peer].counts["on the wire"] += len(answer)
        return answer

    def _first(self, peer: Party, request: Request) -> Answer:
        """The answer to what has not been asked before."""
        found = Answer(request.talk, request.lane, request.number)
        try:
            if request.lane == GREETING:
                self._meet(peer, request, found)
            else:
                found.packets = self._go_on(peer, request)
        except (RefusedError, ConnectionError) as problem:
            found.why, found.final = shortened(str(problem)), isinstance(problem, RefusedError)
            if found.final:
                self._standing.refused(str(problem), peer)
        except OutOfStepError as problem:
            self._standing.mailbox.fail(problem)
            found.why = str(problem)
        return found

    def _meet(self, peer: Party, request: Request, answer: Answer) -> None:
        served, link, standing = self._served[peer], self.links[peer], self._standing
        if self._over.is_set() or served.is_late(request.talk):
            raise ConnectionError("no such connection")
        hello = _greeting(request.packets)
        if hello.boot != request.talk[0]:
            raise RefusedError(f"{title(peer)} greeted under another name")
        self._greetings.admit(peer, hello)
        own = link.hello(self._greetings.boot)
        try:
            start = link.greeted(hello)
        except (OutOfStepError, NotYetError):  # it has to know where we are, too
            answer.packets = (own,)
            raise
        if served.talk is not None:
            served.talk.hang_up()
        served.name, served.talk = request.talk, ExchangeTalk(standing, link, start, self._largest)
        standing.joined(served.talk)
        answer.packets = (own,)

    def _go_on(self, peer: Party, request: Request) -> Sequence[Packet]:
        talk = self._served[peer].connection(request.talk)
        talk.heard = time.monotonic()
        if request.lane == IN:
            return talk.batch(talk.beat)
        if not request.packets:
            self._end(talk, "goodbye" if talk.link.bye else "hung up")
            return ()
        try:
            talk.take(request.packets)
        except RefusedError as problem:
            self._end(talk, shortened(str(problem)))
            raise
        until = time.monotonic() + talk.beat
        while talk.is_ahead and time.monotonic() < until:
            talk.over.wait(SOON)
        return ()

    # Both

    def _end(self, talk: ExchangeTalk, why: str) -> None:
        talk.hang_up()
        self._left(talk, why)

    def _left(self, talk: ExchangeTalk, why: str) -> None:
        link = talk.link
        if self._standing.left(talk, why):
            self._alone[link.peer] = time.monotonic()
            if link.bye:
                self._standing.mailbox.gone(link.peer)

    def _watch(self) -> None:
        """Silence ends a connection that was asked for by others; a client that is without one for
        too long counts as gone. Time in which this process itself stood still does not count."""
        timing, last = self._standing.timing, time.monotonic()
        while not self._over.wait(timing.beat):
            now = time.monotonic()
            lost = now - last if now - last > timing.beat + timing.silence / 2 else 0.0
            last = now
            for served in self._served.values():
                talk = served.talk
                if talk is not None and not talk.over.is_set():
                    talk.heard += lost
                    try:
                        talk.check_silence()
                    except ConnectionError as problem:
                        self._end(talk, str(problem))
            for link in self.links.values():
                self._may_be_missing(link, now)

    def _may_be_missing(self, link: Link, now: float) -> None:
        absent, mailbox = self._standing.timing.absent, self._standing.mailbox
        if absent is None or not isinstance(link.peer, Client):
            return
        here = link.peer in self._standing.talks
        if not here and not mailbox.is_gone(link.peer) and now - self._alone[link.peer] > absent:
            mailbox.gone(link.peer)


class _Lanes:
    """The exchanges of a connection that this party asked for."""

    def __init__(self, carrier: Carrier, link: Link, name: Name, patience: float, over: Any):
        self._carrier, self._link, self._name = carrier, link, name
        self._patience, self._over = patience, over
        self._numbers = [0, 0, 0]

    def ask(self, lane: int, packets: Sequence[Packet], once: bool = False) -> Answer:
        """Again until there is an answer, for as long as there is patience."""
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


def _greeting(packets: Sequence[Packet]) -> Hello:
    if len(packets) != 1 or not isinstance(packets[0], Hello):
        raise RefusedError("something else than a greeting came first")
    return packets[0]


def _thread(work: Callable[..., None], *given: Any) -> threading.Thread:
    made = threading.Thread(target=work, args=given, name="connections", daemon=True)
    made.start()
    return made
