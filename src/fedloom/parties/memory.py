"""What a party goes on from after its process was killed: the checkpoint, and beside it what other
hubs may still want to hear, and which moves were accepted from clients.

The second file is named by its round and written first; the checkpoint, renamed into place, makes
it count. So the two are always of one moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from .. import tree
from ..algorithms.base import Algorithm
from ..crash import crash
from ..engines.party import PartyEngine
from ..errors import DataError, SettingError
from ..federation.ledger import Ledger
from ..federation.messages import Key, Message
from ..federation.placed import AtClients, AtHubs
from ..federation.releases import Releases
from ..federation.schedule import Recorded, Resumed
from ..federation.topology import Client
from ..files import write_bytes, write_json
from ..records.checkpoint import load_checkpoint, save_checkpoint
from ..run import Snapshot
from ..transports.grpc import GrpcTransport
from ..transports.link import Sent
from ..transports.wire import Frame

CHECKPOINT = "checkpoint.safetensors"
DROPPED = "dropped.json"  # in the round that is going on


class Beside(Struct, forbid_unknown_fields=True):
    run: str
    receipts: list[tuple[str, str, int, int]]  # silo, client, key
    sent: dict[str, list[tuple[int, int, bytes]]]  # to hubs: key, frame


@dataclass
class Memory:
    """In a party's folder, for the run with this fingerprint."""

    folder: Path
    run: str
    _remembered: Recorded | None = None

    def _beside(self, round: int) -> Path:
        return self.folder / f"links-{round}.msgpack"

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
        for old in self.folder.glob("links-*.msgpack"):
            if old != self._beside(done):
                old.unlink(missing_ok=True)

    def remember(self, record: Recorded) -> None:
        """Who dropped out in this round so far: before any other hub hears of it."""
        here = record.of_round(record.rounds - 1)
        if here.dropped and here != self._remembered:
            write_json(self.folder / DROPPED, here.to_json())
            self._remembered = here

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
        self._again(fed, found.round)
        for peer, link in transport.links.items():
            kept = beside.sent.get(str(peer), []) if isinstance(peer, str) else []
            link.resume(
                found.round, [Sent(Key(r, move), Frame(frame, b"")) for r, move, frame in kept]
            )
        return found.round, algorithm.State(
            **{name: _placed(fed, fresh[name], values) for name, values in state.items()}
        )

    def _again(self, fed: PartyEngine, round: int) -> None:
        path = self.folder / DROPPED
        if path.exists() and not isinstance(fed.schedule, Recorded):
            before = Recorded.read(path)
            if before.rounds == round + 1:
                fed.schedule = Resumed(fed.schedule, before)

    def _read(self, round: int) -> Beside:
        path = self._beside(round)
        try:
            beside = msgspec.msgpack.decode(path.read_bytes(), type=Beside)
        except (OSError, msgspec.MsgspecError, ValueError) as problem:
            raise DataError(f"{path} is missing or damaged ({problem})") from None
        if beside.run != self.run:
            raise SettingError(
                f"{self.folder} is of another run: fingerprints {beside.run[:12]} and "
                f"{self.run[:12]}"
            )
        return beside


def _placed(fed: PartyEngine, fresh: Any, values: Any) -> Any:
    if isinstance(fresh, AtClients):
        return fed.place_clients(values)
    assert isinstance(fresh, AtHubs)
    return AtHubs(values, fresh.places)


class Durable:
    """The transport of a party; of a hub whose clients may be missing, who dropped out is on disk
    before another hub is told anything that follows from it."""

    def __init__(self, transport: GrpcTransport, memory: Memory):
        self._transport, self._memory = transport, memory
        self.fed: PartyEngine | None = None
        self.mailbox, self.pulse, self.abort = transport.mailbox, transport.pulse, transport.abort

    def send(self, message: Message) -> None:
        if isinstance(message.to, str) and self.fed is not None:
            self._memory.remember(self.fed.record)
        crash(f"before {message.kind}")
        self._transport.send(message)
        crash(f"after {message.kind}")
