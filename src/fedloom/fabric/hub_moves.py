"""Moves between hubs, for all engines. An engine provides sending and receiving."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ..core import tree
from ..core.errors import PlacementError, ProtocolError
from ..core.placed import AtClients, AtHubs, Rows
from ..core.topology import Party, title
from .accounts import Accounts
from .checks import Checks
from .kinds import Direction, Key, Kind
from .local_work import argument
from .simclock.clock import Crossing


class HubMoves(Accounts, Checks):
    """`exchange`, `collect` and `spread`, over the hubs hosted here."""

    hosted: frozenset[Party]
    _parties: set[str]  # hubs, and the server

    @abstractmethod
    def _send(self, key: Key, kind: Kind, source: str, to: str, payload: Any) -> None: ...

    @abstractmethod
    def _receive(self, key: Key, kind: Kind, source: str, to: str) -> Any: ...

    @abstractmethod
    def _collect_clients(self, kind: Kind, value: AtClients[Any]) -> AtHubs[dict[str, Any]]: ...

    @abstractmethod
    def _spread_clients(self, kind: Kind, value: AtHubs[Any]) -> AtClients[Any]: ...

    def exchange(self, kind: Kind, value: AtHubs[Any]) -> AtHubs[dict[str, Any]]:
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
        """Send the same payload to each of them, and book it."""
        for receiver in to:
            self._send(key, kind, source, receiver, payload)
        return self._posted(kind, direction, source, to, payload)

    def _posted(
        self, kind: Kind, direction: Direction, source: str, to: Sequence[str], payload: Any
    ) -> list[Crossing]:
        size = tree.nbytes(payload)
        self.ledger.book("top", direction, kind, len(to), size * len(to))
        return [Crossing(source, receiver, size) for receiver in to]

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
