"""What a party goes on from after its process was killed: the state after a round, the messages
that other hubs may ask for again, those received from them, and the moves accepted from clients. It
is stored for the last rounds (past_rounds.py), in case others cannot go on from the newest.

Where clients may be missing, or silos visit a master as they come, further files log the round that
is going on: who dropped out or visited, and what the others sent. A log is written before anybody,
one's own clients included, is sent anything that follows from it, and stays until the round ends.
So a hub that is started again, however often, sends everyone the same, whoever died or came back
meanwhile.
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
from ...engines.party.announcements import ANNOUNCEMENT
from ...engines.party.engine import PartyEngine
from ...engines.party.values import HostedValues
from ...fabric.accounts import Books
from ...fabric.attempts import tag
from ...fabric.kinds import AT_THE_START, Key, Message
from ...fabric.ledger import Ledger
from ...fabric.releases import Releases
from ...fabric.schedule import Recorded
from ...records.snapshot import Snapshot
from ...transports import wire
from ...transports.links.link import NOTHING, SentFrame
from ...transports.links.party import PartyTransport
from ...transports.wire import Frame
from .past_rounds import LinkState, PastRounds, StateFile
from .privacy_book import PrivacyBook


class RoundLog(StateFile, kw_only=True, forbid_unknown_fields=True):
    """A file of a round that is not over: who has dropped out before a move, as JSON, and the
    frames that clients have sent since the file before."""

    attempt: str
    move: int
    dropped: dict[str, Any]
    heard: list[tuple[str, str, bytes]]


@dataclass
class Memory:
    """A party's folder, in an attempt at a run."""

    past: PastRounds
    _known: Recorded = field(default_factory=Recorded)  # of the round going on, as it is on disk
    _heard: int = 0  # its frames on disk
    _files: int = 0
    _until: Key = AT_THE_START  # everything before this move is on disk

    @property
    def folder(self) -> Path:
        return self.past.folder

    def _round_log(self, number: int) -> Path:
        return self.folder / f"round-{number}.msgpack"

    def save(
        self, fed: PartyEngine, state: Any, done: int, transport: PartyTransport, wall: float
    ) -> None:
        """After `done` rounds, before any message of the next."""
        links = LinkState(run=self.past.run, line=self.past.line, back=fed.record.back)
        links.receipts = [(*client, *key) for client, key in fed.receipts.items()]
        fields: dict[str, Any] = {}
        for name, value in state._asdict().items():
            if not isinstance(value, HostedValues):
                fields[name] = fed.read(value)
                continue
            fields[name], undecided = value.split_pending()
            for client, either in undecided.items():
                fields[_before(name)] = {client: either.old}
                links.pending[name] = either.key
        snapshot = Snapshot(done, fields, fed.ledger, fed.record, None, fed.releases.to_json())
        homes = {party.silo for party in fed.hosted if isinstance(party, Client)}
        for peer, link in transport.links.items():
            if isinstance(peer, str) and peer not in homes:
                frames = [(*sent.key, b"".join(sent.frame)) for sent in link.sent_since(done - 1)]
                links.sent[peer] = link.last_before(done - 1), frames
                if link.received.latest is not None:
                    links.heard[peer] = link.received.latest
        self.past.save(snapshot, links, wall)
        transport.mailbox(transport.me).forget()
        for number in range(self._files):
            self._round_log(number).unlink(missing_ok=True)
        self._known, self._heard, self._files = Recorded(), 0, 0

    def remember(self, before: Message, record: Recorded, messages: Sequence[Message]) -> None:
        """Logs what is new in this round, before a message that may follow from it is sent. Who
        visits is decided where the others are told."""
        if before.key <= self._until:  # of the same move, or it happens again
            return
        self._until = before.key
        changes = record.of_round(before.key.round)
        heard = [
            (message, message.source) for message in messages if isinstance(message.source, Client)
        ]
        decided = before.kind == ANNOUNCEMENT.name and changes.visits != self._known.visits
        if len(heard) == self._heard and changes.dropped == self._known.dropped and not decided:
            return
        run, attempt = self.past.run, self.past.line.attempt
        of = tag(run, attempt)
        frames = [(*source, wire.encode(message, of)) for message, source in heard[self._heard :]]
        made = RoundLog(
            run=run, attempt=attempt, move=before.key.move, dropped=changes.to_json(), heard=frames
        )
        self.past.write(self._round_log(self._files), made)
        self._known, self._heard, self._files = changes, len(heard), self._files + 1

    def restore(
        self, round: int, fed: PartyEngine, algorithm: Algorithm, transport: PartyTransport
    ) -> Any:
        """The state after a round that is held (none: of the start), before any message of the
        next."""
        links, state = self.past.links_of(round), None
        self.past.begin(round)
        if round:
            state = self._load(round, links, fed, algorithm)
        if round and isinstance(transport.me, str):
            receipts = {Client(silo, name): Key(*key) for silo, name, *key in links.receipts}
            fed.continue_from(round, receipts)
            for peer, link in transport.links.items():
                gone, frames = links.sent.get(str(peer), (NOTHING, []))
                link.resume(
                    round,
                    [SentFrame(Key(r, move), Frame(frame, b"")) for r, move, frame in frames],
                    Key(*gone),
                    links.heard.get(str(peer)),
                )
        fed.record.back = links.back
        return state

    def _load(self, round: int, links: LinkState, fed: PartyEngine, algorithm: Algorithm) -> Any:
        checkpoint = self.past.load(round)
        start = algorithm.start(fed)
        fresh = start._asdict()
        like = {name: fed.read(value) for name, value in fresh.items()}
        state = dict(
            checkpoint.snapshot({**like, **{_before(n): like[n] for n in links.pending}}).state
        )
        for name, key in links.pending.items():
            state[name] = {
                client: fed.add_pending(client, new, state[_before(name)][client], Key(*key))
                for client, new in state[name].items()
            }
        releases = Releases.from_json(fed.size, checkpoint.releases)
        ledger, record = Ledger.merged([checkpoint.ledger]), Recorded.merged([checkpoint.record])
        fed.take_over(Books(releases, ledger, record))
        return type(start)(**{n: _placed(fed, fresh[n], state[n]) for n in fresh})

    def again(self, fed: PartyEngine, round: int, transport: PartyTransport) -> None:
        """Replays the logs of the round that was going on."""
        attempt = self.past.line.attempt
        while (path := self._round_log(self._files)).exists():
            try:
                log = self.past.read(path, RoundLog)
            except DamagedError as problem:  # others know what they were told
                self.past.report(problem)
                break
            before = Recorded.from_json(log.dropped)
            if (before.rounds, log.attempt) != (round + 1, attempt):  # of one that is over
                break
            for silo, name, frame in log.heard:
                transport.links[Client(silo, name)].receive(frame)
            self._known, self._until = before, Key(round, log.move)
            self._heard, self._files = self._heard + len(log.heard), self._files + 1
        self.forget(self._files)
        if self._files:
            fed.repeat_round(self._known)

    def forget(self, first: int = 0) -> None:
        """Deletes the logs of the round going on, from this one on."""
        for path in self.folder.glob("round-*.msgpack"):
            if int(path.stem.removeprefix("round-")) >= first:
                path.unlink(missing_ok=True)


def _before(field: str) -> str:
    """The name of a field's older version, which counts if the newer one does not."""
    return f"{field} before"


def _placed(fed: PartyEngine, fresh: Any, values: Any) -> Any:
    if isinstance(fresh, AtClients):
        return fed.place_clients(values)
    assert isinstance(fresh, AtHubs)
    return AtHubs(values, fresh.places)


class DurableTransport:
    """A party's transport that writes before it sends. At a hub whose clients may be missing, or
    that may decide who visits (`fed` is set then): what happened in the round. At a client with a
    `book`: what it drew noise for."""

    def __init__(self, transport: PartyTransport, memory: Memory, book: PrivacyBook | None = None):
        self._transport, self._memory, self._book = transport, memory, book
        self.fed: PartyEngine | None = None
        self.mailbox, self.pulse, self.abort = transport.mailbox, transport.pulse, transport.abort

    def send(self, message: Message) -> None:
        if self.fed is not None:
            accepted = self.mailbox(self._transport.me).kept
            self._memory.remember(message, self.fed.record, accepted)
        if self._book is not None:
            self._book.save()
        crash(f"before {message.kind}")
        self._transport.send(message)
        crash(f"after {message.kind}")
