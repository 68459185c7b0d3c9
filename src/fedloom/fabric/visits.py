"""Visits: how asynchronous algorithms go on.

A silo asks: it brings something to the master (a hub or the server). The master answers when a
group of silos has come, and each of them learns from its answer; nobody waits for the others. Who
comes when is not the algorithm's to say: a recorded order is replayed, the virtual clock knows who
is there first, among real parties it may be whoever is free first, and else every silo is as likely
to be the next (Poisson, equal rates).

`ask` and `learn` are small programs over the visitor's silo (its hub and clients), `answer` and
`again` are local functions at the master. Its desk is copied when a round of visits begins: a visit
is about a few rows of it, and these two may change their copy in place.
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
    """A silo's way to the master. `turn` counts the master's answers through the run; `nth`: which
    of the silo's visits of this round it is. A silo that is called again has the `nth` of those
    visitors on whose rows it is called."""

    silo: str
    turn: int
    nth: tuple[int, ...]


Asks = Sequence[tuple[Visit, Mapping[str, Any]]]  # {kind: value} of each silo
Ask = Callable[["Fabric", AtHubs[Any], Visit], tuple[Mapping[Kind, AtHubs[Any]], Any]]
Learn = Callable[["Fabric", AtHubs[Any], Visit, Any, AtHubs[Any]], AtHubs[Any]]


def numbered(turn: Turn, number: int, seen: Counter[str]) -> tuple[list[Visit], list[Visit]]:
    """The visits of a turn, and the calls. `seen`: visits of each silo in this round before."""
    visits = [Visit(silo, number, (seen[silo],)) for silo in turn.visitors]
    calls = [
        Visit(silo, number, tuple(sorted({v.nth[0] for v in visits if v.silo != silo})))
        for silo in turn.again
    ]
    return visits, calls


class Visits(NamedTuple):
    """What a round of visits is made of; see Fabric.visits."""

    fed: Engine
    at: str
    ask: Ask
    answer: Local
    learn: Learn
    reply: Kind
    again: Local | None
    given: Known[Any]

    def round(
        self, mine: AtHubs[Any], desk: AtHubs[Any], turns: int, group: int
    ) -> tuple[AtHubs[Any], AtHubs[Any]]:
        fed, seen, back = self.fed, Counter[str](), self.fed.silos
        desk = fed.at(self.at, tree.copy, desk)  # the round's own: `answer` may write into it
        for number in range(turns):
            who = self._who(number, turns, group, back)
            visits, _ = numbered(Turn(who), fed.round * turns + number, seen)
            mine, desk = self._turn(mine, desk, visits, number)
            seen.update(who)
            back = who
        return mine, desk

    def _who(self, number: int, turns: int, group: int, back: tuple[str, ...]) -> tuple[str, ...]:
        """The visitors of a turn. `back`: who is free since the last one."""
        fed, plan = self.fed, planned(self.fed.schedule)
        if isinstance(plan, Recorded) and plan.visits:
            return plan.order(fed.round, turns, group)[number]
        if fed.clock is not None:
            return fed.clock.visitors(self.at, group)
        first = fed._first(self.at, number, back, group)
        if first is not None:
            return tuple(fed._told(self.at, first))
        drawn = fed.streams.common("visits", fed.round, number).permutation(len(fed.silos))
        return tuple(fed.silos[place] for place in drawn[:group].tolist())

    def _turn(
        self, mine: AtHubs[Any], desk: AtHubs[Any], visits: list[Visit], number: int
    ) -> tuple[AtHubs[Any], AtHubs[Any]]:
        fed, at, kept, asks = self.fed, self.at, {}, []
        for visit in visits:
            begun = 0.0 if fed.clock is None else fed.clock.set_out(visit.silo, at)
            sent, kept[visit.silo] = self.ask(fed.within(visit.silo), mine, visit)
            came, sizes = self._bring(sent, visit.silo)
            asks.append((visit, came))
            if fed.clock is not None:
                fed.clock.arrive(visit.silo, at, sizes, begun)
        known = fed.known(tuple(visits))
        called: tuple[str, ...] = ()
        if self.again is not None:
            stale = fed.at(at, self.again, fed.parts, self.given, desk, known, self._at(asks))
            called = fed._told(at, fed.at(at, _names, fed.known(fed.silos), stale))
        turn = Turn(tuple(visit.silo for visit in visits), called)
        for call in _calls(turn, visits):
            asks.append((call, self._call(mine, call)))
        both = fed.at(at, self.answer, fed.parts, self.given, desk, known, self._at(asks))
        desk, replies = fed.at(at, _first, both), fed.at(at, _second, both)
        if fed.clock is not None:
            fed.clock.answer(at, 1)
        fed.record.visited(fed.round, number, turn)
        for visit in visits:
            answer = self._bring_back(replies, visit.silo)
            new = self.learn(fed.within(visit.silo), mine, visit, kept[visit.silo], answer)
            mine = AtHubs({**mine.held(), **new.held()}, mine.places)
        return mine, desk

    def _bring(
        self, sent: Mapping[Kind, AtHubs[Any]], silo: str
    ) -> tuple[dict[str, Any], list[int]]:
        """A silo's messages to the master: what came there, by kind, and the bytes of each."""
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
        """The master's answer to one silo."""
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

    def _call(self, mine: AtHubs[Any], call: Visit) -> dict[str, Any]:
        """Fresh embeddings from a silo that did not come for them."""
        fed, at, silo = self.fed, self.at, call.silo
        key, _ = fed._next(RECALL)
        if at in fed.hosted and silo != at:
            fed._post(key, RECALL, "down", at, [silo], None)
        if silo in fed.hosted and silo != at:
            fed._incoming(key, RECALL, at, silo, silo)
        if fed.clock is not None:
            fed.clock.fetch(silo, at)
        sent, _ = self.ask(fed.within(silo), mine, call)
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
