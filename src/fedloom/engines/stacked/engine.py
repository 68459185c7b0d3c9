"""The stacked engine: all parties in one process, many clients at once.

A move up computes lazy values chunk by chunk over the clients that answer, and reduces them at
once: local work and the mean are one pass. With chunk = 1 it is a loop over clients; without
`chunk`, sizing.py decides how many run at once. Clients and their work are in clients.py, moves up
in reduce.py; moves down and between hubs are here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.errors import ProtocolError
from ...core.placed import AtClients, AtHubs, RowMap, Rows
from ...core.topology import Client, title
from ...fabric.kinds import Key, Kind
from ...fabric.local_work import argument
from .lazy import SharedValue, StackedValues
from .minibatch import MinibatchRows, ScatteredRows
from .reduce import Reduce


class StackedEngine(Reduce):
    """Settings are those of `Clients`."""

    _sent: dict[tuple[Key, str, str], Any]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._sent = {}  # between hubs, not received yet

    def hold(self, value: AtClients[Any]) -> AtClients[Any]:
        lazy = self._lazy(value, "hold")
        present = lazy.has & self._present()
        values = [(chunk.places, lazy.value(chunk)) for chunk in self._chunks(present, lazy)]
        return StackedValues(values, self._axis.size, self.scope)

    def keep(self, new: AtClients[Any], old: AtClients[Any]) -> AtClients[Any]:
        after, before = self._lazy(new, "keep"), self._lazy(old, "keep")
        for silo in self.scope:
            self._last_up(silo)
        counts = self._present() & after.has
        values = self._values_by_place(before, before.has & ~counts) | self._values_by_place(
            after, counts
        )
        return self._stacked(values)

    # Down

    def to_clients(
        self, kind: Kind, value: AtHubs[Any], holding: RowMap | None = None
    ) -> AtClients[Any]:
        self._next(kind)
        values = {silo: argument(value, silo, kind.name) for silo in self.scope}
        if holding is not None:
            assert isinstance(holding, MinibatchRows)
            for silo in self.scope:
                span = self._axis.span[silo]
                self._sat_out[span] |= self._roster[span] & (holding.rows[span] == 0)
                self._roster[span] &= holding.rows[span] > 0
        present = self._present()
        self._book_all("down", kind, present, {j: self._size(j, a) for j, a in values.items()})
        stacked = {
            silos: mean
            for silos, own_means, mean in self._means
            if all(values.get(silo) is own for silo, own in zip(silos, own_means, strict=True))
        }
        return SharedValue(values, present, stacked)

    def rejoin(self) -> None:
        self._roster |= self._sat_out
        self._sat_out[:] = False

    def scatter(self, kind: Kind, rows: AtHubs[Rows], where: RowMap) -> AtClients[Rows]:
        assert isinstance(where, MinibatchRows)
        self._next(kind)
        values = {silo: argument(rows, silo, kind.name) for silo in self.scope}
        for silo, own in values.items():
            self._check_size(kind, own, where, silo)
            self._check_rows(kind, silo, own.value, silo)
        present = self._present()
        self._book_rows("down", kind, present, where, masked=True)
        return ScatteredRows(values, where, present)

    def _spread_clients(self, kind: Kind, value: AtHubs[Any]) -> AtClients[Any]:
        self._next(kind)
        spread: dict[int, Any] = {}
        for silo in self.scope:
            own, span = argument(value, silo, kind.name), self._axis.span[silo]
            present = np.flatnonzero(self._roster[span]).tolist()
            for client in (Client(silo, self._names[silo][place]) for place in present):
                if client.name not in own:
                    raise ProtocolError(f"{kind}: {title(silo)} has nothing for {title(client)}")
            sent = {span.start + place: own[self._names[silo][place]] for place in present}
            self._book("down", kind, silo, self._roster[span], self._bytes(silo, sent))
            spread |= sent
        return self._stacked(spread)

    # Between hubs

    def exchange(self, kind: Kind, value: AtHubs[Any]) -> AtHubs[dict[str, Any]]:
        """A value that goes to all hubs is checked once. Rows that were just gathered are known to
        be finite."""
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
        self._sent[key, source, to] = payload

    def _receive(self, key: Key, kind: Kind, source: str, to: str) -> Any:
        return self._sent.pop((key, source, to))

    def _announced(self, at: str, value: AtHubs[Any]) -> Any:
        return value.get(at, "told")
