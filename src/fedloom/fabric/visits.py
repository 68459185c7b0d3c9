"""Visits: the loop of asynchronous algorithms.

A silo asks: it sends something to the master (a hub or the server). The master answers when a group
of silos has come, and each of them learns from the answer. Nobody waits for the other silos.

The algorithm does not choose the order of visits. A recorded order is replayed; else the virtual
clock decides who arrives first; among real parties it may be whoever is free first; else every silo
is equally likely to be next (Poisson, equal rates).

`ask` and `learn` are small programs over the visitor's silo (its hub and clients). `answer` and
`again` are local functions at the master. The server table is copied once when a round begins: a
visit concerns a few of its rows, and these two functions change the copy in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from ..core import tree
from ..core.placed import AtHubs, Known
from .kinds import Kind
from .local_work import Local, argument
from .schedule import Recorded, Turn, planned

if TYPE_CHECKING:
    from .engine import Engine
    from .verbs import Fabric

FREE = Kind("free", "a silo is free to visit the master; carries nothing")
RECALL = Kind("recall", "the master calls for fresh embeddings; carries nothing")


class Visit(NamedTuple):
    """A silo's visit to the master. `turn`: the number of the master's answer in the run; `nth`:
    the number of the silo's visit in this round. A silo that is called again has the `nth` of the
    visitors on whose rows it is called."""

    silo: str
    turn: int
    nth: tuple[int, ...]


Asks = Sequence[tuple[Visit, Mapping[str, Any]]]  # {kind: value} of each silo
Ask = Callable[["Fabric", AtHubs[Any], Visit], tuple[Mapping[Kind, AtHubs[Any]], Any]]
Learn = Callable[["Fabric", AtHubs[Any], Visit, Any, AtHubs[Any]], AtHubs[Any]]


def numbered(turn: Turn, number: int, seen: Counter[str]) -> tuple[list[Visit], list[Visit]]:
    """The visits of a turn, and the calls. `seen`: the earlier visits of each silo in the round."""
    visits = [Visit(silo, number, (seen[silo],)) for silo in turn.visitors]
    calls = [
        Visit(silo, number, tuple(sorted({v.nth[0] for v in visits if v.silo != silo})))
        for silo in turn.again
    ]
    return visits, calls


class Visits(NamedTuple):
    """A round of visits; its fields are the arguments of Fabric.visits."""

    fed: Engine
    at: str
    ask: Ask
    answer: Local
    learn: Learn
    reply: Kind
    again: Local | None
    given: Known[Any]

    def round(
        self, own: AtHubs[Any], table: AtHubs[Any], turns: int, group: int
    ) -> tuple[AtHubs[Any], AtHubs[Any]]:
        fed, seen, back = self.fed, Counter[str](), self.fed.silos
        table = fed.at(self.at, tree.copy, table)  # a copy: `answer` may write into it
        for number in range(turns):
            who = self._who(number, turns, group, back)
            visits, _ = numbered(Turn(who), fed.round * turns + number, seen)
            own, table = self._turn(own, table, visits, number)
            seen.update(who)
            back = who
        return own, table

    def _who(self, number: int, turns: int, group: int, back: tuple[str, ...]) -> tuple[str, ...]:
        """The visitors of a turn. `back`: the silos that became free since the last one."""
        fed, plan = self.fed, planned(self.fed.schedule)
        if isinstance(plan, Recorded) and plan.visits:
            return plan.order(fed.round, turns, group)[number]
        if fed.clock is not None:
            return fed.clock.visitors(self.at, group)
        first = fed._first(self.at, number, back, group)
        if first is not None:
            return tuple(fed._announced(self.at, first))
        order = fed.streams.common("visits", fed.round, number).permutation(len(fed.silos))
        return tuple(fed.silos[place] for place in order[:group].tolist())

    def _turn(
        self, own: AtHubs[Any], table: AtHubs[Any], visits: list[Visit], number: int
    ) -> tuple[AtHubs[Any], AtHubs[Any]]:
        fed, at, pending, asks = self.fed, self.at, {}, []
        for visit in visits:
            begun = 0.0 if fed.clock is None else fed.clock.set_out(visit.silo, at)
            sent, pending[visit.silo] = self.ask(fed.within(visit.silo), own, visit)
            came, sizes = self._bring(sent, visit.silo)
            asks.append((visit, came))
            if fed.clock is not None:
                fed.clock.arrive(visit.silo, at, sizes, begun)
        known = fed.known(tuple(visits))
        called: tuple[str, ...] = ()
        if self.again is not None:
            stale = fed.at(at, self.again, fed.parts, self.given, table, known, self._at(asks))
            called = fed._announced(at, fed.at(at, _names, fed.known(fed.silos), stale))
        turn = Turn(tuple(visit.silo for visit in visits), called)
        for call in _calls(turn, visits):
            asks.append((call, self._call(own, call)))
        both = fed.at(at, self.answer, fed.parts, self.given, table, known, self._at(asks))
        table, replies = fed.at(at, _first, both), fed.at(at, _second, both)
        if fed.clock is not None:
            fed.clock.answer(at, 1)
        fed.record.visited(fed.round, number, turn)
        for visit in visits:
            answer = self._bring_back(replies, visit.silo)
            new = self.learn(fed.within(visit.silo), own, visit, pending[visit.silo], answer)
            own = AtHubs({**own.held(), **new.held()}, own.places)
        return own, table

    def _bring(
        self, sent: Mapping[Kind, AtHubs[Any]], silo: str
    ) -> tuple[dict[str, Any], list[int]]:
        """Send a silo's messages to the master. Returns what arrives, by kind, and their bytes."""
        fed, at = self.fed, self.at
        came, sizes = {}, []
        for kind, value in sent.items():
            key, _ = fed._next(kind)
            if silo in fed.hosted and silo != at:
                payload = argument(value, silo, kind.name)
                sizes.append(fed._post(key, kind, "up", silo, [at], payload)[0].bytes)
            if at in fed.hosted:
                came[kind.name] = fed._fetch(key, kind, silo, at, value)
        return came, sizes

    def _bring_back(self, replies: AtHubs[Any], silo: str) -> AtHubs[Any]:
        """Send the master's answer to one silo."""
        fed, at, reply = self.fed, self.at, self.reply
        key, _ = fed._next(reply)
        own = argument(replies, at, reply.name)[silo] if at in fed.hosted else None
        size = 0
        if at in fed.hosted and silo != at:
            size = fed._post(key, reply, "down", at, [silo], own)[0].bytes
        if fed.clock is not None:
            fed.clock.come_back(silo, at, size)
        if silo not in fed.hosted:
            return AtHubs({}, (silo,))
        return AtHubs(
            {silo: own if silo == at else fed._incoming(key, reply, at, silo, silo)}, (silo,)
        )

    def _call(self, own: AtHubs[Any], call: Visit) -> dict[str, Any]:
        """Call a silo that is no visitor for fresh embeddings."""
        fed, at, silo = self.fed, self.at, call.silo
        key, _ = fed._next(RECALL)
        if at in fed.hosted and silo != at:
            fed._post(key, RECALL, "down", at, [silo], None)
        if silo in fed.hosted and silo != at:
            fed._incoming(key, RECALL, at, silo, silo)
        if fed.clock is not None:
            fed.clock.fetch(silo, at)
        sent, _ = self.ask(fed.within(silo), own, call)
        came, sizes = self._bring(sent, silo)
        if fed.clock is not None:
            fed.clock.fetched(silo, at, sizes)
        return came

    def _at(self, asks: Asks) -> AtHubs[Asks]:
        return AtHubs({self.at: tuple(asks)} if self.at in self.fed.hosted else {}, (self.at,))


def _calls(turn: Turn, visits: Sequence[Visit]) -> list[Visit]:
    seen = Counter({visit.silo: visit.nth[0] for visit in visits})
    return numbered(turn, visits[0].turn, seen)[1]


def _names(silos: tuple[str, ...], stale: Tensor) -> tuple[str, ...]:
    return tuple(silo for silo, old in zip(silos, stale.tolist(), strict=True) if old)


def _first(both: tuple[Any, Any]) -> Any:
    return both[0]


def _second(both: tuple[Any, Any]) -> Any:
    return both[1]
