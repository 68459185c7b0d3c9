"""Clients of the stacked engine: who is there, their values, local work, and chunks of them.

The base of what the engine does with them: moves up and sums (reduce.py), moves down (engine.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.arithmetic import Precision
from ...core.errors import PlacementError
from ...core.placed import AtClients, Batch, Known, Noise, PerSilo, Placed, RowMap
from ...core.topology import Client
from ...data.placement import Placement
from ...fabric.accounts import Books
from ...fabric.engine import Engine
from ...fabric.local_work import Local, check_local, misplaced, name_of, of_nothing
from ...fabric.schedule import Bools, Everyone, Moment, Schedule
from ...models.task import NamelessPart, Shapes, Task
from ..execute.choose import choose
from ..execute.executor import CALLS, Options
from ..execute.workers import autocast
from ..layers.gpu.convolutions import of_clients
from ..layers.rules import Rules
from ..limits import DEFAULT, Limits
from .axis import Axis, Chunk
from .chunks import Cost
from .client_axis import (
    How,
    Lazy,
    Mapped,
    OwnNoise,
    Parts,
    Same,
    Stacked,
    rules_for,
    stacked_by_shape,
)
from .minibatch import RowNoise, Segments, Taken
from .plan import Lot, Plan, Work
from .store import Store


class Clients(Engine):
    """`chunk`: how many clients run at once (None: by their size). `executor`, `replay`, `compile`:
    how their work is executed (execute/choose.py). `store`: the rows, if another engine of the run
    has them already."""

    def __init__(
        self,
        task: Task,
        shapes: Shapes,
        placement: Placement,
        *,
        seed: int,
        schedule: Schedule,
        chunk: int | None = None,
        padding: int = 0,
        executor: str | None = None,
        replay: int = CALLS,
        compile: bool = False,
        limits: Limits = DEFAULT,
        device: torch.device | str = "cpu",
        store: Store | None = None,
        precision: Precision | None = None,
        books: Books | None = None,
        on_demand: bool = False,
    ):
        topology = placement.topology
        super().__init__(
            task,
            shapes,
            silos=topology.silos,
            server=topology.server,
            hosted=topology.parties,
            size=placement.size,
            seed=seed,
            schedule=schedule,
            device=torch.device(device),
            precision=precision,
            books=books,
            on_demand=on_demand,
        )
        self.limits = limits
        options = Options(self.device, replay, limits)
        self.executors = choose(options, name=executor, compile=compile, by_size=chunk is None)
        self._padding = padding
        self._names = topology.clients
        self._axis = Axis(topology.clients)
        several = self._axis.size > len(topology.silos)
        self._pooling = several and chunk is None and not padding
        if store is None or not store.holds(placement):
            store = Store(task, shapes, placement, self.device, limits.joined_rows)
        self.store = store
        alike: dict[Any, list[str]] = {}
        for silo, part in self.part.values.items():
            alike.setdefault((part.kind, store.y[silo] is None), []).append(silo)
        self._cost: dict[str, Cost] = {}
        self._nameless: dict[str, NamelessPart] = {}
        rules: Rules = {}
        for silos in alike.values():
            part = self.part.values[silos[0]]
            cost = Cost.of(part, chunk, self.executors.batches_one, limits)
            self._cost.update(dict.fromkeys(silos, cost))
            self._nameless.update(dict.fromkeys(silos, NamelessPart(part)))
            rules = {**rules, **rules_for(part)}
        together = [tuple(silos) for silos in alike.values()]
        self._plan = Plan(self._axis, together, self._cost, self.device, limits.chunk_values)
        self._how = How(self._client_call, self.executors, set(), rules)
        self._all = np.ones(self._axis.size, dtype=bool)
        self._roster = self._all.copy()  # one for all scopes: changed in place
        self._owner = np.stack(
            [placement.owner[silo].numpy() + self._axis.span[silo].start for silo in topology.silos]
        )

    def __str__(self) -> str:
        """How clients are computed."""
        each = "; ".join(f"{silo}: {cost}" for silo, cost in self._cost.items())
        compiled = " (compiled: one by one, where that can be)" if self.executors.sums_some else ""
        return f"stacked; clients at once: {each}{compiled}"

    # Time

    def begin(self, round: int) -> None:
        super().begin(round)
        self.executors.begin()
        self._plan.begin()
        self._roster[:] = True
        self._shrink(Moment(round), self._all)

    def finish(self) -> None:
        """Nobody waits here."""

    def fail(self, problem: BaseException) -> None:
        """Nobody else runs here."""

    def _on_roster(self, silo: str) -> Bools:
        return self._roster[self._axis.span[silo]]

    def _shrink(self, moment: Moment, has: Bools) -> Bools:
        """Those who answer an upward move; the others are out for the rest of the round."""
        if type(self.schedule) is Everyone and has.all():
            return self._there()
        for silo in self.scope:
            names, before = self._names[silo], self._on_roster(silo)
            after = before & has[self._axis.span[silo]]
            after &= self.schedule.answers(moment, silo, names)
            if (after != before).any():
                self.record.note(moment, silo, names, before, after)
                before[:] = after
        return self._there()

    def _there(self) -> Bools:
        """Who is there, in these silos."""
        if len(self.scope) == len(self.silos):
            return self._roster.copy()
        there = np.zeros_like(self._roster)
        for silo in self.scope:
            there[self._axis.span[silo]] = self._on_roster(silo)
        return there

    # Values

    def is_light(self, rows: int) -> bool:
        return all(cost.fits(rows) for cost in self._cost.values())

    def minibatch(self, ids: Tensor, steps: int | None = None) -> tuple[AtClients[Batch], RowMap]:
        owner = self._owner
        if len(self.scope) < len(self.silos):
            owner = owner[[self.silos.index(silo) for silo in self.scope]]
        sizes = self._axis.size, self._width
        where = Segments(ids, self.scope, owner, *sizes, self.device, self.dtype, steps)
        return Taken(self.store, where, self._all, self.scope, self.limits.minibatch), where

    def holders(self, where: RowMap) -> dict[str, int]:
        """How many clients of each silo have rows in a minibatch."""
        assert isinstance(where, Segments)
        return {j: int((where.rows[self._axis.span[j]] > 0).sum()) for j in self.scope}

    def _width(self, silo: str, rows: int) -> int:
        return self._cost[silo].width(rows) + self._padding

    def _row_noise(
        self, where: RowMap, ids: Tensor, draw: Callable[[Client, Tensor], Noise]
    ) -> AtClients[Noise]:
        assert isinstance(where, Segments)
        return RowNoise(draw, self._axis.client, where, self._all, self.scope)

    def _noise(self, draw: Callable[[Client], Tensor]) -> AtClients[Tensor]:
        return OwnNoise(draw, self._axis.client, self._all, self.scope)

    def _read_clients(self, value: Placed) -> dict[Client, Any]:
        if not isinstance(value, Lazy):
            raise misplaced(value, "the clients", "read")
        lazy = self._lazy(value, "read")
        forced = self._everyones(self._forced(lazy, lazy.has))
        return {self._axis.client(place): mine for place, mine in forced.items()}

    def place_clients(self, values: Mapping[Client, Any]) -> AtClients[Any]:
        each = {}
        for silo in self.scope:
            for place, name in enumerate(self._names[silo], self._axis.span[silo].start):
                if (client := Client(silo, name)) in values:
                    each[place] = values[client]
        return self._stacked(each)

    def _stacked(self, each: Mapping[int, Any]) -> Stacked:
        return Stacked(stacked_by_shape(each), self._axis.size, self.scope)

    def _lazy(self, value: Any, user: str) -> Lazy:
        """A placed value as clients are given it."""
        if isinstance(value, Known):
            return Same(dict.fromkeys(self.silos, value.value), self._all)
        if value is self.part:
            return Parts(self.part.values, self._nameless, self._all)
        if isinstance(value, PerSilo):
            return Same(value.values, self._all)
        if not isinstance(value, Lazy):
            raise misplaced(value, "the clients", user)
        for silo in self.scope:
            if silo not in value.scope:
                raise PlacementError(f"{user} at the clients of {silo}: the value lives elsewhere")
        return value

    # Local work

    def _at_clients(self, f: Local, values: Sequence[Placed], steps: int) -> AtClients[Any]:
        check_local(f)
        args = [self._lazy(value, name_of(f)) for value in values or [self.known(None)]]
        f = f if values else of_nothing(f)
        return Mapped(self._how, f, args, self.scope, steps)

    def _client_call(self, f: Local, where: str, args: Sequence[Any]) -> Any:
        with of_clients(self.device):
            result = self._call(f, where, args)
        if autocast():  # it keeps what it has cast until it ends, which is a client's every weight
            torch.clear_autocast_cache()
        return result

    # Chunks

    def _lots(self, there: Bools, work: Work, *lazy: Lazy | None) -> Iterator[Lot]:
        values = [value for value in lazy if value is not None]
        return self._plan.lots(self.scope, self._here(there), values, work)

    def _pools(
        self, there: Bools, lazy: Lazy, where: Segments, work: Work, mean: bool = False
    ) -> Iterator[Lot]:
        return self._plan.pools(self.scope, self._here(there), lazy, where, mean, work)

    def _here(self, there: Bools) -> Bools:
        """Those of them that are computed here."""
        return there

    def _chunks(self, there: Bools, lazy: Lazy) -> Iterator[Chunk]:
        return (chunk for lot in self._lots(there, lazy.value, lazy) for chunk in lot.chunks)

    def _one_by_one(self, there: Bools) -> Iterator[Chunk]:
        for silo in self.scope:
            for place in self._axis.places(there, (silo,)):
                yield Chunk((silo,), np.array([place]), (1,), named=True)

    def _client(self, chunk: Chunk, at: int = 0) -> Client:
        return self._axis.client(int(chunk.places[at]))

    def _forced(self, lazy: Lazy, there: Bools) -> dict[int, Any]:
        """Every client's own value, in the clients' order."""
        forced = {
            int(place): mine
            for chunk in self._chunks(there, lazy)
            for place, mine in zip(
                chunk.places, lazy.value(chunk).each(len(chunk.places)), strict=True
            )
        }
        return dict(sorted(forced.items()))

    def _everyones(self, forced: dict[int, Any]) -> dict[int, Any]:
        """With the values of clients that are computed elsewhere: here there are none."""
        return forced
