"""Moves of the party engine: send where the source is hosted, receive where the destination is.

A wait upwards ends by a deadline and becomes absence. A wait downwards or between hubs ends by the
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
from .values import HostedValues, Pending, Slots, with_weight


class Moves(Engine):
    """Moves between hubs and clients, and between hubs. The engine sets the attributes declared
    here."""

    _transport: Transport
    _pace: Pace
    _waits: Waits
    _quorum: Quorum
    _noise_of: ClientNoise
    _clients_of: Mapping[str, list[Client]]  # all clients of the silos with a party here
    _hosted_of: Mapping[str, list[Client]]  # those of them hosted here
    _present: dict[Client, bool]
    _sat_out: set[Client]  # who left the round for want of rows
    _sent_to: set[Client]  # hosted clients that received something in this round
    _accepted: dict[Client, Key]
    _pending: dict[Client, list[Pending]]
    _before: dict[str, Bools]  # rosters before the current upward move

    # Down

    def to_clients(
        self, kind: Kind, value: AtHubs[Any], holding: RowMap | None = None
    ) -> AtClients[Any]:
        if holding is not None:
            assert isinstance(holding, Slots)
            for silo in self.scope:
                for client in self._clients_of.get(silo, []):
                    if self._present[client] and not holding.has_rows(client):
                        self._present[client] = False
                        self._sat_out.add(client)
                self._quorum.asked[silo] = int(self._on_roster(silo).sum())
        return self._down(kind, lambda hub, client: argument(value, hub, kind.name))

    def rejoin(self) -> None:
        self._present.update(dict.fromkeys(self._sat_out, True))
        self._sat_out.clear()
        for silo in self._clients_of:
            self._quorum.asked[silo] = int(self._on_roster(silo).sum())

    def scatter(self, kind: Kind, rows: AtHubs[Rows], where: RowMap) -> AtClients[Rows]:
        assert isinstance(where, Slots)

        def payload(hub: str, client: Client) -> Rows:
            all_rows = argument(rows, hub, kind.name)
            self._check_size(kind, all_rows, where, hub)
            real = where.real(client)
            return Rows(all_rows.value[real], all_rows.mask[real])

        received = self._down(kind, payload)
        padded: dict[Client, Any] = {}
        for client in received.clients():
            own_rows = received.raw(client, kind.name)
            if own_rows is not MISSING:
                self._check_rows(kind, client.silo, own_rows.value, client.silo)
                own_rows = where.padded(client, own_rows)
            padded[client] = own_rows
        return HostedValues(padded)

    def _spread_clients(self, kind: Kind, value: AtHubs[Any]) -> AtClients[Any]:
        def payload(hub: str, client: Client) -> Any:
            by_name = argument(value, hub, kind.name)
            if client.name not in by_name:
                raise ProtocolError(f"{kind}: {title(hub)} has nothing for {title(client)}")
            return by_name[client.name]

        return self._down(kind, payload)

    def _down(self, kind: Kind, payload: Callable[[str, Client], Any]) -> HostedValues:
        key, _ = self._next(kind)
        for hub in self._hubs():
            present = self._on_roster(hub)
            sizes = np.zeros(len(present), dtype=np.int64)
            for index in np.flatnonzero(present):
                client = self._clients_of[hub][index]
                value = payload(hub, client)
                sizes[index] = tree.nbytes(value)
                self._down_message(key, kind, client, value)
            self._book("down", kind, hub, present, sizes)
        return HostedValues(
            {client: self._from_hub(key, kind, client) for client in self._clients()}
        )

    def _down_message(self, key: Key, kind: Kind, client: Client, payload: Any) -> None:
        receipt = self._accepted.get(client)
        self._send_message(Message(key, kind.name, client.silo, client, payload, receipt))

    def _from_hub(self, key: Key, kind: Kind, client: Client) -> Any:
        if kind is not END and not self._present[client]:
            return MISSING
        mailbox = self._transport.mailbox(client)
        message = mailbox.take(client.silo, key, kind.name, self._waits.for_own_hub)
        if message is None:  # the hub has continued without this client
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

        def payload(client: Client, own_rows: Tensor) -> Tensor:
            real = where.slots[client] >= 0
            if not isinstance(own_rows, Tensor) or own_rows.shape[: real.ndim] != real.shape:
                raise ProtocolError(
                    f"round {self.round}: {kind}: one entry for each of a client's rows is needed"
                )
            return own_rows[real]

        received = self._up(kind, value, payload)
        gathered: dict[str, Rows] = {}
        for hub, payloads in received.items():
            shape, dtype = self._spec(kind, hub)
            rows = torch.zeros(where.size, *shape, dtype=dtype, device=self.device)
            mask = torch.zeros(where.size, dtype=torch.bool, device=self.device)
            for client, own_rows in payloads.items():
                slots = where.real(client)
                self._check_rows(kind, client, own_rows, hub)
                if len(own_rows) != len(slots):
                    raise ProtocolError(
                        f"round {self.round}: {kind} from {title(client)} has {len(own_rows)} "
                        f"rows; it holds {len(slots)} of this minibatch"
                    )
                rows[slots], mask[slots] = own_rows, True
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
        received = self._up(kind, value)
        means: dict[str, Any] = {}
        for hub, payloads in received.items():
            means[hub] = before = argument(otherwise, hub, kind.name)
            total, weights = None, 0.0
            for client, payload in payloads.items():
                client_value, client_weight = payload if weight is not None else (payload, 1.0)
                self._check_mean(
                    kind, client, tree.signature(client_value), float(client_weight), before
                )
                weighted = tree.scale(tree.widened(client_value), float(client_weight))
                total = weighted if total is None else tree.add(total, weighted)
                weights += float(client_weight)
            if weights > 0:
                means[hub] = tree.divided(total, weights, before)
                self._check_finite(kind, hub, means[hub])
        return AtHubs(means, self.scope)

    def _collect_clients(self, kind: Kind, value: AtClients[Any]) -> AtHubs[dict[str, Any]]:
        received = self._up(kind, value)
        by_name = {
            hub: {c.name: v for c, v in payloads.items()} for hub, payloads in received.items()
        }
        return AtHubs(by_name, self.scope)

    def _up(
        self,
        kind: Kind,
        value: AtClients[Any],
        payload: Callable[[Client, Any], Any] = lambda client, v: v,
    ) -> dict[str, dict[Client, Any]]:
        """Send from the clients hosted here. Returns, for the hubs hosted here, which clients
        answered and their payloads."""
        key, moment = self._next_up(kind)
        for silo in self.scope:
            clients = self._clients_of.get(silo, [])
            self._before[silo] = self._on_roster(silo)
            answers = self.schedule.answers(moment, silo, self._names.get(silo, ()))
            for client, is_present in zip(clients, answers.tolist(), strict=True):
                self._present[client] &= is_present
        for client in self._clients():
            hosted = self._hosted(value, kind.name)
            if self._present[client] and not self._lacks(hosted, client, kind.name):
                client_value = hosted.get(client, kind.name)
                message = Message(
                    key, kind.name, client, client.silo, payload(client, client_value)
                )
                self._send_message(message)
        return {hub: self._answers(hub, kind, key, moment) for hub in self._hubs()}

    def _answers(self, hub: str, kind: Kind, key: Key, moment: Moment) -> dict[Client, Any]:
        self._pace.asked(hub)
        clients = self._clients_of[hub]
        awaited = [client for client in clients if self._present[client]]
        elsewhere = any(client not in self.hosted for client in awaited)
        seconds = self._waits.for_client if elsewhere else 0.0
        messages = self._quorum.answers(self._transport.mailbox(hub), hub, awaited, key, seconds)
        answered = {client: messages[client].payload for client in awaited if client in messages}
        if self._waits.up is None and elsewhere and len(answered) < len(awaited):
            silent = next(client for client in awaited if client not in answered)
            raise LostError(
                f"round {self.round}: {title(hub)} waited for {kind} from {title(silent)}, which "
                f"did not answer within {seconds:g} s or is gone"
            )
        for client in clients:
            self._present[client] = client in answered
        present = np.array([client in answered for client in clients], dtype=bool)
        self.record.note(moment, hub, self._names[hub], self._before[hub], present)
        for client, payload in answered.items():
            self._accepted[client] = key
            self._check_finite(kind, client, payload)
        sizes = [tree.nbytes(answered.get(client)) for client in clients]
        self._book("up", kind, hub, present, np.array(sizes, dtype=np.int64))
        crash(f"closed {kind}")
        return answered

    # Between hubs

    def _send(self, key: Key, kind: Kind, source: str, to: str, payload: Any) -> None:
        self._send_message(Message(key, kind.name, source, to, payload))

    def _send_message(self, message: Message) -> None:
        self._pace.sent(message.source, message.to)
        self._transport.send(message)

    def _receive(self, key: Key, kind: Kind, source: str, to: str) -> Any:
        message = self._transport.mailbox(to).take(source, key, kind.name, self._waits.for_hub)
        if message is None:
            raise ProtocolError(
                f"round {self.round}: {title(source)} continued without sending {kind} "
                f"to {title(to)}"
            )
        self._pace.heard(to, source)
        return message.payload

    # Hosted clients, and their values

    def _clients(self) -> list[Client]:
        return [client for silo in self.scope for client in self._hosted_of.get(silo, [])]

    def _on_roster(self, silo: str) -> Bools:
        clients = self._clients_of.get(silo, [])
        return np.array([self._present[client] for client in clients], dtype=bool)

    def _lacks(self, value: HostedValues, client: Client, user: str) -> bool:
        """Whether a client has no value to work on: it is missing, or it is kept state of an absent
        client, which its hub has not confirmed yet."""
        raw = value.raw(client, user)
        undecided = isinstance(raw, Pending) and not raw.settled
        return raw is MISSING or (undecided and not self._present.get(client, False))

    def _hosted(self, value: Any, user: str) -> HostedValues:
        if not isinstance(value, HostedValues):
            raise misplaced(value, "the clients", user)
        return value
