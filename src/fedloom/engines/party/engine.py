"""The party engine: any set of parties, every other link a transport.

Where the source of a move is hosted, send; where its destination is hosted, receive. Hosting
everyone over in-memory mailboxes makes it the reference engine; hosting one party makes it that
party's program. A wait upwards ends by a deadline and becomes absence; a wait downwards or across
ends by the message, by a later one, or by an abort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core import tree
from ...core.arithmetic import Precision
from ...core.crash_points import crash
from ...core.errors import AbortedError, LostError, ProtocolError
from ...core.placed import MISSING, AtClients, AtHubs, Batch, Noise, Placed, RowMap, Rows
from ...core.rng import Secrets, Stream, Streams
from ...core.topology import Client, Party, title
from ...data.placement import View
from ...fabric.accounts import Books
from ...fabric.engine import Engine, RunIsOver
from ...fabric.kinds import AT_THE_END, AT_THE_START, END, PACE, READY, Key, Kind, Message
from ...fabric.local_work import Local, argument, check_local, giving_tensors, misplaced, name_of
from ...fabric.noise import Once, among_padding
from ...fabric.schedule import Bools, Moment, Resumed, Schedule, Turn
from ...fabric.visits import FREE
from ...models.task import Part, Shapes, Task
from ...transports.base import Transport
from .announcements import TOLD, all_here, told
from .arrivals import Arrivals
from .client_noise import Book, ClientNoise
from .pace import Pace
from .quorum import Quorum
from .timeouts import Waits
from .values import Held, Holdings, Pending, Slots, with_weight


class PartyEngine(Engine):
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

    def _on_roster(self, silo: str) -> Bools:
        known = self._known.get(silo, [])
        return np.array([self._present[client] for client in known], dtype=bool)

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

    def _clients(self) -> list[Client]:
        return [client for silo in self.scope for client in self._own.get(silo, [])]
