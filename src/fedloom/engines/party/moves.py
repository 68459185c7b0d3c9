"""Moves of the party engine: where the source is hosted, send; where the destination is, receive.

A wait upwards ends by a deadline and becomes absence; a wait downwards or across ends by the
message, by a later one, or by an abort.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core import tree
from ...core.crash_points import crash
from ...core.errors import LostError, ProtocolError
from ...core.placed import MISSING, AtClients, AtHubs, RowMap, Rows
from ...core.topology import Client, title
from ...fabric.engine import Engine, RunIsOver
from ...fabric.kinds import END, Key, Kind, Message
from ...fabric.local_work import argument, misplaced
from ...fabric.schedule import Bools, Moment
from ...transports.base import Transport
from .client_noise import ClientNoise
from .pace import Pace
from .quorum import Quorum
from .timeouts import Waits
from .values import Held, Pending, Slots, with_weight


class Moves(Engine):
    """Between hubs and clients, and between hubs. The engine makes what is named here."""

    _transport: Transport
    _pace: Pace
    _waits: Waits
    _quorum: Quorum
    _noise_of: ClientNoise
    _known: Mapping[str, list[Client]]  # the clients of silos that have a party here
    _own: Mapping[str, list[Client]]  # of these, who is hosted here
    _present: dict[Client, bool]
    _sent_to: set[Client]  # hosted here, who were sent something in this round
    _accepted: dict[Client, Key]
    _pending: dict[Client, list[Pending]]
    _before: dict[str, Bools]  # rosters before the upward move going on

    # Down

    def to_clients(
        self, kind: Kind, value: AtHubs[Any], holding: RowMap | None = None
    ) -> AtClients[Any]:
        if holding is not None:
            assert isinstance(holding, Slots)
            for silo in self.scope:
                for client in self._known.get(silo, []):
                    self._present[client] &= holding.has_rows(client)
                self._quorum.asked[silo] = int(self._on_roster(silo).sum())
        return self._down(kind, lambda hub, client: argument(value, hub, kind.name))

    def scatter(self, kind: Kind, rows: AtHubs[Rows], where: RowMap) -> AtClients[Rows]:
        assert isinstance(where, Slots)

        def own(hub: str, client: Client) -> Rows:
            mine = argument(rows, hub, kind.name)
            self._check_size(kind, mine, where, hub)
            real = where.real(client)
            return Rows(mine.value[real], mine.mask[real])

        sent = self._down(kind, own)
        padded: dict[Client, Any] = {}
        for client in sent.clients():
            mine = sent.raw(client, kind.name)
            if mine is not MISSING:
                self._check_rows(kind, client.silo, mine.value, client.silo)
                mine = where.padded(client, mine)
            padded[client] = mine
        return Held(padded)

    def _spread_clients(self, kind: Kind, value: AtHubs[Any]) -> AtClients[Any]:
        def own(hub: str, client: Client) -> Any:
            mine = argument(value, hub, kind.name)
            if client.name not in mine:
                raise ProtocolError(f"{kind}: {title(hub)} has nothing for {title(client)}")
            return mine[client.name]

        return self._down(kind, own)

    def _down(self, kind: Kind, payload: Callable[[str, Client], Any]) -> Held:
        key, _ = self._next(kind)
        for hub in self._hubs():
            there = self._on_roster(hub)
            sizes = np.zeros(len(there), dtype=np.int64)
            for place in np.flatnonzero(there):
                client = self._known[hub][place]
                mine = payload(hub, client)
                sizes[place] = tree.nbytes(mine)
                self._down_message(key, kind, client, mine)
            self._book("down", kind, hub, there, sizes)
        return Held({client: self._from_hub(key, kind, client) for client in self._clients()})

    def _down_message(self, key: Key, kind: Kind, client: Client, payload: Any) -> None:
        receipt = self._accepted.get(client)
        self._say(Message(key, kind.name, client.silo, client, payload, receipt))

    def _from_hub(self, key: Key, kind: Kind, client: Client) -> Any:
        if kind is not END and not self._present[client]:
            return MISSING
        mailbox = self._transport.mailbox(client)
        message = mailbox.take(client.silo, key, kind.name, self._waits.for_own_hub)
        if message is None:  # the hub has gone on without this client
            if mailbox.is_at_its_end(client.silo) and client not in self._sent_to:
                self.record.rounds = self.round
                raise RunIsOver
            self._present[client] = False
            return MISSING
        self._sent_to.add(client)
        self._pace.heard(client, client.silo)
        for pending in self._pending.pop(client, []):
            pending.settle(message.receipt)
        self._noise_of.receive(client, kind.name, message.payload)
        return message.payload

    # Up

    def gather(self, kind: Kind, value: AtClients[Tensor], where: RowMap) -> AtHubs[Rows]:
        assert isinstance(where, Slots)

        def own(client: Client, mine: Tensor) -> Tensor:
            real = where.slots[client] >= 0
            if not isinstance(mine, Tensor) or mine.shape[: real.ndim] != real.shape:
                raise ProtocolError(
                    f"round {self.round}: {kind}: one entry for each of a client's rows is needed"
                )
            return mine[real]

        came = self._up(kind, value, own)
        gathered: dict[str, Rows] = {}
        for hub, payloads in came.items():
            shape, dtype = self._spec(kind, hub)
            rows = torch.zeros(where.size, *shape, dtype=dtype, device=self.device)
            mask = torch.zeros(where.size, dtype=torch.bool, device=self.device)
            for client, mine in payloads.items():
                slots = where.real(client)
                self._check_rows(kind, client, mine, hub)
                if len(mine) != len(slots):
                    raise ProtocolError(
                        f"round {self.round}: {kind} from {title(client)} has {len(mine)} rows; "
                        f"it holds {len(slots)} of this minibatch"
                    )
                rows[slots], mask[slots] = mine, True
            gathered[hub] = Rows(rows, mask)
        return AtHubs(gathered, self.scope)

    def mean(
        self,
        kind: Kind,
        value: AtClients[Any],
        *,
        otherwise: AtHubs[Any],
        weight: AtClients[Tensor] | None = None,
    ) -> AtHubs[Any]:
        if weight is not None:
            value = self.at_clients(with_weight, value, weight, self.known(self.dtype))
        came = self._up(kind, value)
        means: dict[str, Any] = {}
        for hub, payloads in came.items():
            means[hub] = before = argument(otherwise, hub, kind.name)
            total, weights = None, 0.0
            for client, payload in payloads.items():
                mine, w = payload if weight is not None else (payload, 1.0)
                self._check_mean(kind, client, tree.signature(mine), float(w), before)
                part = tree.scale(tree.widened(mine), float(w))
                total = part if total is None else tree.add(total, part)
                weights += float(w)
            if weights > 0:
                means[hub] = tree.divided(total, weights, before)
                self._check_finite(kind, hub, means[hub])
        return AtHubs(means, self.scope)

    def _collect_clients(self, kind: Kind, value: AtClients[Any]) -> AtHubs[dict[str, Any]]:
        came = self._up(kind, value)
        named = {hub: {c.name: v for c, v in payloads.items()} for hub, payloads in came.items()}
        return AtHubs(named, self.scope)

    def _up(
        self,
        kind: Kind,
        value: AtClients[Any],
        payload: Callable[[Client, Any], Any] = lambda client, v: v,
    ) -> dict[str, dict[Client, Any]]:
        """Send from the clients hosted here; who answered, and what, at the hubs hosted here."""
        key, moment = self._next_up(kind)
        for silo in self.scope:
            known = self._known.get(silo, [])
            self._before[silo] = self._on_roster(silo)
            says = self.schedule.answers(moment, silo, self._names.get(silo, ()))
            for client, there in zip(known, says.tolist(), strict=True):
                self._present[client] &= there
        for client in self._clients():
            held = self._held(value, kind.name)
            if self._present[client] and not self._lacks(held, client, kind.name):
                mine = held.get(client, kind.name)
                message = Message(key, kind.name, client, client.silo, payload(client, mine))
                self._say(message)
        return {hub: self._answers(hub, kind, key, moment) for hub in self._hubs()}

    def _answers(self, hub: str, kind: Kind, key: Key, moment: Moment) -> dict[Client, Any]:
        self._pace.asked(hub)
        clients = self._known[hub]
        awaited = [client for client in clients if self._present[client]]
        elsewhere = any(client not in self.hosted for client in awaited)
        seconds = self._waits.for_client if elsewhere else 0.0
        came = self._quorum.answers(self._transport.mailbox(hub), hub, awaited, key, seconds)
        answered = {client: came[client].payload for client in awaited if client in came}
        if self._waits.up is None and elsewhere and len(answered) < len(awaited):
            silent = next(client for client in awaited if client not in answered)
            raise LostError(
                f"round {self.round}: {title(hub)} waited for {kind} from {title(silent)}, which "
                f"did not answer within {seconds:g} s or is gone"
            )
        for client in clients:
            self._present[client] = client in answered
        there = np.array([client in answered for client in clients], dtype=bool)
        self.record.note(moment, hub, self._names[hub], self._before[hub], there)
        for client, mine in answered.items():
            self._accepted[client] = key
            self._check_finite(kind, client, mine)
        sizes = [tree.nbytes(answered.get(client)) for client in clients]
        self._book("up", kind, hub, there, np.array(sizes, dtype=np.int64))
        crash(f"closed {kind}")
        return answered

    # Between hubs

    def _send(self, key: Key, kind: Kind, source: str, to: str, payload: Any) -> None:
        self._say(Message(key, kind.name, source, to, payload))

    def _say(self, message: Message) -> None:
        self._pace.sent(message.source, message.to)
        self._transport.send(message)

    def _receive(self, key: Key, kind: Kind, source: str, to: str) -> Any:
        message = self._transport.mailbox(to).take(source, key, kind.name, self._waits.for_hub)
        if message is None:
            raise ProtocolError(
                f"round {self.round}: {title(source)} went on without sending {kind} to {title(to)}"
            )
        self._pace.heard(to, source)
        return message.payload

    # Who is here, and what is known of a client

    def _clients(self) -> list[Client]:
        return [client for silo in self.scope for client in self._own.get(silo, [])]

    def _on_roster(self, silo: str) -> Bools:
        known = self._known.get(silo, [])
        return np.array([self._present[client] for client in known], dtype=bool)

    def _lacks(self, value: Held, client: Client, user: str) -> bool:
        """Whether a client has nothing to work on: no value, or one that it kept while its hub has
        not told yet, being away, whether it counts."""
        raw = value.raw(client, user)
        undecided = isinstance(raw, Pending) and not raw.settled
        return raw is MISSING or (undecided and not self._present.get(client, False))

    def _held(self, value: Any, user: str) -> Held:
        if not isinstance(value, Held):
            raise misplaced(value, "the clients", user)
        return value
