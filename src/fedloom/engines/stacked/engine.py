"""The stacked engine: everyone in one process, many clients at once.

A verb that goes up forces lazy client values chunk by chunk over the clients that answer, and adds
up as it goes: local work and the mean are one pass, and the copies of N x K models are never
resident. chunk = 1 is a loop over clients; how many run at once without it, chunks.py says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core import tree
from ...core.arithmetic import Precision
from ...core.errors import PlacementError, ProtocolError
from ...core.gradients import derivatives_by
from ...core.placed import AtClients, AtHubs, Batch, Known, Noise, PerSilo, Placed, RowMap, Rows
from ...core.rng import Floats, Ints
from ...core.topology import Client, title
from ...data.placement import Placement
from ...fabric.accounts import Books
from ...fabric.engine import Engine
from ...fabric.kinds import Direction, Key, Kind
from ...fabric.local_work import Local, argument, check_local, misplaced, name_of, of_nothing
from ...fabric.schedule import Bools, Everyone, Moment, Schedule
from ...models.task import NamelessPart, Shapes, SiloAsked, Task
from ..execute.compiling import Compiler
from ..execute.replay import CALLS, Player
from ..execute.workers import autocast, quietly
from ..layers.gpu.convolutions import of_clients
from ..layers.rules import Rules
from .axis import Axis, Chunk, Shares, added, fixed, some
from .axis import means as means_of
from .chunks import Cost
from .client_axis import Lazy, Mapped, OwnNoise, Parts, Same, Stacked, rules_for, stacked_by_shape
from .compiled_sums import Natively
from .minibatch import RowNoise, Scattered, Segments, Taken
from .plan import Cuts, Lot, Silos, Work
from .pooling import one_for_all, rows_given, rows_of, rows_of_mean
from .store import Held


def natively(device: torch.device) -> bool:
    """Whether clients' work is compiled client by client, not by torch's compiler."""
    return device.type == "cpu"


class StackedEngine(Engine):
    """`chunk`: how many clients run at once (None: by their size). `replay`: after how many calls
    local work is traced (0: never); `compile`: on a CPU, means of clients' work are compiled, on a
    GPU their derivatives. `held`: the rows, if another engine of the run holds them already."""

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
        replay: int = CALLS,
        compile: bool = False,
        device: torch.device | str = "cpu",
        held: Held | None = None,
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
        self._padding = padding
        self._names = topology.clients
        self._axis = Axis(topology.clients)
        several = self._axis.size > len(topology.silos)
        self._pooling = several and chunk is None and not padding
        if held is None or not held.holds(placement):
            held = Held(task, shapes, placement, self.device)
        self.held = held
        alike: dict[Any, list[str]] = {}
        for silo, part in self.part.values.items():
            alike.setdefault((part.kind, held.y[silo] is None), []).append(silo)
        self._cost: dict[str, Cost] = {}
        self._rules: Rules = {}
        self._nameless: dict[str, NamelessPart] = {}
        for silos in alike.values():
            part = self.part.values[silos[0]]
            self._cost.update(dict.fromkeys(silos, Cost.of(part, chunk, compile)))
            self._nameless.update(dict.fromkeys(silos, NamelessPart(part)))
            self._rules = {**self._rules, **rules_for(part)}
        together = [tuple(silos) for silos in alike.values()]
        self._cuts = Cuts(self._axis, together, self._cost, self.device)
        self._named: set[Local] = set()  # client work that asks for its silo
        by_torch = compile and not natively(self.device)
        self._player = Player(0 if by_torch else replay)
        self._compiler = Compiler(self.device) if by_torch else None
        self._native = Natively() if compile and not by_torch and chunk is None else None
        self._all = np.ones(self._axis.size, dtype=bool)
        self._roster = self._all.copy()  # one for all scopes: changed in place
        self._owner = np.stack(
            [placement.owner[silo].numpy() + self._axis.span[silo].start for silo in topology.silos]
        )
        self._desk: dict[tuple[Key, str, str], Any] = {}
        self._sizes: dict[str, tuple[Any, int]] = {}
        self._finite: AtHubs[Any] | None = None  # the last mean of all silos
        self._gathered: AtHubs[Any] | None = None  # the last rows
        self._means: list[tuple[Silos, list[Any], Any]] = []  # the last: one by one, and stacked

    def __str__(self) -> str:
        """How clients are computed."""
        each = "; ".join(f"{silo}: {cost}" for silo, cost in self._cost.items())
        compiled = "" if self._native is None else " (compiled: one by one, where that can be)"
        return f"stacked; clients at once: {each}{compiled}"

    # Time

    def begin(self, round: int) -> None:
        super().begin(round)
        self._player.begin()
        self._cuts.begin()
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
        return Taken(self.held, where, self._all, self.scope), where

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
        how = self._client_call, self._player, self._named, self._rules
        return Mapped(*how, f, args, self.scope, steps, alone=self._compiler is None)

    def _client_call(self, f: Local, where: str, args: Sequence[Any]) -> Any:
        way = nullcontext() if self._compiler is None else derivatives_by(self._compiler)
        with of_clients(self.device), way:
            result = self._call(f, where, args)
        if autocast():  # it keeps what it has cast until it ends, which is a client's every weight
            torch.clear_autocast_cache()
        return result

    def hold(self, value: AtClients[Any]) -> AtClients[Any]:
        lazy = self._lazy(value, "hold")
        there = lazy.has & self._there()
        held = [(chunk.places, lazy.value(chunk)) for chunk in self._chunks(there, lazy)]
        return Stacked(held, self._axis.size, self.scope)

    def keep(self, new: AtClients[Any], old: AtClients[Any]) -> AtClients[Any]:
        after, before = self._lazy(new, "keep"), self._lazy(old, "keep")
        for silo in self.scope:
            self._last_up(silo)
        counts = self._there() & after.has
        kept = self._forced(before, before.has & ~counts) | self._forced(after, counts)
        return self._stacked(kept)

    # Down

    def to_clients(
        self, kind: Kind, value: AtHubs[Any], holding: RowMap | None = None
    ) -> AtClients[Any]:
        self._next(kind)
        values = {silo: argument(value, silo, kind.name) for silo in self.scope}
        if holding is not None:
            assert isinstance(holding, Segments)
            for silo in self.scope:
                span = self._axis.span[silo]
                self._roster[span] &= holding.rows[span] > 0
        there = self._there()
        self._book_all("down", kind, there, {j: self._size(j, a) for j, a in values.items()})
        stacked = {
            silos: found
            for silos, each, found in self._means
            if all(values.get(silo) is mine for silo, mine in zip(silos, each, strict=True))
        }
        return Same(values, there, stacked)

    def scatter(self, kind: Kind, rows: AtHubs[Rows], where: RowMap) -> AtClients[Rows]:
        assert isinstance(where, Segments)
        self._next(kind)
        values = {silo: argument(rows, silo, kind.name) for silo in self.scope}
        for silo, mine in values.items():
            self._check_size(kind, mine, where, silo)
            self._check_rows(kind, silo, mine.value, silo)
        there = self._there()
        self._book_rows("down", kind, there, where, masked=True)
        return Scattered(values, where, there)

    def _spread_clients(self, kind: Kind, value: AtHubs[Any]) -> AtClients[Any]:
        self._next(kind)
        spread: dict[int, Any] = {}
        for silo in self.scope:
            own, span = argument(value, silo, kind.name), self._axis.span[silo]
            there = np.flatnonzero(self._roster[span]).tolist()
            for client in (Client(silo, self._names[silo][place]) for place in there):
                if client.name not in own:
                    raise ProtocolError(f"{kind}: {title(silo)} has nothing for {title(client)}")
            mine = {span.start + place: own[self._names[silo][place]] for place in there}
            self._book("down", kind, silo, self._roster[span], self._bytes(silo, mine))
            spread |= mine
        return self._stacked(spread)

    # Up

    def gather(self, kind: Kind, value: AtClients[Tensor], where: RowMap) -> AtHubs[Rows]:
        assert isinstance(where, Segments)
        lazy = self._lazy(value, kind.name)
        gathered: dict[str, Rows] = {}
        _, moment = self._next_up(kind)
        there = self._shrink(moment, lazy.has)
        for silos, rows, mask in self._rows(kind, there & (where.rows > 0), lazy, where):
            if not tree.is_finite(rows):
                for chunk in self._one_by_one(there & (where.rows > 0)):
                    own = where.real(chunk, lazy.value(chunk))
                    self._check_finite(kind, self._client(chunk), own)
            masks = [where.everything] * len(silos) if mask is None else mask.split(where.size)
            each = map(Rows, rows.split(where.size), masks)
            gathered.update(zip(silos, each, strict=True))
        self._book_rows("up", kind, there, where, masked=False)
        self._gathered = AtHubs({silo: gathered[silo] for silo in self.scope}, self.scope)
        return self._gathered

    def _rows(
        self, kind: Kind, there: Bools, lazy: Lazy, where: Segments
    ) -> Iterator[tuple[Silos, Tensor, Tensor | None]]:
        """The minibatches of silos, one after the other, and which rows came (None: all)."""
        one_step = where.steps == 1  # rows will be taken at once for it, too
        taken_apart = one_step or self._native is not None  # steps take no rows in chunks
        worth = taken_apart or all(self._cost[silo].many(where.size) for silo in self.scope)
        pooled = self._pooling and worth and rows_of(lazy) is where
        for lot in (
            self._pools(there, lazy, where, lazy.value)
            if pooled
            else self._lots(there, lazy.value, lazy)
        ):
            silo = lot.silos[0]
            shape, dtype = self._spec(kind, silo)

            def checked(rows: Tensor, silo: str = silo) -> Tensor:
                self._check_rows(kind, silo, rows, silo)
                return rows

            def empty(size: int, shape: Any = shape, dtype: torch.dtype = dtype) -> Tensor:
                return torch.empty(size, *shape, dtype=dtype, device=self.device)

            size = len(lot.silos) * where.size
            try:
                rows, mask = where.joined(lot.chunks, lazy.value, size, checked, empty)
            except ValueError as problem:
                raise ProtocolError(f"round {self.round}: {kind}: {problem}") from None
            yield lot.silos, rows, mask

    def mean(
        self,
        kind: Kind,
        value: AtClients[Any],
        *,
        otherwise: AtHubs[Any],
        weight: AtClients[Tensor] | None = None,
    ) -> AtHubs[Any]:
        lazy = self._lazy(value, kind.name)
        weights = None if weight is None else self._lazy(weight, kind.name)
        _, moment = self._next_up(kind)
        before = {silo: argument(otherwise, silo, kind.name) for silo in self.scope}
        there = self._shrink(moment, lazy.has if weights is None else lazy.has & weights.has)
        means = dict(before)
        self._means = []
        for silos, total, parts in self._sums(kind, there, lazy, weights, before):
            found = means_of(total, parts, before[silos[0]])
            if not tree.is_finite(found):
                for chunk in self._one_by_one(there):
                    self._check_finite(kind, self._client(chunk), lazy.value(chunk).tree)
                self._check_finite(kind, silos[0], found)
            each = tree.unbound(found, len(silos))
            means.update(
                {j: a for j, a, any_ in zip(silos, each, some(parts), strict=True) if any_}
            )
            self._means.append((silos, each, found))
        more = 0 if weights is None else self.dtype.itemsize
        self._book_all("up", kind, there, {j: self._size(j, a) + more for j, a in before.items()})
        result = AtHubs(means, self.scope)
        if all(means[silo] is not mine for silo, mine in before.items()):
            self._finite = result
        return result

    def check_state(self, state: Any) -> None:
        """But for a mean that was just checked."""
        if any(value is not self._finite for value in state):
            super().check_state(state)

    def _sums(
        self,
        kind: Kind,
        there: Bools,
        lazy: Lazy,
        weights: Lazy | None,
        like: Mapping[str, Any],
    ) -> Iterator[tuple[Silos, Any, Shares]]:
        """Sums over the clients of silos, each tensor with a first axis for these silos."""
        pool = rows_of_mean(lazy) if self._pooling and weights is None else None
        if pool is None and self._native is not None:
            compiled = self._natively(self._native, kind, there, lazy, weights, like)
            if compiled is not None:
                yield from compiled
                return
        times: Ints | None = None
        if pool is None:
            there, times = self._spared(there, lazy, weights)

        def sums(chunk: Chunk) -> tuple[Any, Shares]:
            if sums not in chunk.memo:
                found = self._sum_of(kind, chunk, lazy, weights, like, times)
                if not chunk.kept:  # what its clients have is not held any longer
                    chunk.memo.clear()
                chunk.memo[sums] = found
            return chunk.memo[sums]

        light = all(self._cost[silo].adds_little for silo in self.scope)
        work = sums if light else lazy.value  # large sums are not held beside each other
        if pool is not None:
            lots = self._pools(there, lazy, pool, work, mean=True)
        else:
            lots = self._lots(there, work, lazy, weights)
        for lot in lots:
            found: tuple[Any, Shares] | None = None
            for chunk in lot.chunks:
                more = sums(chunk)
                if found is not None:
                    with quietly():
                        more = tree.add(found[0], more[0]), added(found[1], more[1])
                found = more
            if found is not None:
                yield lot.silos, *found

    def _natively(
        self,
        native: Natively,
        kind: Kind,
        there: Bools,
        lazy: Lazy,
        weights: Lazy | None,
        like: Mapping[str, Any],
    ) -> list[tuple[Silos, Any, Shares]] | None:
        """The same, by compiled work; None if some of it is not to be had so."""
        there, times = self._spared(self._here(there), lazy, weights)
        lots: list[tuple[Silos, Any, Shares]] = []
        left = list(self._cuts.together(self.scope))[::-1]
        while left:
            silos = left.pop()
            chunk = self._axis.chunk(silos, self._axis.places(there, silos))
            if not len(chunk.places):
                continue
            try:
                found = native.sums(silos, chunk.places, chunk.of, times, lazy, weights)
            except SiloAsked:
                left += [(silo,) for silo in silos[::-1]]
                continue
            if found is None:
                return None
            at = int(found.weights.argmin())
            for silo in silos:
                lowest = float(found.weights[at])
                self._check_mean(kind, self._client(chunk, at), found.form, lowest, like[silo])
            lots.append((silos, found.total, found.parts))
        return lots

    def _spared(self, there: Bools, lazy: Lazy, weights: Lazy | None) -> tuple[Bools, Ints | None]:
        """Without those for whom another client computes the same, and for how many each does."""
        where = rows_given(lazy) if self._pooling else None
        if where is None or (weights is not None and rows_given(weights) is not where):
            return there, None
        there = self._here(there)
        idle = there & (where.rows == 0)
        if not idle.any():
            return there, None
        spared, times = one_for_all(self._axis, idle, self.scope)
        return there & ~spared, times

    def _sum_of(
        self,
        kind: Kind,
        chunk: Chunk,
        lazy: Lazy,
        weights: Lazy | None,
        like: Mapping[str, Any],
        times: Ints | Floats | None,
    ) -> tuple[Any, Shares]:
        """Weighted sums over each silo's clients of one chunk, and the sums of the weights.
        `times`: how many clients each of them stands for."""
        value = lazy.value(chunk)
        form, w, lowest, at = tree.signature(value.tree, int(value.stacked)), None, 1.0, 0
        if weights is not None:
            w = weights.value(chunk).numbers(len(chunk.places)).to(self.dtype).double()
            if bool((w < 0).any()):
                at = int(w.argmin())
                lowest = float(w[at])
        elif chunk.pool is not None and chunk.pool.parts is not None:
            times = chunk.pool.parts
        for silo in chunk.silos:
            self._check_mean(kind, self._client(chunk, at), form, lowest, like[silo])
        if times is not None and chunk.pool is None:
            times = times[chunk.places]
        if times is not None and (times != 1).any():
            more = fixed(times, self.device).double()
            w = more if w is None else w * more
        part = value.sums(w, chunk.counts)
        if w is None:
            return part, chunk.counts
        return part, torch.stack([mine.sum() for mine in w.split(list(chunk.counts))])

    def _collect_clients(self, kind: Kind, value: AtClients[Any]) -> AtHubs[dict[str, Any]]:
        lazy = self._lazy(value, kind.name)
        collected: dict[str, dict[str, Any]] = {silo: {} for silo in self.scope}
        _, moment = self._next_up(kind)
        there = self._shrink(moment, lazy.has)
        came = self._everyones(self._forced(lazy, there))
        for place, mine in came.items():
            client = self._axis.client(place)
            self._check_finite(kind, client, mine)
            collected[client.silo][client.name] = mine
        for silo in self.scope:
            self._book("up", kind, silo, there[self._axis.span[silo]], self._bytes(silo, came))
        return AtHubs(collected, self.scope)

    def _book_all(
        self, direction: Direction, kind: Kind, there: Bools, size: Mapping[str, int]
    ) -> None:
        """A move inside every silo. `size`: bytes of every message in a silo."""
        for silo in self.scope:
            self._book(direction, kind, silo, there[self._axis.span[silo]], size[silo])

    def _book_rows(
        self, direction: Direction, kind: Kind, there: Bools, where: Segments, masked: bool
    ) -> None:
        """A move of each client's rows; time follows the rows or the clients, whichever are
        fewer."""
        each = [self._spec(kind, silo) for silo in self.scope]
        sizes = [math.prod(shape) * dtype.itemsize + masked for shape, dtype in each]
        if self.clock is not None:
            for silo, size in zip(self.scope, sizes, strict=True):
                span = self._axis.span[silo]
                self._book(direction, kind, silo, there[span], where.rows[span] * size)
            return
        if self._axis.size > where.size:
            rows = np.count_nonzero(there[where.owners(self.scope)], axis=1).tolist()
        else:
            spans = [self._axis.span[silo] for silo in self.scope]
            rows = [int(where.rows[span] @ there[span]) for span in spans]
        total = sum(n * size for n, size in zip(rows, sizes, strict=True))
        self.ledger.book("bottom", direction, kind, int(np.count_nonzero(there)), total)

    def _size(self, silo: str, value: Any) -> int:
        """Bytes of a value, which is often what was asked about last."""
        last, size = self._sizes.get(silo, (None, 0))
        if last is not value or value is None:
            size = tree.nbytes(value)
            self._sizes[silo] = value, size
        return size

    def _bytes(self, silo: str, each: Mapping[int, Any]) -> Ints:
        """Bytes of each of the silo's clients' value."""
        span = self._axis.span[silo]
        sizes = np.zeros(span.stop - span.start, dtype=np.int64)
        for place, mine in each.items():
            if span.start <= place < span.stop:
                sizes[place - span.start] = tree.nbytes(mine)
        return sizes

    # Between hubs

    def exchange(self, kind: Kind, value: AtHubs[Any]) -> AtHubs[dict[str, Any]]:
        """What everyone is sent alike is checked once; rows that were just gathered are finite."""
        self._next(kind)
        values = {source: argument(value, source, kind.name) for source in self.scope}
        sent = []
        for source, payload in values.items():
            if others := [to for to in self.scope if to != source]:
                if value is self._gathered:
                    self._check_rows(kind, source, payload.value, source)
                else:
                    self._check_payload(kind, source, payload, rows_of=source)
                sent += self._posted(kind, "across", source, others, payload)
        self._crossed(sent)
        return AtHubs({to: dict(values) for to in self.scope}, self.scope)

    def _send(self, key: Key, kind: Kind, source: str, to: str, payload: Any) -> None:
        self._desk[key, source, to] = payload

    def _receive(self, key: Key, kind: Kind, source: str, to: str) -> Any:
        return self._desk.pop((key, source, to))

    def _told(self, at: str, value: AtHubs[Any]) -> Any:
        return value.get(at, "told")

    # Chunks

    def _lots(self, there: Bools, work: Work, *lazy: Lazy | None) -> Iterator[Lot]:
        values = [value for value in lazy if value is not None]
        return self._cuts.lots(self.scope, self._here(there), values, work)

    def _pools(
        self, there: Bools, lazy: Lazy, where: Segments, work: Work, mean: bool = False
    ) -> Iterator[Lot]:
        return self._cuts.pools(self.scope, self._here(there), lazy, where, mean, work)

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
