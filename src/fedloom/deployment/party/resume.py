"""What a party goes on from after its process was killed: the state after a round, what other hubs
may still want to hear, what was heard from them, and which moves were accepted from clients. It is
kept for the last rounds (past.py), in case that others cannot go on from the newest.

Where clients may be missing, or silos visit a master as they come, further files have what happened
in the round that is going on: who dropped out or visited, and what the others sent. What is new is
written before anybody, one's own clients included, hears of anything that follows from it, and
stays until the round is over. So a hub that is started again, as often as may be, tells everyone
the same, whoever has died or come meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...algorithms.contract import Algorithm
from ...core.crash_points import crash
from ...core.errors import DamagedError
from ...core.placed import AtClients, AtHubs
from ...core.topology import Client
from ...engines.party.announcements import TOLD
from ...engines.party.engine import PartyEngine
from ...engines.party.values import Held
from ...fabric.accounts import Books
from ...fabric.attempts import tag
from ...fabric.kinds import AT_THE_START, Key, Message
from ...fabric.ledger import Ledger
from ...fabric.releases import Releases
from ...fabric.schedule import Recorded
from ...records.snapshot import Snapshot
from ...transports import wire
from ...transports.link import NOTHING, Sent
from ...transports.party import PartyTransport
from ...transports.wire import Frame
from .past_rounds import Beside, OfRun, Past
from .privacy_book import Book


class GoingOn(OfRun, kw_only=True, forbid_unknown_fields=True):
    """Of a round that is not over, before a move: who has dropped out so far, as JSON has it, and
    frames that clients have sent since the file before."""

    attempt: str
    move: int
    dropped: dict[str, Any]
    heard: list[tuple[str, str, bytes]]


@dataclass
class Memory:
    """In a party's folder, of an attempt at a run."""

    past: Past
    _known: Recorded = field(default_factory=Recorded)  # of the round going on, as it is on disk
    _heard: int = 0  # frames of it there
    _files: int = 0
    _until: Key = AT_THE_START  # what happened before this move is there

    @property
    def folder(self) -> Path:
        return self.past.folder

    def _going_on(self, number: int) -> Path:
        return self.folder / f"round-{number}.msgpack"

    def save(
        self, fed: PartyEngine, state: Any, done: int, transport: PartyTransport, wall: float
    ) -> None:
        """After `done` rounds, before any message of the next."""
        beside = Beside(run=self.past.run, line=self.past.line, back=fed.record.back)
        beside.receipts = [(*client, *key) for client, key in fed.receipts.items()]
        fields: dict[str, Any] = {}
        for name, value in state._asdict().items():
            if not isinstance(value, Held):
                fields[name] = fed.read(value)
                continue
            fields[name], undecided = value.parted()
            for client, either in undecided.items():
                fields[_before(name)] = {client: either.old}
                beside.pending[name] = either.key
        snapshot = Snapshot(done, fields, fed.ledger, fed.record, None, fed.releases.to_json())
        homes = {party.silo for party in fed.hosted if isinstance(party, Client)}
        for peer, link in transport.links.items():
            if isinstance(peer, str) and peer not in homes:
                kept = [(*one.key, b"".join(one.frame)) for one in link.sent_since(done - 1)]
                beside.sent[peer] = link.last_before(done - 1), kept
                if link.ear.heard is not None:
                    beside.heard[peer] = link.ear.heard
        self.past.save(snapshot, beside, wall)
        transport.mailbox(transport.me).forget()
        for number in range(self._files):
            self._going_on(number).unlink(missing_ok=True)
        self._known, self._heard, self._files = Recorded(), 0, 0

    def remember(self, before: Message, record: Recorded, kept: Sequence[Message]) -> None:
        """What is new in this round, before a message that may follow from it is sent. Who visits
        is decided where others are told."""
        if before.key <= self._until:  # of the same move, or it happens again
            return
        self._until = before.key
        here = record.of_round(before.key.round)
        heard = [(one, one.source) for one in kept if isinstance(one.source, Client)]
        decided = before.kind == TOLD.name and here.visits != self._known.visits
        if len(heard) == self._heard and here.dropped == self._known.dropped and not decided:
            return
        run, attempt = self.past.run, self.past.line.attempt
        of = tag(run, attempt)
        frames = [(*source, wire.encode(one, of)) for one, source in heard[self._heard :]]
        made = GoingOn(
            run=run, attempt=attempt, move=before.key.move, dropped=here.to_json(), heard=frames
        )
        self.past.write(self._going_on(self._files), made)
        self._known, self._heard, self._files = here, len(heard), self._files + 1

    def restore(
        self, round: int, fed: PartyEngine, algorithm: Algorithm, transport: PartyTransport
    ) -> Any:
        """The state after a round that is held (none: of the start), before any message of the
        next."""
        beside, state = self.past.beside(round), None
        self.past.begin(round)
        if round:
            state = self._load(round, beside, fed, algorithm)
        if round and isinstance(transport.me, str):
            receipts = {Client(silo, name): Key(*key) for silo, name, *key in beside.receipts}
            fed.go_on(round, receipts)
            for peer, link in transport.links.items():
                gone, kept = beside.sent.get(str(peer), (NOTHING, []))
                link.resume(
                    round,
                    [Sent(Key(r, move), Frame(frame, b"")) for r, move, frame in kept],
                    Key(*gone),
                    beside.heard.get(str(peer)),
                )
        fed.record.back = beside.back
        return state

    def _load(self, round: int, beside: Beside, fed: PartyEngine, algorithm: Algorithm) -> Any:
        found = self.past.load(round)
        fresh = algorithm.start(fed)._asdict()
        like = {name: fed.read(value) for name, value in fresh.items()}
        state = dict(
            found.snapshot({**like, **{_before(n): like[n] for n in beside.pending}}).state
        )
        for name, key in beside.pending.items():
            state[name] = {
                client: fed.undecided(client, new, state[_before(name)][client], Key(*key))
                for client, new in state[name].items()
            }
        releases = Releases.from_json(fed.size, found.releases)
        ledger, record = Ledger.merged([found.ledger]), Recorded.merged([found.record])
        fed.take_over(Books(releases, ledger, record))
        return algorithm.State(**{n: _placed(fed, fresh[n], state[n]) for n in fresh})

    def again(self, fed: PartyEngine, round: int, transport: PartyTransport) -> None:
        """The round that was going on happens as it did."""
        attempt = self.past.line.attempt
        while (path := self._going_on(self._files)).exists():
            try:
                found = self.past.read(path, GoingOn)
            except DamagedError as problem:  # others know what they were told
                self.past.tell(problem)
                break
            before = Recorded.from_json(found.dropped)
            if (before.rounds, found.attempt) != (round + 1, attempt):  # of one that is over
                break
            for silo, name, frame in found.heard:
                transport.links[Client(silo, name)].receive(frame)
            self._known, self._until = before, Key(round, found.move)
            self._heard, self._files = self._heard + len(found.heard), self._files + 1
        self.forget(self._files)
        if self._files:
            fed.happens_again(self._known)

    def forget(self, first: int = 0) -> None:
        """What is on disk of a round going on, from one of its files on."""
        for path in self.folder.glob("round-*.msgpack"):
            if int(path.stem.removeprefix("round-")) >= first:
                path.unlink(missing_ok=True)


def _before(field: str) -> str:
    """What a field of kept state is called that counts if the newer one does not."""
    return f"{field} before"


def _placed(fed: PartyEngine, fresh: Any, values: Any) -> Any:
    if isinstance(fresh, AtClients):
        return fed.place_clients(values)
    assert isinstance(fresh, AtHubs)
    return AtHubs(values, fresh.places)


class Durable:
    """The transport of a party; of a hub whose clients may be missing, or that may decide who
    visits (`fed` is set then), what happened in a round is on disk before anybody is told anything
    that follows from it. Of a client with a `book`, what it draws noise for is on disk before it is
    sent."""

    def __init__(self, transport: PartyTransport, memory: Memory, book: Book | None = None):
        self._transport, self._memory, self._book = transport, memory, book
        self.fed: PartyEngine | None = None
        self.mailbox, self.pulse, self.abort = transport.mailbox, transport.pulse, transport.abort

    def send(self, message: Message) -> None:
        if self.fed is not None:
            kept = self.mailbox(self._transport.me).kept
            self._memory.remember(message, self.fed.record, kept)
        if self._book is not None:
            self._book.save()
        crash(f"before {message.kind}")
        self._transport.send(message)
        crash(f"after {message.kind}")
