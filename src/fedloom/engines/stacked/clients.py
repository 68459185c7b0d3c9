"""The clients of the stacked engine: the roster, values, local work, and chunks.

The base class of what the engine does with them: moves up (reduce.py) and down (engine.py).
"""

from __future__ import annotations

import copy
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
from ..layers.gpu.convolutions import client_convolutions
from ..layers.rules import Rules
from ..limits import DEFAULT, Limits
from .axis import Axis, Chunk
from .lazy import (
    ClientNoises,
    Execution,
    LazyValue,
    LazyWork,
    SharedValue,
    StackedValues,
    TaskParts,
    rules_for,
    stacked_by_shape,
)
from .minibatch import ClientBatches, MinibatchRows, RowNoise
from .plan import ChunkGroup, ChunkWork, Plan
from .sizing import ChunkSizing
from .store import RowStore


class Clients(Engine):
    """`chunk`: clients computed at once (None: by their size). `executor`, `replay`, `compile`: how
    work is executed (execute/choose.py). `store`: the rows, if another engine of the run has them
    already."""

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
        store: RowStore | None = None,
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
            store = RowStore(task, shapes, placement, self.device, limits.joined_rows)
        self.store = store
        alike: dict[Any, list[str]] = {}
        for silo, part in self.part.values.items():
            alike.setdefault((part.kind, store.y[silo] is None), []).append(silo)
        self._sizing: dict[str, ChunkSizing] = {}
        self._nameless: dict[str, NamelessPart] = {}
        rules: Rules = {}
        for silos in alike.values():
            part = self.part.values[silos[0]]
            sizing = ChunkSizing.of(part, chunk, self.executors.batches_one, limits)
            self._sizing.update(dict.fromkeys(silos, sizing))
            self._nameless.update(dict.fromkeys(silos, NamelessPart(part)))
            rules = {**rules, **rules_for(part)}
        together = [tuple(silos) for silos in alike.values()]
        self._plan = Plan(self._axis, together, self._sizing, self.device, limits.chunk_values)
        self._execution = Execution(self._client_call, self.executors, set(), rules)
        self._all = np.ones(self._axis.size, dtype=bool)
        self._roster = self._all.copy()  # one for all scopes: changed in place
        self._sat_out = ~self._all  # those who left it for want of rows
        self._owner = np.stack(
            [placement.owner[silo].numpy() + self._axis.span[silo].start for silo in topology.silos]
        )

    def __str__(self) -> str:
        """A description for logs: how many clients are computed at once."""
        sizings = "; ".join(f"{silo}: {sizing}" for silo, sizing in self._sizing.items())
        compiled = " (compiled: one by one, where that can be)" if self.executors.sums_some else ""
        return f"stacked; clients at once: {sizings}{compiled}"

    # Time

    def begin(self, round: int) -> None:
        super().begin(round)
        self.executors.begin()
        self._plan.begin()
        self._roster[:] = True
        self._sat_out[:] = False
        self._shrink_roster(Moment(round), self._all)

    def finish(self) -> None:
        """No other process waits."""

    def fail(self, problem: BaseException) -> None:
        """No other process runs."""

    def _on_roster(self, silo: str) -> Bools:
        return self._roster[self._axis.span[silo]]

    def _shrink_roster(self, moment: Moment, has: Bools) -> Bools:
        """The clients that answer an upward move. The others are absent until the round ends."""
        if type(self.schedule) is Everyone and has.all():
            return self._present()
        for silo in self.scope:
            names, before = self._names[silo], self._on_roster(silo)
            after = before & has[self._axis.span[silo]]
            after &= self.schedule.answers(moment, silo, names)
            if (after != before).any():
                self.record.note(moment, silo, names, before, after)
                before[:] = after
        return self._present()

    def _present(self) -> Bools:
        """The clients present in these silos."""
        if len(self.scope) == len(self.silos):
            return self._roster.copy()
        present = np.zeros_like(self._roster)
        for silo in self.scope:
            present[self._axis.span[silo]] = self._on_roster(silo)
        return present

    # Values

    def is_light(self, rows: int) -> bool:
        return all(sizing.fits(rows) for sizing in self._sizing.values())

    def minibatch(self, ids: Tensor, steps: int | None = None) -> tuple[AtClients[Batch], RowMap]:
        owner = self._owner
        if len(self.scope) < len(self.silos):
            owner = owner[[self.silos.index(silo) for silo in self.scope]]
        sizes = self._axis.size, self._width
        where = MinibatchRows(ids, self.scope, owner, *sizes, self.device, self.dtype, steps)
        dropout = {silo: self._dropout(silo) for silo in self.scope}
        room = self.limits.minibatch
        return ClientBatches(self.store, where, dropout, self._all, self.scope, room), where

    def holders(self, where: RowMap) -> dict[str, int]:
        """The number of clients of each silo that have rows in a minibatch."""
        assert isinstance(where, MinibatchRows)
        return {j: int((where.rows[self._axis.span[j]] > 0).sum()) for j in self.scope}

    def _width(self, silo: str, rows: int) -> int:
        return self._sizing[silo].width(rows) + self._padding

    def _row_noise(
        self, where: RowMap, ids: Tensor, draw: Callable[[Client, Tensor], Noise]
    ) -> AtClients[Noise]:
        assert isinstance(where, MinibatchRows)
        return RowNoise(draw, self._axis.client, where, self._all, self.scope)

    def _noise(self, draw: Callable[[Client], Tensor]) -> AtClients[Tensor]:
        return ClientNoises(draw, self._axis.client, self._all, self.scope)

    def _read_clients(self, value: Placed) -> dict[Client, Any]:
        if not isinstance(value, LazyValue):
            raise misplaced(value, "the clients", "read")
        there = copy.copy(self)
        there.scope = tuple(value.scope)  # which may be some of the silos
        lazy, lives = there._lazy(value, "read"), np.zeros_like(value.has)
        for silo in there.scope:
            lives[self._axis.span[silo]] = value.has[self._axis.span[silo]]
        by_place = there._from_all_ranks(there._values_by_place(lazy, lives))
        return {self._axis.client(place): own for place, own in by_place.items()}

    def place_clients(self, values: Mapping[Client, Any]) -> AtClients[Any]:
        by_place = {}
        for silo in self.scope:
            for place, name in enumerate(self._names[silo], self._axis.span[silo].start):
                if (client := Client(silo, name)) in values:
                    by_place[place] = values[client]
        return self._stacked(by_place)

    def _stacked(self, by_place: Mapping[int, Any]) -> StackedValues:
        return StackedValues(stacked_by_shape(by_place), self._axis.size, self.scope)

    def _lazy(self, value: Any, user: str) -> LazyValue:
        """A placed value as a lazy one."""
        if isinstance(value, Known):
            return SharedValue(dict.fromkeys(self.silos, value.value), self._all)
        if value is self.part:
            return TaskParts(self.part.values, self._nameless, self._all)
        if isinstance(value, PerSilo):
            return SharedValue(value.values, self._all)
        if not isinstance(value, LazyValue):
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
        return LazyWork(self._execution, f, args, self.scope, steps)

    def _client_call(self, f: Local, where: str, args: Sequence[Any]) -> Any:
        with client_convolutions(self.device):
            result = self._call(f, where, args)
        if autocast():  # else it keeps a copy of every client's weights until it ends
            torch.clear_autocast_cache()
        return result

    # Chunks

    def _chunk_groups(
        self, present: Bools, work: ChunkWork, *lazy: LazyValue | None
    ) -> Iterator[ChunkGroup]:
        values = [value for value in lazy if value is not None]
        return self._plan.chunk_groups(self.scope, self._computed_here(present), values, work)

    def _pooled_groups(
        self,
        present: Bools,
        lazy: LazyValue,
        where: MinibatchRows,
        work: ChunkWork,
        mean: bool = False,
    ) -> Iterator[ChunkGroup]:
        return self._plan.pooled_groups(
            self.scope, self._computed_here(present), lazy, where, mean, work
        )

    def _computed_here(self, present: Bools) -> Bools:
        """Those of these clients that this process computes."""
        return present

    def _chunks(self, present: Bools, lazy: LazyValue) -> Iterator[Chunk]:
        return (
            chunk
            for group in self._chunk_groups(present, lazy.value, lazy)
            for chunk in group.chunks
        )

    def _single_clients(self, present: Bools) -> Iterator[Chunk]:
        for silo in self.scope:
            for place in self._axis.places(present, (silo,)):
                yield Chunk((silo,), np.array([place]), (1,), named=True)

    def _client(self, chunk: Chunk, at: int = 0) -> Client:
        return self._axis.client(int(chunk.places[at]))

    def _values_by_place(self, lazy: LazyValue, present: Bools) -> dict[int, Any]:
        """The value of each client, by place, in order."""
        by_place = {
            int(place): own
            for chunk in self._chunks(present, lazy)
            for place, own in zip(
                chunk.places, lazy.value(chunk).by_client(len(chunk.places)), strict=True
            )
        }
        return dict(sorted(by_place.items()))

    def _from_all_ranks(self, by_place: dict[int, Any]) -> dict[int, Any]:
        """These values and those of clients computed by other processes; here there are none."""
        return by_place
