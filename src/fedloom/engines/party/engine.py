"""The party engine hosts any set of parties; all other parties are reached through a transport.

Hosting all parties over in-memory mailboxes, it is the reference engine. Hosting one party, it is
that party's program. Moves are in moves.py; rounds, values and local work are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.arithmetic import Precision
from ...core.errors import AbortedError, LostError
from ...core.placed import MISSING, AtClients, AtHubs, Batch, Noise, Placed, RowMap
from ...core.rng import Secrets, Stream, Streams
from ...core.topology import Client, Party, title
from ...data.placement import View
from ...fabric.accounts import Books
from ...fabric.engine import RunIsOver
from ...fabric.kinds import AT_THE_END, AT_THE_START, END, PACE, READY, Key, Kind, Message
from ...fabric.local_work import Local, argument, check_local, giving_tensors, name_of
from ...fabric.noise import Once, among_padding
from ...fabric.schedule import Bools, Moment, Recorded, Resumed, Schedule, Turn
from ...fabric.visits import FREE
from ...models.task import Part, Shapes, Task
from ...transports.base import Transport
from .announcements import ANNOUNCEMENT, all_hosted, announced
from .arrivals import Arrivals
from .client_noise import ClientNoise, NoiseBook
from .moves import Moves
from .pace import Pace
from .quorum import Quorum
from .timeouts import Waits
from .values import ClientData, HostedValues, Pending, Slots


class PartyEngine(Moves):
    """The verbs for the parties hosted here."""

    def __init__(
        self,
        task: Task,
        shapes: Shapes,
        view: View,
        *,
        hosted: Iterable[Party],
        transport: Transport,
        seed: int,
        schedule: Schedule,
        waits: Waits | None = None,
        by_arrival: bool = False,
        device: torch.device | str = "cpu",
        secrets: Secrets | None = None,
        book: NoiseBook | None = None,
        precision: Precision | None = None,
        books: Books | None = None,
        on_demand: bool = False,
    ):
        super().__init__(
            task,
            shapes,
            silos=view.silos,
            server=view.server,
            hosted=hosted,
            size=view.size,
            seed=seed,
            schedule=schedule,
            device=torch.device(device),
            secrets=secrets,
            precision=precision,
            books=books,
            on_demand=on_demand,
        )
        self._transport = transport
        self._pace = Pace(self.hosted)
        self._waits = waits or Waits()
        self._quorum = Quorum(self._waits)
        self._by_arrival = by_arrival
        self._arrivals: Arrivals | None = None
        self._clients_of = {
            silo: [Client(silo, name) for name in names] for silo, names in view.clients.items()
        }
        self._names = view.clients
        self._hosted_of = {
            silo: [client for client in clients if client in self.hosted]
            for silo, clients in self._clients_of.items()
        }
        self._rows = ClientData(view, task, shapes, self.device)
        self._noise_of = ClientNoise(self.streams, self._rows, book)
        self._present: dict[Client, bool] = {}
        self._sat_out: set[Client] = set()
        self._sent_to: set[Client] = set()  # hosted clients that received something in this round
        self._accepted: dict[Client, Key] = {}
        self._pending: dict[Client, list[Pending]] = {}
        self._before: dict[str, Bools] = {}  # rosters before the current upward move

    # Time

    def begin(self, round: int) -> None:
        super().begin(round)
        self._noise_of.begin()
        self._sat_out.clear()
        self._sent_to.clear()
        self._pace.begin()
        moment = Moment(round)
        for silo, clients in self._clients_of.items():
            present = self.schedule.answers(moment, silo, self._names[silo])
            if silo in self.hosted:
                self._quorum.begin(silo, int(present.sum()))
                present = present & self._links(silo, present)
                full = np.ones(len(clients), dtype=bool)
                self.record.note(moment, silo, self._names[silo], full, present)
            self._present.update(zip(clients, present.tolist(), strict=True))
            self._quorum.asked[silo] = int(present.sum())

    def end(self) -> None:
        self._pace.end(self._transport, self._next(PACE)[0], self._clients_of, self._waits)
        super().end()

    def _links(self, hub: str, expected: Bools) -> Bools:
        """Which clients a hub is connected to; without a deadline, all must be."""
        if isinstance(self.schedule, Resumed) and self.schedule.has_begun(self.round):
            return expected  # the same clients take part again; the others know it
        mailbox = self._transport.mailbox(hub)
        if self._waits.up is not None:
            clients = [self._clients_of[hub][place] for place in np.flatnonzero(expected)]
            self._quorum.await_links(mailbox, hub, clients, self.round)
        gone = np.array([mailbox.is_gone(client) for client in self._clients_of[hub]], dtype=bool)
        if self._waits.up is None and gone.any():
            lost = self._clients_of[hub][int(gone.argmax())]
            raise LostError(f"round {self.round}: {title(hub)} has lost {title(lost)}")
        return ~gone

    def _next(self, kind: Kind) -> tuple[Key, Moment]:
        # only hubs: a client that is left out gets no message
        for hub in self.hosted & self._clients_of.keys():
            self._transport.pulse(hub)
        return super()._next(kind)

    def warm_up(self, dry_step: Callable[[Part, Streams], None]) -> None:
        if self._waits.up is None:
            return
        for silo, clients in self._hosted_of.items():
            if clients:
                dry_step(self.part.values[silo], self.streams)
            for client in clients:
                self._transport.send(Message(AT_THE_START, READY.name, client, silo, None))
        for hub in self._hubs() if self.round == 0 else ():  # later, they were ready before
            awaited = self._clients_of[hub]
            self._transport.mailbox(hub).take_each(awaited, AT_THE_START, self._waits.patience)

    def finish(self) -> None:
        for silo, clients in self._clients_of.items():
            if silo in self.hosted:
                for client in clients:
                    self._down_message(AT_THE_END, END, client, None)
        for clients in self._hosted_of.values():
            for client in clients:
                self._from_hub(AT_THE_END, END, client)

    def fail(self, problem: BaseException) -> None:
        if isinstance(problem, GeneratorExit):
            problem = LostError("it stopped before the end")
        if not isinstance(problem, AbortedError):
            where = ", ".join(title(party) for party in sorted(self.hosted, key=str)[:3])
            self._transport.abort(f"{where}{' ...' if len(self.hosted) > 3 else ''}: {problem}")

    @property
    def receipts(self) -> dict[Client, Key]:
        """The last move accepted from each client, at the hubs hosted here. A hub needs them to
        resume."""
        return dict(self._accepted)

    def continue_from(self, round: int, receipts: Mapping[Client, Key]) -> None:
        """Continue a run of an earlier process after `round` rounds."""
        self.now.round, self._accepted = round, dict(receipts)

    def repeat_round(self, record: Recorded) -> None:
        """Repeat the interrupted round as recorded, as far as the record goes."""
        self.schedule = Resumed(self.schedule, record)

    # Values

    def minibatch(self, ids: Tensor, steps: int | None = None) -> tuple[AtClients[Batch], RowMap]:
        slots = {
            client: self._rows.slots(client, ids)
            for silo in self.scope
            for client in self._clients_of.get(silo, [])
        }
        batch = {
            client: self._rows.batch(client, ids, slots[client], self._dropout(client.silo))
            for client in self._clients()
        }
        return HostedValues(batch), Slots(ids.numel(), slots)

    def _row_noise(
        self, where: RowMap, ids: Tensor, draw: Callable[[Client, Tensor], Noise]
    ) -> AtClients[Noise]:
        assert isinstance(where, Slots)
        noise = {}
        for client in self._clients():
            own_noise = draw(client, ids.flatten()[where.real(client).cpu()])
            noise[client] = among_padding(own_noise, where.slots[client] >= 0)
        return HostedValues(noise)

    def _noise(self, draw: Callable[[Client], Tensor]) -> AtClients[Tensor]:
        return HostedValues({client: draw(client) for client in self._clients()})

    def _row_streams(
        self, client: Client, name: tuple[int, ...], rows: Tensor, once: Once | None
    ) -> Sequence[Stream]:
        if not self.streams.has_secret(client):
            return super()._row_streams(client, name, rows, once)
        return self._noise_of.row_streams(client, name, rows, once)

    def _step_stream(
        self, client: Client, name: tuple[int, ...], ids: Tensor, steps: int
    ) -> Stream:
        if not self.streams.has_secret(client):
            return super()._step_stream(client, name, ids, steps)
        return self._noise_of.step_stream(client, name, ids, steps)

    def _read_clients(self, value: Placed) -> dict[Client, Any]:
        value = self._hosted(value, "read")
        values = {client: value.get(client, "read") for client in value.clients()}
        return {client: v for client, v in values.items() if v is not MISSING}

    def add_pending(self, client: Client, new: Any, old: Any, key: Key) -> Pending:
        """Restore state of a client that its hub has yet to confirm."""
        value = Pending(new, old, key)
        self._pending.setdefault(client, []).append(value)
        return value

    def place_clients(self, values: Mapping[Client, Any]) -> AtClients[Any]:
        return HostedValues({client: v for client, v in values.items() if client in self.hosted})

    # Local work

    def _at_clients(self, f: Local, values: Sequence[Placed], steps: int) -> AtClients[Any]:
        check_local(f)
        results: dict[Client, Any] = {}
        for client in self._clients():
            if any(
                isinstance(v, HostedValues) and self._lacks(v, client, name_of(f)) for v in values
            ):
                results[client] = MISSING
            else:
                args = [argument(value, client, name_of(f)) for value in values]
                results[client] = self._call(giving_tensors(f), title(client), args)
        return HostedValues(results)

    def hold(self, value: AtClients[Any]) -> AtClients[Any]:
        return value

    def keep(self, new: AtClients[Any], old: AtClients[Any]) -> AtClients[Any]:
        new_values, old_values = self._hosted(new, "keep"), self._hosted(old, "keep")
        values: dict[Client, Any] = {}
        for client in self._clients():
            key = self._last_up(client.silo)
            after, before = new_values.raw(client, "keep"), old_values.raw(client, "keep")
            if after is MISSING or not self._present[client]:
                values[client] = before
            elif client.silo in self.hosted:
                values[client] = after
            else:
                values[client] = self.add_pending(
                    client, after, old_values.get(client, "keep"), key
                )
        return HostedValues(values)

    # Visits

    def _first(
        self, at: str, number: int, back: tuple[str, ...], group: int
    ) -> AtHubs[tuple[str, ...]] | None:
        if not self._by_arrival:
            return None
        if number == 0:
            self._arrivals = Arrivals(self._transport, self.hosted, at)
        assert self._arrivals is not None
        self._arrivals.free(back, self._next(FREE)[0])
        if at not in self.hosted:
            return AtHubs({}, (at,))
        schedule = self.schedule
        before = schedule.visitors(self.round, number) if isinstance(schedule, Resumed) else None
        visitors = self._arrivals.next(group, self._waits.for_hub, number == 0, before)
        self.record.visited(self.round, number, Turn(visitors))
        return AtHubs({at: visitors}, (at,))

    def _announced(self, at: str, value: AtHubs[Any]) -> Any:
        if all_hosted(self.hosted, self._parties, self._clients_of):
            return value.get(at, ANNOUNCEMENT.name)
        key, seconds, link = self._next(ANNOUNCEMENT)[0], self._waits.for_own_hub, self._transport
        try:
            return announced(
                link, self.hosted, self._parties, self._clients_of, key, at, value, seconds
            )
        except RunIsOver:
            self.record.rounds = self.round
            raise
