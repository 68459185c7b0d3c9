"""The fabric: the verbs an algorithm is written in.

Local work is a pure function applied where values live (`at_clients`, `at_hubs`, `at`). The only
way for anything to leave a party is a move, which names its kind:

    down    to_clients, scatter, spread (clients)
    up      gather, mean, collect (clients)
    across  exchange; collect and spread between the hubs and one party

`keep` makes client-held state whole, `hold` lets an engine compute a value once, `within` narrows
the verbs to one silo, `visits` is how asynchronous algorithms go on. Every engine runs the same
round() by giving these verbs its own meaning of "at each client"; what they share, the moves
between hubs, is here.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from ..core import tree
from ..core.arithmetic import Precision, multiplying
from ..core.errors import FedLoomError, LocalError, NotFiniteError, PlacementError, ProtocolError
from ..core.placed import (
    AtClients,
    AtHubs,
    Batch,
    Known,
    Noise,
    OnDemand,
    PerSilo,
    Placed,
    RowMap,
    Rows,
)
from ..core.rng import Secrets, Stream, Streams
from ..core.topology import SERVER, Client, Party, title
from ..models.task import Part, Shapes, Task
from .accounts import Accounts
from .checks import Checks
from .kinds import Direction, Key, Kind
from .local_work import Local, argument, check_local, name_of
from .noise import Once, of_rows, of_shape
from .releases import times
from .sampling import Sampler
from .schedule import Bools, Schedule
from .simclock.clock import Crossing
from .visits import Ask, Learn, Visits


class RunIsOver(Exception):
    """Those who decide have ended the run before this round; its state is that of the last one."""


class Fabric(Accounts, Checks):
    """The verbs, over the parties hosted here."""

    _names: Mapping[str, tuple[str, ...]]  # of the silos these parties belong to

    def __init__(
        self,
        task: Task,
        shapes: Shapes,
        *,
        silos: tuple[str, ...],
        server: bool,
        hosted: Iterable[Party],
        size: int,
        seed: int,
        schedule: Schedule,
        device: torch.device,
        secrets: Secrets | None = None,
    ):
        super().__init__(size)
        self.scope = self.silos = silos
        self._parties = {*silos, SERVER} if server else {*silos}
        self.hosted = frozenset(hosted)
        self.size = size
        self.streams = Streams(seed, secrets)
        self.schedule = schedule
        self.dtype, self.device = shapes.dtype, device
        self.precision: Precision = "float64" if self.dtype == torch.float64 else "float32"
        homes = {party.silo if isinstance(party, Client) else party for party in self.hosted}
        self.part: PerSilo[Part] = PerSilo(
            {silo: task.part(silo, shapes, device) for silo in silos if silo in homes}
        )
        self.shapes = shapes
        self.has_head = task.head is not None
        self.on_demand = False  # work at hubs is done where its result is asked for, and is free
        self._sampler = Sampler(self.streams, size)
        self._task = task

    # Time

    @property
    def decides(self) -> bool:
        """Whether what all hubs know is known here; a client alone hears from its hub that the run
        is over (RunIsOver)."""
        return not all(isinstance(party, Client) for party in self.hosted)

    @abstractmethod
    def finish(self) -> None:
        """The run is over: let go of everyone who still waits."""

    def warm_up(self, dry_step: Callable[[Part, Streams], None]) -> None:
        """Before the first round: a dry step at every client that could keep others waiting."""

    @abstractmethod
    def fail(self, problem: BaseException) -> None:
        """A party hosted here cannot go on: tell everyone why."""

    # Values

    def known(self, value: Any) -> Known[Any]:
        """Common knowledge: every party derives it, nobody sends it."""
        return Known(tree.sent(value, self.device))

    @cached_property
    def parts(self) -> Known[dict[str, Part]]:
        """All silos' parts of the task: the run file describes them to everyone."""
        return Known({j: self._task.part(j, self.shapes, self.device) for j in self.silos})

    @property
    def names(self) -> AtHubs[tuple[str, ...]]:
        """At each hub, its clients' names in their order."""
        return AtHubs({hub: tuple(self._names[hub]) for hub in self._hubs()}, self.scope)

    def within(self, silo: str) -> Self:
        """The same verbs on one silo, with the same move numbers."""
        if silo not in self.silos:
            raise PlacementError(f"there is no silo {silo}")
        narrow = copy.copy(self)
        narrow.scope = (silo,)
        return narrow

    def sample(self, rows: int, minibatches: int, round: int) -> Tensor:
        """The rows of a round's minibatches, one a line, which every party draws alike."""
        return self._sampler.sample(rows, minibatches, round)

    def is_light(self, rows: int) -> bool:
        """Whether so many rows of a silo are better predicted at once than client by client."""
        return False

    @abstractmethod
    def minibatch(self, ids: Tensor, steps: int | None = None) -> tuple[AtClients[Batch], RowMap]:
        """Each client's own rows of a minibatch, and where they sit in it. `ids` are canonical row
        numbers: [B], or [Q, B] for Q minibatches at once (positions then count through all).
        `steps`: how many local steps will be taken on them, if that is known; an engine may lay
        them out accordingly."""

    def read(self, value: Placed) -> dict[Any, Any]:
        """Out of the fabric: the value at every party hosted here (for records and tests)."""
        return value.held() if isinstance(value, AtHubs) else self._read_clients(value)

    @abstractmethod
    def _read_clients(self, value: Placed) -> dict[Client, Any]: ...

    def place_hubs(self, values: Mapping[str, Any]) -> AtHubs[Any]:
        """Into the fabric: a restored value at hubs."""
        here = {party: v for party, v in values.items() if party in self.hosted}
        return AtHubs(here, tuple(values))

    @abstractmethod
    def place_clients(self, values: Mapping[Client, Any]) -> AtClients[Any]:
        """Into the fabric: a restored value at clients."""

    def renew(self, value: AtHubs[Any], newer: AtHubs[Any]) -> AtHubs[Any]:
        """The value, with the newer one at the hubs where that lives. Nothing moves."""
        for place in newer.places:
            if place not in value.places:
                raise PlacementError(f"renew: nothing lives at {title(place)} so far")
        return AtHubs({**value.held(), **newer.held()}, value.places)

    # Local work. `steps`: how many local steps f takes, for the clock; all else takes no time.

    def at_hubs(self, f: Local, *values: Placed, steps: int = 0) -> AtHubs[Any]:
        """f at every hub."""
        return self._at(self._hubs(), self.scope, f, values, steps)

    def at(self, party: str, f: Local, *values: Placed, steps: int = 0) -> AtHubs[Any]:
        """f at one hub, or at the server."""
        self._check_party(party, name_of(f))
        return self._at([party] if party in self.hosted else [], (party,), f, values, steps)

    def _at(
        self,
        parties: Iterable[str],
        places: tuple[str, ...],
        f: Local,
        values: Sequence[Placed],
        steps: int,
    ) -> AtHubs[Any]:
        check_local(f)

        def work(party: str) -> Any:
            return self._call(f, title(party), [argument(v, party, name_of(f)) for v in values])

        if self.on_demand:
            return OnDemand(work, list(parties), places)
        results = {party: work(party) for party in parties}
        if self.clock is not None and steps:
            for party in results:
                self.clock.work_at(party, steps)
        return AtHubs(results, places)

    def at_clients(self, f: Local, *values: Placed, steps: int = 0) -> AtClients[Any]:
        """f at every client. The clock charges `steps` now, to those on the roster."""
        results = self._at_clients(f, values, steps)
        if self.clock is not None and steps:
            for silo in self.scope:
                self.clock.work(silo, self._on_roster(silo), steps)
        return results

    @abstractmethod
    def _at_clients(self, f: Local, values: Sequence[Placed], steps: int) -> AtClients[Any]: ...

    @abstractmethod
    def _on_roster(self, silo: str) -> Bools:
        """Which of a silo's clients are there, in their order."""

    def _call(self, f: Local, where: str, args: Sequence[Any]) -> Any:
        try:
            with multiplying(self.precision, self.device):
                return f(*args)
        except FedLoomError:
            raise
        except Exception as problem:
            raise LocalError(
                f"round {self.round}: {name_of(f)} failed at {where}: {problem}"
            ) from problem

    # Noise: from each client's own streams, which nobody else can draw. What it is drawn for is
    # booked, for everyone in a silo.

    def row_noise(
        self,
        where: RowMap,
        ids: Tensor,
        sizes: Mapping[str, tuple[int, int]],
        once: Once | None = None,
    ) -> AtClients[Noise]:
        """For a release of a minibatch's rows (`ids`), so many normal and uniform numbers for each.
        `once`: the same ones each time a row is asked for, which is booked once."""
        again = times(ids, self.size)
        if once is None:
            self.releases.book(self.scope, again, 0)
        else:
            for silo in self.scope:
                self.releases.book([silo], again.clamp(max=1) * (self.releases.of(silo)[0] == 0), 0)
        name = () if once is not None else self._next_draw()

        def draw(client: Client, rows: Tensor) -> Noise:
            streams = self._row_streams(client, name, rows, once)
            return self._cast(of_rows(streams, len(rows), sizes[client.silo]))

        return self._row_noise(where, ids, draw)

    def noise(
        self, ids: Tensor, steps: int, sizes: Mapping[str, tuple[int, ...]]
    ) -> AtClients[Tensor]:
        """Normal numbers of the shape that is a silo's, at each of its clients, for so many local
        steps on each of a minibatch's rows."""
        self.releases.book(self.scope, 0, times(ids, self.size) * steps)
        name = self._next_draw()

        def draw(client: Client) -> Tensor:
            stream = self._step_stream(client, name, ids, steps)
            return self._cast(of_shape(stream, sizes[client.silo]))

        return self._noise(draw)

    @abstractmethod
    def _row_noise(
        self, where: RowMap, ids: Tensor, draw: Callable[[Client, Tensor], Noise]
    ) -> AtClients[Noise]: ...

    @abstractmethod
    def _noise(self, draw: Callable[[Client], Tensor]) -> AtClients[Tensor]: ...

    def _row_streams(
        self, client: Client, name: tuple[int, ...], rows: Tensor, once: Once | None
    ) -> Sequence[Stream]:
        """One for all of a client's rows, or one for each."""
        if once is None:
            return [self.streams.own(client, "noise", *name)]
        return [self.streams.own(client, "release", row) for row in rows.tolist()]

    def _step_stream(
        self, client: Client, name: tuple[int, ...], ids: Tensor, steps: int
    ) -> Stream:
        return self.streams.own(client, "noise", *name)

    def _cast(self, value: Any) -> Any:
        return tree.map_tensors(lambda a: a.to(dtype=self.dtype, device=self.device), value)

    # Moves inside a silo: each engine has its own

    @abstractmethod
    def to_clients(
        self, kind: Kind, value: AtHubs[Any], holding: RowMap | None = None
    ) -> AtClients[Any]:
        """The hub's value at each of its clients; `holding`: only at those with rows in the map,
        and the others sit this round out."""

    @abstractmethod
    def scatter(self, kind: Kind, rows: AtHubs[Rows], where: RowMap) -> AtClients[Rows]:
        """To each client its own rows (the paper's projection pi)."""

    @abstractmethod
    def gather(self, kind: Kind, value: AtClients[Tensor], where: RowMap) -> AtHubs[Rows]:
        """Union by row. Rows of clients who did not answer are masked."""

    @abstractmethod
    def mean(
        self,
        kind: Kind,
        value: AtClients[Any],
        *,
        otherwise: AtHubs[Any],
        weight: AtClients[Tensor] | None = None,
    ) -> AtHubs[Any]:
        """Mean over those who answered; where nobody did, or all weights are 0: `otherwise`."""

    @abstractmethod
    def keep(self, new: AtClients[Any], old: AtClients[Any]) -> AtClients[Any]:
        """Client-held state: the new value where the hub accepted all of this round so far."""

    @abstractmethod
    def hold(self, value: AtClients[Any]) -> AtClients[Any]:
        """The same value; an engine that is lazy computes it once. Not for values with rows."""

    @abstractmethod
    def _collect_clients(self, kind: Kind, value: AtClients[Any]) -> AtHubs[dict[str, Any]]: ...

    @abstractmethod
    def _spread_clients(self, kind: Kind, value: AtHubs[Any]) -> AtClients[Any]: ...

    # Moves between hubs

    @abstractmethod
    def _send(self, key: Key, kind: Kind, source: str, to: str, payload: Any) -> None: ...

    @abstractmethod
    def _receive(self, key: Key, kind: Kind, source: str, to: str) -> Any: ...

    def exchange(self, kind: Kind, value: AtHubs[Any]) -> AtHubs[dict[str, Any]]:
        """Every hub's value at every hub, its own included, in hub order."""
        key, _ = self._next(kind)
        sent = []
        for source in self._hubs():
            payload = argument(value, source, kind.name)
            others = [to for to in self.scope if to != source]
            sent += self._post(key, kind, "across", source, others, payload)
        self._crossed(sent)
        return AtHubs(
            {
                to: {source: self._fetch(key, kind, source, to, value) for source in self.scope}
                for to in self._hubs()
            },
            self.scope,
        )

    def collect(
        self, kind: Kind, value: AtHubs[Any] | AtClients[Any], to: str | None = None
    ) -> AtHubs[dict[str, Any]]:
        """Every hub's value at one party, {hub: value}; of a value at clients, every client's at
        its own hub, {client: value}."""
        if isinstance(value, AtClients):
            return self._collect_clients(kind, value)
        if to is None:
            raise PlacementError(
                f"{kind}: collect of a value at hubs needs `to`, the party it goes to"
            )
        self._check_party(to, kind.name)
        key, _ = self._next(kind)
        sent = [
            crossing
            for source in self._hubs()
            if to != source
            for crossing in self._post(
                key, kind, "up", source, [to], argument(value, source, kind.name)
            )
        ]
        self._crossed(sent)
        got = {}
        if to in self.hosted:
            got[to] = {source: self._fetch(key, kind, source, to, value) for source in self.scope}
        return AtHubs(got, (to,))

    def spread(self, kind: Kind, value: AtHubs[Mapping[str, Any]], frm: str | None = None) -> Any:
        """From one party, to each hub its own of {hub: value}; without `frm`, from each hub, to
        each of its clients its own of {client: value}."""
        if frm is None:
            return self._spread_clients(kind, value)
        self._check_party(frm, kind.name)
        key, _ = self._next(kind)
        own = argument(value, frm, kind.name) if frm in self.hosted else {}
        sent = []
        for to in self.scope:
            if frm in self.hosted and to not in own:
                raise ProtocolError(f"{kind}: {title(frm)} has nothing for {title(to)}")
            if frm in self.hosted and to != frm:
                sent += self._post(key, kind, "down", frm, [to], own[to])
        self._crossed(sent)
        return AtHubs(
            {
                to: own[to] if to == frm else self._incoming(key, kind, frm, to, rows_of=to)
                for to in self._hubs()
            },
            self.scope,
        )

    # Visits

    def visits(
        self,
        ask: Ask,
        answer: Local,
        learn: Learn,
        mine: AtHubs[Any],
        desk: AtHubs[Any],
        *,
        at: str,
        reply: Kind,
        turns: int,
        group: int = 1,
        again: Local | None = None,
        given: Any = None,
    ) -> tuple[AtHubs[Any], AtHubs[Any]]:
        """`turns` answers of the master `at`, each to a group of visitors: what every silo has
        (`mine`) and what the master has (`desk`) afterwards. `given`: common knowledge.

        ask(silo, mine, visit) -> ({kind: value for the master}, what the silo keeps for learn)
        again(parts, given, desk, visits, asks) -> for each silo, whether the master calls it
        answer(parts, given, desk, visits, asks) -> (desk, {visitor: reply})
        learn(silo, mine, visit, kept, reply) -> what the visitor has afterwards

        The desk given here stays as it is: `again` and `answer` get the round's own copy, which
        they may write into. What `again` writes must be what `answer` would write anyway.
        """
        self._check_party(at, "visits")
        calls = Visits(self, at, ask, answer, learn, reply, again, self.known(given))
        return calls.round(mine, desk, turns, group)

    def _first(
        self, at: str, number: int, back: tuple[str, ...], group: int
    ) -> AtHubs[tuple[str, ...]] | None:
        """At the master: the visitors of a turn, where whoever is free first is next. `back`: who
        is free since the last turn. None: the order is not found so."""
        return None

    @abstractmethod
    def _told(self, at: str, value: AtHubs[Any]) -> Any:
        """A decision that one party made, told to everyone; not a message of the algorithm."""

    def _check_party(self, party: str, user: str) -> None:
        if party not in self._parties:
            raise PlacementError(f"{user}: there is no {title(party)}")

    def _hubs(self) -> list[str]:
        return [hub for hub in self.scope if hub in self.hosted]

    def _post(
        self,
        key: Key,
        kind: Kind,
        direction: Direction,
        source: str,
        to: Sequence[str],
        payload: Any,
    ) -> list[Crossing]:
        """The same to each of them."""
        for each in to:
            self._send(key, kind, source, each, payload)
        return self._posted(kind, direction, source, to, payload)

    def _posted(
        self, kind: Kind, direction: Direction, source: str, to: Sequence[str], payload: Any
    ) -> list[Crossing]:
        size = tree.nbytes(payload)
        self.ledger.book("top", direction, kind, len(to), size * len(to))
        return [Crossing(source, each, size) for each in to]

    def _fetch(self, key: Key, kind: Kind, source: str, to: str, own: AtHubs[Any]) -> Any:
        if source == to:
            return argument(own, to, kind.name)
        return self._incoming(key, kind, source, to, rows_of=source)

    def _incoming(self, key: Key, kind: Kind, source: str, to: str, rows_of: str) -> Any:
        payload = self._receive(key, kind, source, to)
        self._check_payload(kind, source, payload, rows_of)
        return payload

    def _check_payload(self, kind: Kind, source: str, payload: Any, rows_of: str) -> None:
        if isinstance(payload, Rows):
            self._check_rows(kind, source, payload.value, rows_of)
        self._check_finite(kind, source, payload)

    def check_state(self, state: Any) -> None:
        """Refuse a state that is not finite at a hub hosted here."""
        at_hubs = {k: v.held() for k, v in state._asdict().items() if isinstance(v, AtHubs)}
        if tree.is_finite(at_hubs):
            return
        for name, values in at_hubs.items():
            for party, mine in values.items():
                if not tree.is_finite(mine):
                    raise NotFiniteError(
                        f"round {self.round}: NaN or infinity in {name} at {title(party)}; a "
                        "smaller step size is the usual cure"
                    )
