"""The base class of engines: the verbs for the parties that an engine hosts, and the methods that a
run needs.

An engine gets all its settings when it is made; its clock and accounts are not set afterwards.
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
from ..core.errors import FedLoomError, LocalError, NotFiniteError, PlacementError
from ..core.placed import AtClients, AtHubs, Known, Noise, OnDemand, PerSilo, Placed, RowMap
from ..core.rng import Secrets, Stream, Streams
from ..core.topology import SERVER, Client, Party, title
from ..models.dropout import number_of
from ..models.task import Part, Shapes, Task
from .accounts import Books
from .hub_moves import HubMoves
from .kinds import Kind
from .local_work import Local, argument, check_local, name_of
from .noise import Once, of_rows, of_shape
from .releases import times
from .sampling import Sampler
from .schedule import Bools, Schedule
from .verbs import Fabric
from .visits import Ask, Learn, Visits


class RunIsOver(Exception):
    """The hubs have ended the run before this round; the state is that of the last round."""


class Engine(HubMoves, Fabric):
    """The verbs, over the parties hosted here.

    `books`: the accounts of a run to continue. `on_demand`: work at hubs is done when its result is
    read, and takes no virtual time. `secrets`: of parties that draw noise from them.
    """

    _names: Mapping[str, tuple[str, ...]]  # clients of the silos that these parties belong to

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
        precision: Precision | None = None,
        books: Books | None = None,
        on_demand: bool = False,
    ):
        super().__init__(size, books)
        self.scope = self.silos = silos
        self._parties = {*silos, SERVER} if server else {*silos}
        self.hosted = frozenset(hosted)
        self.size = size
        self.streams = Streams(seed, secrets)
        self.schedule = schedule
        self.dtype, self.device = shapes.dtype, device
        usual: Precision = "float64" if self.dtype == torch.float64 else "float32"
        self.precision = precision or usual
        homes = {party.silo if isinstance(party, Client) else party for party in self.hosted}
        self.part: PerSilo[Part] = PerSilo(
            {silo: task.part(silo, shapes, device) for silo in silos if silo in homes}
        )
        self.shapes = shapes
        self.has_head = task.head is not None
        self.on_demand = on_demand
        self._sampler = Sampler(self.streams, size)
        self._task = task

    # For a run

    @property
    def decides(self) -> bool:
        """Whether this engine knows what all hubs know. A process with clients only learns from its
        hub that the run is over (RunIsOver)."""
        return not all(isinstance(party, Client) for party in self.hosted)

    @abstractmethod
    def finish(self) -> None:
        """The run is over: release everyone who still waits."""

    def warm_up(self, dry_step: Callable[[Part, Streams], None]) -> None:
        """Before the first round: a dry step at every client that others might wait for."""

    @abstractmethod
    def fail(self, problem: BaseException) -> None:
        """A party hosted here has failed: tell all parties why."""

    def is_light(self, rows: int) -> bool:
        """Whether so many rows of a silo are predicted faster at once than client by client."""
        return False

    def place_hubs(self, values: Mapping[str, Any]) -> AtHubs[Any]:
        """A restored value at hubs, as a placed value."""
        hosted = {party: v for party, v in values.items() if party in self.hosted}
        return AtHubs(hosted, tuple(values))

    @abstractmethod
    def place_clients(self, values: Mapping[Client, Any]) -> AtClients[Any]:
        """A restored value at clients, as a placed value."""

    def check_state(self, state: Any) -> None:
        """Refuse a state that is not finite at a hub hosted here."""
        at_hubs = {
            name: value.held()
            for name, value in state._asdict().items()
            if isinstance(value, AtHubs) and not self._is_checked(value)
        }
        if tree.is_finite(at_hubs):
            return
        for name, values in at_hubs.items():
            for party, local_value in values.items():
                if not tree.is_finite(local_value):
                    raise NotFiniteError(
                        f"round {self.round}: NaN or infinity in {name} at {title(party)}; a "
                        "smaller step size is the usual cure"
                    )

    def _is_checked(self, value: AtHubs[Any]) -> bool:
        """Whether this value is known to be finite."""
        return False

    # Values

    def known(self, value: Any) -> Known[Any]:
        return Known(tree.sent(value, self.device))

    @cached_property
    def parts(self) -> Known[dict[str, Part]]:
        return Known({j: self._task.part(j, self.shapes, self.device) for j in self.silos})

    @property
    def names(self) -> AtHubs[tuple[str, ...]]:
        return AtHubs({hub: tuple(self._names[hub]) for hub in self._hubs()}, self.scope)

    def within(self, silo: str) -> Self:
        if silo not in self.silos:
            raise PlacementError(f"there is no silo {silo}")
        narrow = copy.copy(self)
        narrow.scope = (silo,)
        return narrow

    def sample(self, rows: int, minibatches: int, round: int) -> Tensor:
        return self._sampler.sample(rows, minibatches, round)

    def _dropout(self, silo: str) -> int | None:
        """What a silo's masks of dropout are named by in this round; None: it has none."""
        drops = self.part.values[silo].block.drops
        return number_of(self.streams, silo, self.round) if drops else None

    def read(self, value: Placed) -> dict[Any, Any]:
        return value.held() if isinstance(value, AtHubs) else self._read_clients(value)

    @abstractmethod
    def _read_clients(self, value: Placed) -> dict[Client, Any]: ...

    def renew(self, value: AtHubs[Any], newer: AtHubs[Any]) -> AtHubs[Any]:
        for place in newer.places:
            if place not in value.places:
                raise PlacementError(f"renew: nothing lives at {title(place)} so far")
        return AtHubs({**value.held(), **newer.held()}, value.places)

    # Local work

    def at_hubs(self, f: Local, *values: Placed, steps: int = 0) -> AtHubs[Any]:
        return self._at(self._hubs(), self.scope, f, values, steps)

    def at(self, party: str, f: Local, *values: Placed, steps: int = 0) -> AtHubs[Any]:
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
        # virtual time passes now for the clients on the roster, whatever is computed later
        results = self._at_clients(f, values, steps)
        if self.clock is not None and steps:
            for silo in self.scope:
                self.clock.work(silo, self._on_roster(silo), steps)
        return results

    @abstractmethod
    def _at_clients(self, f: Local, values: Sequence[Placed], steps: int) -> AtClients[Any]: ...

    @abstractmethod
    def _on_roster(self, silo: str) -> Bools:
        """Which of a silo's clients are present, in their order."""

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

    # Noise

    def row_noise(
        self,
        where: RowMap,
        ids: Tensor,
        sizes: Mapping[str, tuple[int, int]],
        once: Once | None = None,
    ) -> AtClients[Noise]:
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
        """One stream for all of a client's rows, or one for each row."""
        if once is None:
            return [self.streams.own(client, "noise", *name)]
        return [self.streams.own(client, "release", row) for row in rows.tolist()]

    def _step_stream(
        self, client: Client, name: tuple[int, ...], ids: Tensor, steps: int
    ) -> Stream:
        return self.streams.own(client, "noise", *name)

    def _cast(self, value: Any) -> Any:
        return tree.map_tensors(lambda a: a.to(dtype=self.dtype, device=self.device), value)

    # Visits

    def visits(
        self,
        ask: Ask,
        answer: Local,
        learn: Learn,
        own: AtHubs[Any],
        server_table: AtHubs[Any],
        *,
        at: str,
        reply: Kind,
        turns: int,
        group: int = 1,
        again: Local | None = None,
        given: Any = None,
    ) -> tuple[AtHubs[Any], AtHubs[Any]]:
        self._check_party(at, "visits")
        calls = Visits(self, at, ask, answer, learn, reply, again, self.known(given))
        return calls.round(own, server_table, turns, group)

    def _first(
        self, at: str, number: int, back: tuple[str, ...], group: int
    ) -> AtHubs[tuple[str, ...]] | None:
        """At the master: the visitors of a turn, in order of arrival. `back`: the silos that have
        become free since the last turn. None: the order does not depend on arrival."""
        return None

    @abstractmethod
    def _announced(self, at: str, value: AtHubs[Any]) -> Any:
        """A decision of one party, announced to all; not a message of the algorithm."""
