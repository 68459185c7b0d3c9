"""One party's program: its files, its links, the rounds, what it leaves behind.

checkpoint.safetensors  ledger.json  schedule.json  audit.jsonl  log.jsonl  status.json  done.json
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..build import build_algorithm, build_schedule
from ..config.fingerprint import fingerprint
from ..config.runfile import RunFile
from ..crash import crash
from ..data.placement import View
from ..engines.party import PartyEngine
from ..errors import (
    AbortedError,
    DataError,
    ExistsError,
    FedLoomError,
    LostError,
    SettingError,
    nearest,
)
from ..federation.placed import AtClients
from ..federation.schedule import Schedule
from ..federation.topology import Client, Party, title
from ..files import locked, telling, write_json
from ..rng import Streams
from ..run import play
from ..transports.grpc import GrpcTransport
from .agreement import Agreement
from .connect import Connections, peers, read
from .log import Log
from .memory import Durable, Memory
from .partyfile import PartyFile
from .rows import read_rows
from .status import Progress, Status


@dataclass
class Host:
    """A party on this machine."""

    file: RunFile
    own: PartyFile
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.me: Party = self.own.me
        self.folder = Path(self.own.party.folder)
        self.log = Log(self.folder, self.me, self.say)
        self.progress = Progress(self.file.rounds)
        self.agreement = Agreement.read(Path(self.own.party.agreement))
        peers(self.agreement.topology, self.me)
        self.links = Connections(self.own, self.agreement.topology)
        self.run = fingerprint(self.file, self.agreement.to_json())
        self.memory = Memory(self.folder, self.run)

    def go(self, resume: bool = False) -> None:
        """Take part to the end. `resume`: go on from the checkpoint, if there is one."""
        if self.memory.is_there and not resume:
            raise ExistsError(f"{self.folder} already holds a run: --resume, or another folder")
        with telling(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            transport = self.transport()
            fed = self._engine(transport)
            problem: FedLoomError | None = None
            status = Status(self.folder, str(self.me), self.progress, transport, self.own.metrics)
            try:
                self._rounds(fed, transport, resume)
            except FedLoomError as found:
                problem = found
                if transport.cause is None and not isinstance(found, AbortedError):
                    transport.abort(f"{title(self.me)}: {found}")  # before the first round
            finally:
                transport.close()
                status.close()
                self.log.note("sent", **self._totals(transport))
            if problem is not None:
                if isinstance(problem, LostError | AbortedError) and transport.cause is not None:
                    problem = AbortedError(transport.cause)  # as all have heard it
                self.log.note("failed", why=str(problem))
                raise problem

    def _rounds(self, fed: PartyEngine, transport: GrpcTransport, resume: bool) -> None:
        algorithm, began = build_algorithm(self.file), time.perf_counter()
        done, state = 0, None
        if self.memory.is_there:
            done, state = self.memory.restore(fed, algorithm, transport)
        elif resume:
            self.memory.again(fed, 0, transport)
        else:
            self.memory.forget()
        self.log.note("started", run=self.run, round=done)
        if isinstance(self.me, Client):  # who is connected is ready
            algorithm.warm_up(fed.part.values[self.me.silo], fed.streams)
        transport.open()
        if isinstance(self.me, Client):
            done = self._join(fed, transport, done)
        else:
            self._assemble(transport, done)
        self.progress.step(done)
        begun = play(fed, algorithm, self.file.rounds, state, done)
        with closing(begun) as rounds:  # one that is left tells the others
            for done, state in rounds:
                if not isinstance(self.me, Client):
                    crash("before checkpoint")
                    self.memory.save(fed, state, done, transport, time.perf_counter() - began)
                    crash("after checkpoint")
                self.progress.step(done)
                self.log.tell("round", f"round {done} of {self.file.rounds}", round=done)
        if isinstance(self.me, Client) and state is not None:
            self.memory.save(fed, state, done, transport, time.perf_counter() - began)
        write_json(self.folder / "ledger.json", fed.ledger.to_json())
        write_json(self.folder / "schedule.json", fed.record.to_json())
        seconds = time.perf_counter() - began
        write_json(self.folder / "done.json", {"rounds": done, "seconds": seconds, "run": self.run})
        self.progress.over = True

    def _assemble(self, transport: GrpcTransport, first: int) -> None:
        """Everyone has come, also where all go on after a stop; where clients may be missing, the
        other hubs have, and before the first round nobody is left out in a hurry."""
        start, skip = self.own.waits.start, self.own.waits.on_missing_client == "skip"
        hubs = [peer for peer in transport.links if not isinstance(peer, Client)]
        clients = [peer for peer in transport.links if isinstance(peer, Client)]
        transport.await_peers(hubs, start)
        if skip and first:
            return
        try:
            transport.await_peers(clients, start)
        except LostError:
            if not skip:
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
            by_arrival=engine.order == "arrival",
            device=engine.device,
        )
        fed.precision = engine.precision
        fed.streams = Streams(engine.seed, self._secret())
        skip = self.own.waits.on_missing_client == "skip"
        if not isinstance(self.me, Client) and (skip or engine.order == "arrival"):
            durable.fed = fed
            if skip:
                transport.keep()
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
        secret = read(Path(self.own.party.secret))
        if len(secret) < 32:
            raise SettingError("party.secret: at least 32 bytes are needed")
        return secret

    def transport(self) -> GrpcTransport:
        kinds = sorted({way.kind for way in self.agreement.permits.forms})
        for kind in self.own.limits.norms:
            if kind not in kinds:
                raise SettingError(f"limits.norms: {kind!r}{nearest(kind, kinds)}")
        return self.links.transport(self.run, self.agreement.permits, self.log.note)

    def _totals(self, transport: GrpcTransport) -> dict[str, Any]:
        """Of this process: bytes to and from each peer (`on the wire`: with framing, without TLS),
        and bytes by kind of what left."""
        links = {str(peer): dict(link.counts) for peer, link in transport.links.items()}
        left = {str(peer): dict(link.left) for peer, link in transport.links.items()}
        return {"links": links, "left": left}
