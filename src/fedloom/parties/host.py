"""One party's program: its files, its links, the rounds, what it leaves behind.

checkpoint.safetensors  ledger.json  schedule.json  audit.jsonl  done.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..build import build_algorithm, build_schedule
from ..config.fingerprint import fingerprint
from ..config.runfile import RunFile
from ..data.placement import View
from ..engines.party import PartyEngine
from ..errors import AbortedError, DataError, ExistsError, FedLoomError, LostError, SettingError
from ..federation.placed import AtClients
from ..federation.schedule import Schedule
from ..federation.topology import Client, Party, title
from ..files import append_line, locked, telling, write_json
from ..rng import Streams
from ..run import play
from ..transports.grpc import GrpcTransport
from ..transports.secure import Address, Door, Identity
from ..trust.allow import Gate
from ..trust.certificates import Certificate, host_name
from .agreement import Agreement
from .memory import Durable, Memory
from .partyfile import PartyFile
from .rows import read_rows

Say = Callable[[str], None]


@dataclass
class Host:
    """A party on this machine."""

    file: RunFile
    own: PartyFile
    say: Say

    def __post_init__(self) -> None:
        self.me: Party = self.own.me
        self.folder = Path(self.own.party.folder)
        self.agreement = Agreement.read(Path(self.own.party.agreement))
        if self.me not in self.agreement.topology.parties:
            raise SettingError(f"{title(self.me)} has no part in this run")
        self.run = fingerprint(self.file, self.agreement.to_json())
        self.memory = Memory(self.folder, self.run)

    def go(self, resume: bool = False) -> None:
        """Take part to the end. `resume`: go on from the checkpoint, if there is one."""
        if self.memory.is_there and not resume:
            raise ExistsError(f"{self.folder} already holds a run: --resume, or another folder")
        with telling(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            transport = self._transport()
            fed = self._engine(transport)
            problem: FedLoomError | None = None
            try:
                self._rounds(fed, transport)
            except FedLoomError as found:
                problem = found
            finally:
                transport.close()
                self._note("sent", **self._totals(transport))
            if problem is not None:
                if isinstance(problem, LostError | AbortedError) and transport.cause is not None:
                    problem = AbortedError(transport.cause)  # as all have heard it
                self._note("failed", why=str(problem))
                raise problem

    def _rounds(self, fed: PartyEngine, transport: GrpcTransport) -> None:
        algorithm, began = build_algorithm(self.file), time.perf_counter()
        done, state = 0, None
        if self.memory.is_there:
            done, state = self.memory.restore(fed, algorithm, transport)
        self._note("started", run=self.run, round=done)
        if isinstance(self.me, Client):  # who is connected is ready
            algorithm.warm_up(fed.part.values[self.me.silo], fed.streams)
        transport.open()
        if isinstance(self.me, Client):
            done = self._join(fed, transport, done)
        elif done == 0:
            self._assemble(transport)
        begun = play(fed, algorithm, self.file.rounds, state, done)
        with closing(begun) as rounds:  # one that is left tells the others
            for done, state in rounds:
                if not isinstance(self.me, Client):
                    self.memory.save(fed, state, done, transport, time.perf_counter() - began)
                self.say(f"{title(self.me)}: round {done} of {self.file.rounds}")
        if isinstance(self.me, Client) and state is not None:
            self.memory.save(fed, state, done, transport, time.perf_counter() - began)
        write_json(self.folder / "ledger.json", fed.ledger.to_json())
        write_json(self.folder / "schedule.json", fed.record.to_json())
        seconds = time.perf_counter() - began
        write_json(self.folder / "done.json", {"rounds": done, "seconds": seconds, "run": self.run})

    def _assemble(self, transport: GrpcTransport) -> None:
        """Everyone has come; where clients may be missing, the other hubs have."""
        limit = self.own.waits
        hubs = [peer for peer in transport.links if not isinstance(peer, Client)]
        clients = [peer for peer in transport.links if isinstance(peer, Client)]
        transport.await_peers(hubs, limit.start)
        try:
            transport.await_peers(clients, limit.start)
        except LostError:
            if limit.on_missing_client == "wait":
                raise

    def _join(self, fed: PartyEngine, transport: GrpcTransport, first: int) -> int:
        """The round that this client's hub is in."""
        assert isinstance(self.me, Client)
        transport.await_peers([self.me.silo], self.own.waits.start)
        at = max(first, transport.links[self.me.silo].at)
        kept = build_algorithm(self.file).start(fed)._asdict().values()
        if at > first and any(isinstance(value, AtClients) for value in kept):
            raise DataError(
                f"{title(self.me)} cannot join in round {at}: this algorithm keeps state at its "
                "clients, and this one's is lost"
            )
        if at > first:
            fed.go_on(at, {})
        return at

    def _engine(self, transport: GrpcTransport) -> PartyEngine:
        agreement, engine = self.agreement, self.file.engine
        if engine.threads is not None:
            torch.set_num_threads(engine.threads)
        durable = Durable(transport, self.memory)
        fed = PartyEngine(
            agreement.basis.task(self.file),
            agreement.shapes,
            self.rows(),
            hosted=[self.me],
            transport=durable,
            seed=engine.seed,
            schedule=self._schedule(),
            waits=self.own.waits.waits,
            device=engine.device,
        )
        fed.streams = Streams(engine.seed, self._secret())
        if not isinstance(self.me, Client):
            durable.fed = fed
        return fed

    def rows(self) -> View:
        """This party's own, checked: against what was agreed on, and by the algorithm."""
        view = read_rows(Path(self.own.party.rows), self.me, self.agreement)
        self.agreement.basis.check(self.file, view)
        return view

    def _schedule(self) -> Schedule:
        schedule = build_schedule(self.file)
        schedule.check(self.agreement.topology.clients)
        return schedule

    def _secret(self) -> bytes | None:
        if self.own.party.secret is None:
            return None
        secret = _read(Path(self.own.party.secret))
        if len(secret) < 32:
            raise SettingError("party.secret: at least 32 bytes are needed")
        return secret

    def _transport(self) -> GrpcTransport:
        own, keys = self.own, self.own.keys
        dials, expected = self.agreement.peers(self.me)
        return GrpcTransport(
            self.me,
            self.run,
            Identity(_read(Path(keys.certificate)), _read(Path(keys.key))),
            dials={peer: self.address(str(peer)) for peer in dials},
            door=self._door(tuple(expected)) if own.listen is not None else None,
            timing=own.waits.timing,
            permits=self.agreement.permits,
            cap=own.limits.frame,
            largest=own.limits.largest,
            note=self._note,
        )

    def ca(self, name: str) -> Certificate:
        if name not in self.own.peers:
            raise SettingError(f"the party file has no [peers.{name}]")
        return Certificate.read(Path(self.own.peers[name].ca))

    def address(self, name: str) -> Address:
        ca = self.ca(name).pem()
        target = self.own.peers[name].address
        if target is None:
            raise SettingError(f"[peers.{name}]: {title(self.me)} dials it, and needs its address")
        return Address(target, ca, host_name(name), self.gate([name]))

    def gate(self, silos: Iterable[str]) -> Gate:
        """Who is believed, of some organisations; the list is read anew when it changes."""
        return Gate(Path(self.own.keys.allow), {silo: self.ca(silo) for silo in sorted(silos)})

    def _door(self, expected: tuple[Party, ...]) -> Door:
        assert self.own.listen is not None
        silos = {party.silo if isinstance(party, Client) else party for party in expected}
        pem = b"".join(self.ca(silo).pem() for silo in sorted(silos))
        return Door(self.own.listen, self.gate(silos), pem, expected)

    def _note(self, event: str, **facts: Any) -> None:
        """One line more in the audit log."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "party": str(self.me), "event": event, **facts}
        append_line(self.folder / "audit.jsonl", json.dumps(line, ensure_ascii=False))

    def _totals(self, transport: GrpcTransport) -> dict[str, Any]:
        """Bytes to and from each peer; `on the wire` is with framing, without TLS."""
        return {"links": {str(peer): dict(link.counts) for peer, link in transport.links.items()}}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}") from None
