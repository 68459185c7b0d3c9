"""What a party goes on from after its process was killed: the checkpoint, and beside it what other
hubs may still want to hear, and which moves were accepted from clients.

The second file is named by its round and written first; the checkpoint, renamed into place, makes
it count. So the two are always of one moment.

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
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from .. import tree
from ..algorithms.base import Algorithm
from ..crash import crash
from ..engines.party import PartyEngine
from ..engines.told import TOLD
from ..errors import DataError, SettingError
from ..federation.ledger import Ledger
from ..federation.messages import AT_THE_START, Key, Message
from ..federation.placed import AtClients, AtHubs
from ..federation.releases import Releases
from ..federation.schedule import Recorded, Resumed
from ..federation.topology import Client
from ..files import write_bytes
from ..records.checkpoint import load_checkpoint, save_checkpoint
from ..run import Snapshot
from ..transports import wire
from ..transports.grpc import GrpcTransport
from ..transports.link import Sent
from ..transports.wire import Frame

CHECKPOINT = "checkpoint.safetensors"


class Beside(Struct, forbid_unknown_fields=True):
    run: str
    receipts: list[tuple[str, str, int, int]]  # silo, client, key
    sent: dict[str, list[tuple[int, int, bytes]]]  # to hubs: key, frame


class GoingOn(Struct, forbid_unknown_fields=True):
    """Of a round that is not over, before a move: who has dropped out so far, as JSON has it, and
    frames that clients have sent since the file before."""

    run: str
    move: int
    dropped: dict[str, Any]
    heard: list[tuple[str, str, bytes]]


S = TypeVar("S", Beside, GoingOn)


@dataclass
class Memory:
    """In a party's folder, for the run with this fingerprint."""

    folder: Path
    run: str
    _known: Recorded = field(default_factory=Recorded)  # of the round going on, as it is on disk
    _heard: int = 0  # frames of it there
    _files: int = 0
    _until: Key = AT_THE_START  # what happened before this move is there

    def _beside(self, round: int) -> Path:
        return self.folder / f"links-{round}.msgpack"

    def _going_on(self, number: int) -> Path:
        return self.folder / f"round-{number}.msgpack"

    @property
    def is_there(self) -> bool:
        return (self.folder / CHECKPOINT).exists()

    def save(
        self, fed: PartyEngine, state: Any, done: int, transport: GrpcTransport, wall: float
    ) -> None:
        """After `done` rounds, before any message of the next."""
        fields = {name: tree.copy(fed.read(value)) for name, value in state._asdict().items()}
        snapshot = Snapshot(done, fields, fed.ledger, fed.record, None, fed.releases.to_json())
        homes = {party.silo for party in fed.hosted if isinstance(party, Client)}
        beside = Beside(
            self.run,
            [(*client, *key) for client, key in fed.receipts.items()],
            {
                peer: [(*sent.key, b"".join(sent.frame)) for sent in link.sent_since(done - 1)]
                for peer, link in transport.links.items()
                if isinstance(peer, str) and peer not in homes
            },
        )
        write_bytes(self._beside(done), msgspec.msgpack.encode(beside))
        crash("between the two files")
        save_checkpoint(self.folder / CHECKPOINT, snapshot, (), wall)
        transport.forget()
        for old in self.folder.glob("links-*.msgpack"):
            if old != self._beside(done):
                old.unlink(missing_ok=True)
        for number in range(self._files):
            self._going_on(number).unlink(missing_ok=True)
        self._known, self._heard, self._files = Recorded(), 0, 0

    def remember(self, before: Message, record: Recorded, kept: Sequence[Message]) -> None:
        """What is new in this round, before a message that may follow from it is sent. Who visits
        is decided where others are told."""
        if before.key <= self._until:  # it happens again
            return
        here = record.of_round(before.key.round)
        heard = [(one, one.source) for one in kept if isinstance(one.source, Client)]
        decided = before.kind == TOLD.name and here.visits != self._known.visits
        if len(heard) == self._heard and here.dropped == self._known.dropped and not decided:
            return
        frames = [(*source, wire.encode(one, self.run)) for one, source in heard[self._heard :]]
        made = GoingOn(self.run, before.key.move, here.to_json(), frames)
        write_bytes(self._going_on(self._files), msgspec.msgpack.encode(made))
        self._known, self._heard, self._files = here, len(heard), self._files + 1

    def restore(
        self, fed: PartyEngine, algorithm: Algorithm, transport: GrpcTransport
    ) -> tuple[int, Any]:
        """Rounds done, and the state after them; before the transport is opened."""
        found = load_checkpoint(self.folder / CHECKPOINT)
        beside = self._read(found.round)
        fresh = algorithm.start(fed)._asdict()
        state = found.snapshot({name: fed.read(value) for name, value in fresh.items()}).state
        fed.ledger = Ledger.merged([found.ledger])
        fed.record = Recorded.merged([found.record])
        fed.releases = Releases.from_json(fed.size, found.releases)
        receipts = {Client(silo, name): Key(*key) for silo, name, *key in beside.receipts}
        fed.go_on(found.round, receipts)
        for peer, link in transport.links.items():
            kept = beside.sent.get(str(peer), []) if isinstance(peer, str) else []
            link.resume(
                found.round, [Sent(Key(r, move), Frame(frame, b"")) for r, move, frame in kept]
            )
        self.again(fed, found.round, transport)
        return found.round, algorithm.State(
            **{name: _placed(fed, fresh[name], values) for name, values in state.items()}
        )

    def again(self, fed: PartyEngine, round: int, transport: GrpcTransport) -> None:
        """The round that was going on happens as it did."""
        while (path := self._going_on(self._files)).exists():
            found = self._decoded(path, GoingOn)
            before = Recorded.from_json(found.dropped)
            if before.rounds != round + 1:  # of a round that is over
                break
            for silo, name, frame in found.heard:
                transport.links[Client(silo, name)].receive(frame)
            self._known, self._until = before, Key(round, found.move)
            self._heard, self._files = self._heard + len(found.heard), self._files + 1
        self.forget(self._files)
        if self._files:
            fed.schedule = Resumed(fed.schedule, self._known)

    def forget(self, first: int = 0) -> None:
        """What is on disk of a round going on, from one of its files on."""
        for path in self.folder.glob("round-*.msgpack"):
            if int(path.stem.removeprefix("round-")) >= first:
                path.unlink(missing_ok=True)

    def _read(self, round: int) -> Beside:
        return self._decoded(self._beside(round), Beside)

    def _decoded(self, path: Path, kind: type[S]) -> S:
        try:
            found = msgspec.msgpack.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError, ValueError) as problem:
            raise DataError(f"{path} is missing or damaged ({problem})") from None
        if found.run != self.run:
            raise SettingError(
                f"{self.folder} is of another run: fingerprints {found.run[:12]} and "
                f"{self.run[:12]}"
            )
        return found


def _placed(fed: PartyEngine, fresh: Any, values: Any) -> Any:
    if isinstance(fresh, AtClients):
        return fed.place_clients(values)
    assert isinstance(fresh, AtHubs)
    return AtHubs(values, fresh.places)


class Durable:
    """The transport of a party; of a hub whose clients may be missing, or that may decide who
    visits (`fed` is set then), what happened in a round is on disk before anybody is told anything
    that follows from it."""

    def __init__(self, transport: GrpcTransport, memory: Memory):
        self._transport, self._memory = transport, memory
        self.fed: PartyEngine | None = None
        self.mailbox, self.pulse, self.abort = transport.mailbox, transport.pulse, transport.abort

    def send(self, message: Message) -> None:
        if self.fed is not None:
            self._memory.remember(message, self.fed.record, self._transport.kept)
        crash(f"before {message.kind}")
        self._transport.send(message)
        crash(f"after {message.kind}")
