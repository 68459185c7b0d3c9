"""The party engine: any set of parties, every other link a transport.

Hosting everyone over in-memory mailboxes makes it the reference engine; hosting one party makes it
that party's program. Moves are in moves.py; here are rounds, values and local work.
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
from ...fabric.kinds import AT_THE_END, AT_THE_START, END, PACE, READY, Key, Kind, Message
from ...fabric.local_work import Local, argument, check_local, giving_tensors, name_of
from ...fabric.noise import Once, among_padding
from ...fabric.schedule import Bools, Moment, Recorded, Resumed, Schedule, Turn
from ...fabric.visits import FREE
from ...models.task import Part, Shapes, Task
from ...transports.base import Transport
from .announcements import TOLD, all_here, told
from .arrivals import Arrivals
from .client_noise import Book, ClientNoise
from .moves import Moves
from .pace import Pace
from .quorum import Quorum
from .timeouts import Waits
from .values import Held, Holdings, Pending, Slots


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
        book: Book | None = None,
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
        self._known = {
            silo: [Client(silo, name) for name in names] for silo, names in view.clients.items()
        }
        self._names = view.clients
        self._own = {
            silo: [client for client in clients if client in self.hosted]
            for silo, clients in self._known.items()
        }
        self._rows = Holdings(view, task, shapes, self.device)
        self._noise_of = ClientNoise(self.streams, self._rows, book)
        self._present: dict[Client, bool] = {}
        self._sent_to: set[Client] = set()  # hosted here, who were sent something in this round
        self._accepted: dict[Client, Key] = {}
        self._pending: dict[Client, list[Pending]] = {}
        self._before: dict[str, Bools] = {}  # rosters before the upward move going on

    # Time

    def begin(self, round: int) -> None:
        super().begin(round)
        self._noise_of.begin()
        self._sent_to.clear()
        self._pace.begin()
        moment = Moment(round)
        for silo, clients in self._known.items():
            there = self.schedule.answers(moment, silo, self._names[silo])
            if silo in self.hosted:
                self._quorum.begin(silo, int(there.sum()))
                there = there & self._links(silo, there)
                full = np.ones(len(clients), dtype=bool)
                self.record.note(moment, silo, self._names[silo], full, there)
            self._present.update(zip(clients, there.tolist(), strict=True))
            self._quorum.asked[silo] = int(there.sum())

    def end(self) -> None:
        self._pace.end(self._transport, self._next(PACE)[0], self._known, self._waits)
        super().end()

    def _links(self, hub: str, wanted: Bools) -> Bools:
        """To which of its clients a hub has a link; where everyone is waited for, to all."""
        if isinstance(self.schedule, Resumed) and self.schedule.has_begun(self.round):
            return wanted  # whoever took part in it does, and the others have heard so
        mailbox = self._transport.mailbox(hub)
        if self._waits.up is not None:
            some = [self._known[hub][place] for place in np.flatnonzero(wanted)]
            self._quorum.await_links(mailbox, hub, some, self.round)
        gone = np.array([mailbox.is_gone(client) for client in self._known[hub]], dtype=bool)
        if self._waits.up is None and gone.any():
            lost = self._known[hub][int(gone.argmax())]
            raise LostError(f"round {self.round}: {title(hub)} has lost {title(lost)}")
        return ~gone

    def _next(self, kind: Kind) -> tuple[Key, Moment]:
        for hub in self.hosted & self._known.keys():  # a client that is left out hears nothing
            self._transport.pulse(hub)
        return super()._next(kind)

    def warm_up(self, dry_step: Callable[[Part, Streams], None]) -> None:
        if self._waits.up is None:
            return
        for silo, clients in self._own.items():
            if clients:
                dry_step(self.part.values[silo], self.streams)
            for client in clients:
                self._transport.send(Message(AT_THE_START, READY.name, client, silo, None))
        for hub in self._hubs() if self.round == 0 else ():  # else they were ready before
            awaited = self._known[hub]
            self._transport.mailbox(hub).take_each(awaited, AT_THE_START, self._waits.patience)

    def finish(self) -> None:
        for silo, clients in self._known.items():
            if silo in self.hosted:
                for client in clients:
                    self._down_message(AT_THE_END, END, client, None)
        for clients in self._own.values():
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
        """The last move accepted from each client, at the hubs hosted here: part of what a hub
        goes on from."""
        return dict(self._accepted)

    def go_on(self, round: int, receipts: Mapping[Client, Key]) -> None:
        """The next round is not the first: another process was here before."""
        self.now.round, self._accepted = round, dict(receipts)

    def happens_again(self, record: Recorded) -> None:
        """The round that was going on goes as recorded, as far as that goes."""
        self.schedule = Resumed(self.schedule, record)

    # Values

    def minibatch(self, ids: Tensor, steps: int | None = None) -> tuple[AtClients[Batch], RowMap]:
        slots = {
            client: self._rows.slots(client, ids)
            for silo in self.scope
            for client in self._known.get(silo, [])
        }
        batch = {client: self._rows.batch(client, ids, slots[client]) for client in self._clients()}
        return Held(batch), Slots(ids.numel(), slots)

    def _row_noise(
        self, where: RowMap, ids: Tensor, draw: Callable[[Client, Tensor], Noise]
    ) -> AtClients[Noise]:
        assert isinstance(where, Slots)
        found = {}
        for client in self._clients():
            mine = draw(client, ids.flatten()[where.real(client).cpu()])
            found[client] = among_padding(mine, where.slots[client] >= 0)
        return Held(found)

    def _noise(self, draw: Callable[[Client], Tensor]) -> AtClients[Tensor]:
        return Held({client: draw(client) for client in self._clients()})

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
        value = self._held(value, "read")
        values = {client: value.get(client, "read") for client in value.clients()}
        return {client: v for client, v in values.items() if v is not MISSING}

    def undecided(self, client: Client, new: Any, old: Any, key: Key) -> Pending:
        """State that a client keeps, out of its memory: its hub has yet to tell which counts."""
        value = Pending(new, old, key)
        self._pending.setdefault(client, []).append(value)
        return value

    def place_clients(self, values: Mapping[Client, Any]) -> AtClients[Any]:
        return Held({client: v for client, v in values.items() if client in self.hosted})

    # Local work

    def _at_clients(self, f: Local, values: Sequence[Placed], steps: int) -> AtClients[Any]:
        check_local(f)
        results: dict[Client, Any] = {}
        for client in self._clients():
            if any(isinstance(v, Held) and self._lacks(v, client, name_of(f)) for v in values):
                results[client] = MISSING
            else:
                args = [argument(value, client, name_of(f)) for value in values]
                results[client] = self._call(giving_tensors(f), title(client), args)
        return Held(results)

    def hold(self, value: AtClients[Any]) -> AtClients[Any]:
        return value

    def keep(self, new: AtClients[Any], old: AtClients[Any]) -> AtClients[Any]:
        mine, was = self._held(new, "keep"), self._held(old, "keep")
        kept: dict[Client, Any] = {}
        for client in self._clients():
            key = self._last_up(client.silo)
            after, before = mine.raw(client, "keep"), was.raw(client, "keep")
            if after is MISSING or not self._present[client]:
                kept[client] = before
            elif client.silo in self.hosted:
                kept[client] = after
            else:
                kept[client] = self.undecided(client, after, was.get(client, "keep"), key)
        return Held(kept)

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
        plan = self.schedule
        before = plan.visitors(self.round, number) if isinstance(plan, Resumed) else None
        who = self._arrivals.next(group, self._waits.for_hub, number == 0, before)
        self.record.visited(self.round, number, Turn(who))
        return AtHubs({at: who}, (at,))

    def _told(self, at: str, value: AtHubs[Any]) -> Any:
        if all_here(self.hosted, self._parties, self._known):
            return value.get(at, TOLD.name)
        key, seconds, link = self._next(TOLD)[0], self._waits.for_own_hub, self._transport
        return told(link, self.hosted, self._parties, self._known, key, at, value, seconds)
