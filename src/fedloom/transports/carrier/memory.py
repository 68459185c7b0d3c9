"""A carrier in one process, with the faults of a network on request: an example of a carrier, and a
test of links.

    office = PostOffice(Faults(lose=0.2, repeat=0.1))
    transport = CarriedTransport(me, run, office.carrier(me), dials=..., expected=...)
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ...core.topology import Party, title
from .carried import Answering


@dataclass(frozen=True)
class Faults:
    """Shares of exchanges with faults. `lose`: the request is lost, and as often the answer;
    `repeat`: the request arrives a second time, later; `delay`: the longest delay of an exchange in
    seconds."""

    lose: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0
    seed: int = 0


class PostOffice:
    """Carries the requests of all parties."""

    def __init__(self, faults: Faults | None = None):
        self.faults = faults or Faults()
        self.lost = self.repeated = 0
        self._draw, self._lock = random.Random(self.faults.seed), threading.Lock()
        self._answers: dict[Party, Answering] = {}
        self._disconnected: set[frozenset[Party]] = set()

    def carrier(self, me: Party) -> MemoryCarrier:
        return MemoryCarrier(self, me)

    def disconnect(self, first: Party, second: Party) -> None:
        """Nothing passes between these two from now on."""
        self._disconnected.add(frozenset((first, second)))

    def reconnect(self, first: Party, second: Party) -> None:
        self._disconnected.discard(frozenset((first, second)))

    def listen(self, party: Party, answer: Answering) -> None:
        self._answers[party] = answer

    def leave(self, party: Party, answer: Answering | None) -> None:
        if self._answers.get(party) is answer:
            self._answers.pop(party, None)

    def carry(self, source: Party, to: Party, request: bytes) -> bytes:
        faults = self.faults
        there, back, again = self._chances(faults.lose, faults.lose, faults.repeat)
        self._wait()
        if there:
            raise self._loss(f"a request to {title(to)} was lost")
        if again:
            self.repeated += 1
            threading.Thread(target=self._late, args=(source, to, request), daemon=True).start()
        answer = self._hand_over(source, to, request)
        self._wait()
        if back:
            raise self._loss(f"an answer of {title(to)} was lost")
        return answer

    def _hand_over(self, source: Party, to: Party, request: bytes) -> bytes:
        answer = self._answers.get(to)
        if answer is None or frozenset((source, to)) in self._disconnected:
            raise ConnectionError(f"{title(to)} cannot be reached")
        return answer(source, request)

    def _late(self, source: Party, to: Party, request: bytes) -> None:
        """Deliver a request again; nobody waits for the answer."""
        time.sleep(0.02)
        try:
            self._hand_over(source, to, request)
        except ConnectionError:
            return

    def _chances(self, *shares: float) -> Iterable[bool]:
        with self._lock:
            return [self._draw.random() < share for share in shares]

    def _wait(self) -> None:
        if self.faults.delay:
            with self._lock:
                seconds = self._draw.random() * self.faults.delay / 2
            time.sleep(seconds)

    def _loss(self, why: str) -> ConnectionError:
        self.lost += 1
        return ConnectionError(why)


class MemoryCarrier:
    """The carrier of one party."""

    def __init__(self, office: PostOffice, me: Party):
        self._office, self._me = office, me
        self._answer: Answering | None = None

    def open(self, answer: Answering) -> None:
        self._answer = answer
        self._office.listen(self._me, answer)

    def carry(self, peer: Party, request: bytes) -> bytes:
        return self._office.carry(self._me, peer, request)

    def close(self) -> None:
        self._office.leave(self._me, self._answer)
