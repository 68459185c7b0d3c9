"""The stacked engine: everyone in one process, many clients at once.

A verb that goes up forces lazy client values chunk by chunk over the clients that answer, and adds
up as it goes: local work and the mean are one pass, and the copies of N x K models are never
resident. chunk = 1 is a loop over clients; how many run at once without it, chunks.py says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import tree
from ..data.placement import Placement
from ..errors import PlacementError, ProtocolError
from ..federation.fabric import Fabric
from ..federation.local import Local, argument, check_local, misplaced, name_of, of_nothing
from ..federation.messages import Key, Kind
from ..federation.placed import (
    AtClients,
    AtHubs,
    Batch,
    Known,
    Noise,
    PerSilo,
    Placed,
    RowMap,
    Rows,
)
from ..federation.schedule import Bools, Moment, Schedule
from ..federation.topology import Client, title
from ..models.task import Shapes, Task
from ..rng import Ints
from .chunks import Cost
from .clientaxis import (
    Chunk,
    Lazy,
    Mapped,
    OwnNoise,
    RowNoise,
    Same,
    Scattered,
    Segments,
    Stacked,
    Taken,
    stacked_by_shape,
    together,
    widest,
)
from .replay import CALLS, Player
from .threads import ahead


class StackedEngine(Fabric):
    """`chunk`: how many clients run at once (None: by their size). `replay`: after how many calls
    local work is traced (0: never)."""

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
        device: torch.device | str = "cpu",
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
        )
        self._padding = padding
        self._cost = {silo: Cost.of(part, chunk) for silo, part in self.part.values.items()}
        self._player = Player(replay)
        self._names = topology.clients
        self._count = {silo: len(names) for silo, names in topology.clients.items()}
        self._all = {silo: np.ones(count, dtype=bool) for silo, count in self._count.items()}
        self._roster = dict(self._all)
        self._owner = {silo: owner.numpy() for silo, owner in placement.owner.items()}
        self._x = {
            silo: x.to(dtype=shapes.features[silo][1], device=self.device)
            for silo, x in placement.x.items()
        }
        self._y = {
            silo: None if y is None else task.loss.labels(y, shapes.dtype).to(self.device)
            for silo, y in placement.y.items()
        }
        self._desk: dict[tuple[Key, str, str], Any] = {}
        self._checked: dict[tuple[Kind, str], Any] = {}  # the last of a kind from each

    def __str__(self) -> str:
        """How clients are computed."""
        each = "; ".join(f"{silo}: {cost}" for silo, cost in self._cost.items())
        return f"stacked; clients at once: {each}"

    # Time

    def begin(self, round: int) -> None:
        super().begin(round)
        self._checked.clear()
        for silo in self.silos:
            self._roster[silo] = self._all[silo]
            self._shrink(silo, Moment(round), self._all[silo])

    def finish(self) -> None:
        """Nobody waits here."""

    def fail(self, problem: BaseException) -> None:
        """Nobody else runs here."""

    def _on_roster(self, silo: str) -> Bools:
        return self._roster[silo]

    def _shrink(self, silo: str, moment: Moment, has: Bools) -> Bools:
        """Those who answer an upward move; the others are out for the rest of the round."""
        before = self._roster[silo]
        says = self.schedule.answers(moment, silo, self._names[silo])
        self._roster[silo] = before & says & has
        self.record.note(moment, silo, self._names[silo], before, self._roster[silo])
        return self._roster[silo]

    # Values

    def minibatch(self, ids: Tensor) -> tuple[AtClients[Batch], RowMap]:
        where = Segments(ids, self._owner, self._count, self._padding, self.device)
        return Taken(self._x, self._y, where, self._all), where

    def row_noise(
        self, where: RowMap, ids: Tensor, sizes: Mapping[str, tuple[int, int]], once: bool = False
    ) -> AtClients[Noise]:
        assert isinstance(where, Segments)
        draw = self._row_noise(sizes, once)
        names = self._names
        return RowNoise(
            lambda silo, place, rows: draw(Client(silo, names[silo][place]), rows), where, self._all
        )

    def noise(self, sizes: Mapping[str, tuple[int, ...]]) -> AtClients[Tensor]:
        draw, names = self._noise(sizes), self._names
        return OwnNoise(lambda silo, place: draw(Client(silo, names[silo][place])), self._all)

    def _read_clients(self, value: Placed) -> dict[Client, Any]:
        if not isinstance(value, Lazy):
            raise misplaced(value, "the clients", "read")
        lazy = self._lazy(value, "read")
        return {
            Client(silo, self._names[silo][place]): mine
            for silo in self.scope
            for place, mine in self._forced(lazy, silo, lazy.has[silo]).items()
        }

    def place_clients(self, values: Mapping[Client, Any]) -> AtClients[Any]:
        each = {
            silo: {
                place: values[client]
                for place, name in enumerate(self._names[silo])
                if (client := Client(silo, name)) in values
            }
            for silo in self.scope
        }
        return self._stacked(each)

    def _stacked(self, each: Mapping[str, Mapping[int, Any]]) -> Stacked:
        return Stacked({silo: stacked_by_shape(mine) for silo, mine in each.items()}, self._count)

    def _lazy(self, value: Any, user: str) -> Lazy:
        """A placed value as clients are given it."""
        if isinstance(value, Known):
            return Same(dict.fromkeys(self.silos, value.value), self._all)
        if isinstance(value, PerSilo):
            return Same(value.values, self._all)
        if not isinstance(value, Lazy):
            raise misplaced(value, "the clients", user)
        for silo in self.scope:
            if silo not in value.has:
                raise PlacementError(f"{user} at the clients of {silo}: the value lives elsewhere")
        return value

    # Local work

    def _at_clients(self, f: Local, values: Sequence[Placed]) -> AtClients[Any]:
        check_local(f)
        args = [self._lazy(value, name_of(f)) for value in values or [self.known(None)]]
        f = f if values else of_nothing(f)
        return Mapped(self._call, self._player, f, args, self.scope)

    def hold(self, value: AtClients[Any]) -> AtClients[Any]:
        lazy = self._lazy(value, "hold")
        held = {
            silo: [
                (chunk.places, lazy.value(chunk))
                for chunk in self._chunks(silo, lazy.has[silo] & self._roster[silo], lazy)
            ]
            for silo in self.scope
        }
        return Stacked(held, self._count)

    def keep(self, new: AtClients[Any], old: AtClients[Any]) -> AtClients[Any]:
        after, before = self._lazy(new, "keep"), self._lazy(old, "keep")
        kept: dict[str, dict[int, Any]] = {}
        for silo in self.scope:
            self._last_up(silo)
            counts = self._roster[silo] & after.has[silo]
            kept[silo] = {
                **self._forced(before, silo, before.has[silo] & ~counts),
                **self._forced(after, silo, counts),
            }
        return self._stacked(kept)

    # Down

    def to_clients(
        self, kind: Kind, value: AtHubs[Any], holding: RowMap | None = None
    ) -> AtClients[Any]:
        self._next(kind)
        if holding is not None:
            assert isinstance(holding, Segments)
            for silo in self.scope:
                self._roster[silo] = self._roster[silo] & (holding.rows(silo) > 0)
        values = {silo: argument(value, silo, kind.name) for silo in self.scope}
        for silo, mine in values.items():
            self._book("down", kind, silo, self._roster[silo], tree.nbytes(mine))
        return Same(values, self._there())

    def scatter(self, kind: Kind, rows: AtHubs[Rows], where: RowMap) -> AtClients[Rows]:
        assert isinstance(where, Segments)
        self._next(kind)
        values = {silo: argument(rows, silo, kind.name) for silo in self.scope}
        for silo, mine in values.items():
            self._check_size(kind, mine, where, silo)
            self._check_rows(kind, silo, mine.value, silo)
            sizes = self._row_bytes(kind, silo, where, masked=True)
            self._book("down", kind, silo, self._roster[silo], sizes)
        return Scattered(values, where, self._there())

    def _spread_clients(self, kind: Kind, value: AtHubs[Any]) -> AtClients[Any]:
        self._next(kind)
        spread: dict[str, dict[int, Any]] = {}
        for silo in self.scope:
            own = argument(value, silo, kind.name)
            there = np.flatnonzero(self._roster[silo]).tolist()
            for client in (Client(silo, self._names[silo][place]) for place in there):
                if client.name not in own:
                    raise ProtocolError(f"{kind}: {title(silo)} has nothing for {title(client)}")
            spread[silo] = {place: own[self._names[silo][place]] for place in there}
            self._book("down", kind, silo, self._roster[silo], self._bytes(silo, spread[silo]))
        return self._stacked(spread)

    def _there(self) -> dict[str, Bools]:
        return {silo: self._roster[silo] for silo in self.scope}

    # Up

    def gather(self, kind: Kind, value: AtClients[Tensor], where: RowMap) -> AtHubs[Rows]:
        assert isinstance(where, Segments)
        lazy, gathered = self._lazy(value, kind.name), {}
        _, moment = self._next_up(kind)
        for silo in self.scope:
            there = self._shrink(silo, moment, lazy.has[silo])
            shape, dtype = self._spec(kind, silo)
            rows = torch.zeros(where.size, *shape, dtype=dtype, device=self.device)
            mask = torch.zeros(where.size, dtype=torch.bool, device=self.device)
            holders = there & (where.rows(silo) > 0)
            for chunk in self._chunks(silo, holders, lazy):
                self._check_rows(kind, silo, self._rows_of(kind, where, chunk, lazy), silo)
                where.put(chunk, lazy.value(chunk), rows, mask)
            if not tree.is_finite(rows):
                for chunk in self._one_by_one(silo, holders):
                    self._check_finite(
                        kind, self._client(chunk), self._rows_of(kind, where, chunk, lazy)
                    )
            self._book("up", kind, silo, there, self._row_bytes(kind, silo, where, masked=False))
            gathered[silo] = Rows(rows, mask)
        return AtHubs(gathered, self.scope)

    def _rows_of(self, kind: Kind, where: Segments, chunk: Chunk, lazy: Lazy) -> Tensor:
        try:
            return where.real_rows(chunk, lazy.value(chunk))
        except ValueError as problem:
            raise ProtocolError(f"round {self.round}: {kind}: {problem}") from None

    def mean(
        self,
        kind: Kind,
        value: AtClients[Any],
        *,
        otherwise: AtHubs[Any],
        weight: AtClients[Tensor] | None = None,
    ) -> AtHubs[Any]:
        lazy, means = self._lazy(value, kind.name), {}
        weights = None if weight is None else self._lazy(weight, kind.name)
        _, moment = self._next_up(kind)
        for silo in self.scope:
            means[silo] = before = argument(otherwise, silo, kind.name)
            has = lazy.has[silo] if weights is None else lazy.has[silo] & weights.has[silo]
            there = self._shrink(silo, moment, has)
            total, parts = self._sum(kind, silo, there, lazy, weights, before)
            found = tree.divided(total, parts, before) if parts > 0 else total
            if not tree.is_finite(found):
                for chunk in self._one_by_one(silo, there):
                    self._check_finite(kind, self._client(chunk), lazy.value(chunk).tree)
                self._check_finite(kind, silo, found)
            if parts > 0:
                means[silo] = found
            each = tree.nbytes(before) + (0 if weights is None else self.dtype.itemsize)
            self._book("up", kind, silo, there, each)
        return AtHubs(means, self.scope)

    def _sum(
        self, kind: Kind, silo: str, there: Bools, lazy: Lazy, weights: Lazy | None, like: Any
    ) -> tuple[Any, float]:
        """Weighted sum over clients, chunk by chunk, and the sum of the weights."""
        total, parts = None, 0.0
        for chunk in self._chunks(silo, there, lazy, weights):
            count, w = len(chunk.places), None
            value = lazy.value(chunk)
            first = value.each(1)[0]
            if weights is not None:
                w = weights.value(chunk).numbers(count).to(self.dtype).double()
            at = 0 if w is None else int(w.argmin())
            lowest = 1.0 if w is None else float(w[at])
            self._check_mean(kind, self._client(chunk, at), first, lowest, like)
            part = value.sum(w, count)
            total = part if total is None else tree.add(total, part)
            parts += count if w is None else float(w.sum())
        return total, parts

    def _collect_clients(self, kind: Kind, value: AtClients[Any]) -> AtHubs[dict[str, Any]]:
        lazy, collected = self._lazy(value, kind.name), {}
        _, moment = self._next_up(kind)
        for silo in self.scope:
            there = self._shrink(silo, moment, lazy.has[silo])
            came = self._forced(lazy, silo, there)
            for place, mine in came.items():
                self._check_finite(kind, Client(silo, self._names[silo][place]), mine)
            self._book("up", kind, silo, there, self._bytes(silo, came))
            collected[silo] = {self._names[silo][place]: mine for place, mine in came.items()}
        return AtHubs(collected, self.scope)

    def _row_bytes(self, kind: Kind, silo: str, where: Segments, masked: bool) -> Ints:
        """Bytes of each client's rows."""
        shape, dtype = self._spec(kind, silo)
        return where.rows(silo) * (int(np.prod(shape, dtype=int)) * dtype.itemsize + masked)

    def _bytes(self, silo: str, each: Mapping[int, Any]) -> Ints:
        """Bytes of each client's value."""
        sizes = np.zeros(self._count[silo], dtype=np.int64)
        for place, mine in each.items():
            sizes[place] = tree.nbytes(mine)
        return sizes

    # Between hubs

    def _send(self, key: Key, kind: Kind, source: str, to: str, payload: Any) -> None:
        self._desk[key, source, to] = payload

    def _receive(self, key: Key, kind: Kind, source: str, to: str) -> Any:
        return self._desk.pop((key, source, to))

    def _incoming(self, key: Key, kind: Kind, source: str, to: str, rows_of: str) -> Any:
        """What everyone is sent alike is checked once."""
        payload = self._desk[key, source, to]
        if payload is not None and self._checked.get((kind, source)) is payload:
            return self._receive(key, kind, source, to)
        self._checked[kind, source] = payload
        return super()._incoming(key, kind, source, to, rows_of)

    def _told(self, at: str, value: AtHubs[Any]) -> Any:
        return value.get(at, "told")

    # Chunks

    def _chunks(self, silo: str, there: Bools, *lazy: Lazy | None) -> Iterator[Chunk]:
        """The clients in chunks, never two of different shapes together. What is heavy to compute
        is computed ahead, by as many threads as torch has."""
        values = [value for value in lazy if value is not None]
        places, cost = np.flatnonzero(there), self._cost[silo]
        shapes = together([value.shapes(silo) for value in values])
        widths = widest([value.widths(silo) for value in values])
        groups = [places]
        if shapes is not None:
            groups = [places[shapes[places] == kind] for kind in np.unique(shapes[places])]
        cuts = [
            cut
            for group in groups
            for cut in cost.cut(group, None if widths is None else widths[group])
        ]
        chunks = (Chunk(silo, cut) for cut in cuts)
        if len(cuts) > 1 and self.device.type == "cpu" and cost.heavy(cuts[0], widths):
            return ahead(chunks, lambda chunk: [value.value(chunk) for value in values])
        return chunks

    def _one_by_one(self, silo: str, there: Bools) -> Iterator[Chunk]:
        return (Chunk(silo, np.array([place])) for place in np.flatnonzero(there))

    def _client(self, chunk: Chunk, at: int = 0) -> Client:
        return Client(chunk.silo, self._names[chunk.silo][chunk.places[at]])

    def _each(self, lazy: Lazy, chunk: Chunk) -> list[Any]:
        return lazy.value(chunk).each(len(chunk.places))

    def _forced(self, lazy: Lazy, silo: str, there: Bools) -> dict[int, Any]:
        """Every client's own value, in the clients' order."""
        forced = {
            int(place): mine
            for chunk in self._chunks(silo, there, lazy)
            for place, mine in zip(chunk.places, self._each(lazy, chunk), strict=True)
        }
        return dict(sorted(forced.items()))
