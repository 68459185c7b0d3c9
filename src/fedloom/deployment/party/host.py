"""One party's program: its files, its links, its rounds, its results.

checkpoints  ledger.json  schedule.json  audit.jsonl  log.jsonl  status.json  done.json
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...algorithms.shared.releasing import noisy
from ...config.fingerprint import fingerprint
from ...config.runfile import RunFile
from ...core.crash_points import crash
from ...core.errors import (
    AbortedError,
    DamagedError,
    ExistsError,
    FedLoomError,
    LostError,
    NoCommonRoundError,
    OutOfStepError,
    ProtocolError,
    SettingError,
    nearest,
)
from ...core.files import locked, private_folder, write_json
from ...core.placed import AtClients
from ...core.rng import Secrets
from ...core.topology import SERVER, Client, Party, title
from ...data.placement import View
from ...engines.party.engine import PartyEngine
from ...fabric.attempts import START, ResumePoint
from ...fabric.schedule import Schedule
from ...privacy.spending import in_words
from ...runs.build import build_algorithm, build_schedule
from ...runs.loop import play, why_it_ends
from ...transports.links.party import PartyTransport
from ...transports.links.position import Position
from ..agreement.agreement import Agreement
from ..agreement.own_rows import read_rows
from ..connect import Connections, listeners, peers
from ..keys.secret import read_secret
from ..log import Log
from ..party_file import PartyFile
from . import rollback
from .client_state import ClientState
from .past_rounds import DONE, PastRounds
from .privacy_book import BOOK, PrivacyBook
from .resume import DurableTransport, Memory
from .rollback import Rollback, RollbackDecision
from .status import Progress, Status

VAIN = 20  # attempts, one after the other, without a finished round


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
        self.agreement = Agreement.read(Path(self.own.party.agreement))
        peers(self.agreement.topology, self.me)
        self.links = Connections(self.own, self.agreement.topology)
        self.run = fingerprint(self.file, self.agreement.to_json())
        self.file = self.file.of_rows(self.agreement.size)
        self.progress = Progress(self.file.rounds)
        self.algorithm = build_algorithm(self.file)
        self.played = self.agreement.facts.played(self.file)
        self.noisy = noisy(self.algorithm)
        self.past = PastRounds(self.folder, self.run, self.own.party.keep, self._damaged)
        self.client_state: ClientState | None = None  # where the algorithm's clients keep state
        self.book: PrivacyBook | None = None
        self._vain = 0  # attempts without a round

    def go(self, resume: bool = False) -> None:
        """Take part to the end. `resume`: go on from the last round, if there is one."""
        self.secrets()
        if self.past.is_there and not resume:
            raise ExistsError(f"{self.folder} already holds a run: --resume, or another folder")
        private_folder(self.folder)
        with locked(self.folder):
            late: frozenset[str] = frozenset()
            while True:
                try:
                    return self._attempt(resume, late)
                except OutOfStepError as problem:
                    self.log.tell("out of step", f"cannot go on: {problem}", why=str(problem))
                self._vain, resume = self._vain + 1, True
                if self._vain > VAIN:
                    raise ProtocolError(f"{title(self.me)}: {VAIN} attempts without a round")
                if isinstance(self.me, str):
                    late = self._agree(self.me)

    def _attempt(self, resume: bool, late: frozenset[str]) -> None:
        """Take part in the current attempt, until its end or OutOfStepError."""
        rounds = self.past.scan()
        if isinstance(self.me, Client):
            position = Position(None, held=rounds)
        else:
            position = Position(self.past.line, round=max(rounds).round, held=rounds, late=late)
            position.joining = self._joining
        self._session(self.transport(position), lambda transport: self._rounds(transport, resume))

    def _agree(self, me: str) -> frozenset[str]:
        """With the other hubs, on the round to go on from, and on another attempt."""
        hubs, rounds = listeners(self.agreement.topology), self.past.scan()
        offers = rounds if self.client_state is None else self.client_state.offers(rounds)
        position = Position(self.past.line, agreeing=True, held=offers)
        agreements: list[RollbackDecision] = []

        def agree(transport: PartyTransport) -> None:
            agreements.append(Rollback(me, hubs, self.past, self.own.waits, transport).agree())

        allowed = rollback.permits(hubs)
        self._session(self.links.transport(self.run, allowed, self.log.note, position), agree)
        (agreed,) = agreements
        facts = {"round": agreed.held.round, "attempt": agreed.line.number}
        self.log.note("went back", held=agreed.back[-1].newest, **facts)
        self.log.tell("going on", rollback.said(agreed), **facts)
        return agreed.late

    def _session(self, transport: PartyTransport, work: Callable[[PartyTransport], None]) -> None:
        """A transport, from its opening to its end; whatever goes wrong, all parties hear why."""
        problem: FedLoomError | None = None
        status = Status(self.folder, str(self.me), self.progress, transport, self.own.metrics)
        try:
            work(transport)
        except FedLoomError as error:
            problem = error
            if transport.cause is None and not isinstance(error, AbortedError):
                restore = isinstance(error, NoCommonRoundError)
                transport.abort(f"{title(self.me)}: {error}", restore)  # before the first round
        finally:
            back = isinstance(problem, OutOfStepError)
            back = back or (problem is None and transport.position.agreeing)
            if back and transport.cause is None:
                transport.abandon()
            else:
                transport.close()
            status.close()
            self.log.note("sent", **self._totals(transport))
        if problem is None:
            return
        if transport.restore:  # as all have heard it
            problem = NoCommonRoundError(transport.cause)
        elif transport.cause is not None and isinstance(problem, LostError | AbortedError):
            problem = AbortedError(transport.cause)
        if not isinstance(problem, OutOfStepError):
            self.log.note("failed", why=str(problem))
        raise problem

    def _rounds(self, transport: PartyTransport, resume: bool) -> None:
        memory, algorithm = Memory(self.past), self.played
        fed, began = self._engine(transport, memory), time.perf_counter()
        keeps = any(isinstance(value, AtClients) for value in algorithm.start(fed))
        done, attempt = max(0, transport.position.round), self.past.line.number
        self.log.note("started", run=self.run, round=done, attempt=attempt)
        if isinstance(self.me, Client):
            algorithm.warm_up(fed.part.values[self.me.silo], fed.streams)
            transport.open()  # who is connected is ready
            done = own_round = self._join(self.me, fed, transport)
            if keeps:
                own_round = max(
                    (h for h in self.past.current_line if h.round <= done), default=START
                ).round
            state = memory.restore(own_round, fed, algorithm, transport) if keeps else None
        else:
            self.client_state = self.client_state or (ClientState(self.past) if keeps else None)
            state = memory.restore(done, fed, algorithm, transport)
            if resume:
                memory.again(fed, done, transport)
            else:
                memory.forget()
            transport.open()
            self._assemble(transport, done)
        self.progress.step(done)
        begun = play(fed, algorithm, self.file.rounds, state, done)
        with closing(begun) as rounds:  # one that is left tells the others
            for done, state in rounds:
                if keeps or not isinstance(self.me, Client):
                    crash("before checkpoint")
                    memory.save(fed, state, done, transport, time.perf_counter() - began)
                    crash("after checkpoint")
                transport.position.round, self._vain = done, 0
                self.progress.step(done, self._spent(fed))
                line, facts = self._how_it_stands(done)
                self.log.tell("round", line, **facts)
        ended = done < self.file.rounds and fed.decides
        if ended and (why := why_it_ends(fed, algorithm, state, done)) is not None:
            self.log.tell("ended", why, round=done, why=why)
        if isinstance(self.me, Client) and state is not None:
            memory.save(fed, state, done, transport, time.perf_counter() - began)
        write_json(self.folder / "ledger.json", fed.ledger.to_json())
        write_json(self.folder / "schedule.json", fed.record.to_json())
        seconds = time.perf_counter() - began
        summary = {"rounds": done, "seconds": seconds, "run": self.run}
        spent = self._spent(fed)
        if spent is not None:
            summary["privacy"] = spent
            self.log.note("privacy", **spent)
            self.log.say(f"{title(self.me)}: {in_words(spent)}")
        write_json(self.folder / DONE, summary)
        self.progress.over = True

    def _assemble(self, transport: PartyTransport, first: int) -> None:
        """Waits for everyone, also where all go on after a stop. Where clients may be missing, only
        for the other hubs, and before the first round for clients as long as `waits.start`."""
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

    def _join(self, me: Client, fed: PartyEngine, transport: PartyTransport) -> int:
        """The round that this client's hub is in."""
        transport.await_peers([me.silo], self.own.waits.start)
        at, line = max(0, transport.links[me.silo].at), transport.position.line
        assert line is not None
        if line.number > self.past.line.number:
            facts = {"round": at, "attempt": line.number}
            self.log.note("went back", **facts)
            message = f"going on from round {at}, attempt {line.number}, with {title(me.silo)}"
            self.log.tell("going on", message, **facts)
        self.past.line = line
        if at:
            fed.continue_from(at, {})
        self._open_book(fed, at)
        return at

    def _joining(self, client: Client, rounds: tuple[ResumePoint, ...], round: int) -> None:
        """A client has connected that is in no attempt yet."""
        if self.client_state is not None:
            self.client_state.check(client, rounds, round)

    def _damaged(self, problem: DamagedError) -> None:
        self.log.tell("damaged", f"warning: {problem}", why=str(problem))

    def _open_book(self, fed: PartyEngine, first: int) -> None:
        """Without its book, every round so far counts as if the client had sent everything."""
        if self.book is None:
            return
        assert isinstance(self.me, Client)
        assert self.noisy is not None
        if not self.book.was_there and first:
            for round in range(first):
                self.book.add_all(*self.noisy.exposure(fed, round))
            self.log.note("book lost", rounds=first)
            self.log.say(
                f"{title(self.me)}: there is no {BOOK} here, and {first} rounds are done: they "
                "count as if everything was sent"
            )

    def _spent(self, fed: PartyEngine) -> dict[str, Any] | None:
        """The privacy spent of this party's records; of a client, by its own book."""
        if self.book is not None:
            return self.book.spent()
        if self.noisy is None or self.me not in fed.silos:
            return None
        return self.noisy.spending_of(fed, str(self.me))

    def _how_it_stands(self, done: int) -> tuple[str, dict[str, Any]]:
        """For the terminal, and for the log."""
        line, facts = f"round {done} of {self.file.rounds}", {"round": done}
        spent = self.progress.privacy
        if spent is not None and "mu" in spent:
            facts |= {name: spent[name] for name in ("mu", "epsilon") if name in spent}
            epsilon = f", epsilon {spent['epsilon']:.3g}" if "epsilon" in spent else ""
            line += f"; spent: mu {spent['mu']:.3g}{epsilon}"
        return line, facts

    def _engine(self, transport: PartyTransport, memory: Memory) -> PartyEngine:
        agreement, engine = self.agreement, self.file.engine
        if engine.threads is not None:
            torch.set_num_threads(engine.threads)
        rows = self.rows()
        self.book = self._own_book(rows)
        durable = DurableTransport(transport, memory, self.book)
        fed = PartyEngine(
            agreement.facts.task(self.file),
            agreement.shapes,
            rows,
            hosted=[self.me],
            transport=durable,
            seed=engine.seed,
            schedule=self._schedule(),
            waits=self.own.waits.waits,
            by_arrival=engine.order == "arrival",
            device=engine.device,
            secrets=self.secrets(),
            book=self.book,
            precision=engine.precision,
        )
        skip = self.own.waits.on_missing_client == "skip"
        if not isinstance(self.me, Client) and (skip or engine.order == "arrival"):
            durable.fed = fed
            if skip:
                transport.mailbox(self.me).keep()
        return fed

    def rows(self) -> View:
        """This party's own, checked: against what was agreed on, and by the algorithm."""
        view = read_rows(Path(self.own.party.rows), self.me, self.agreement)
        self.agreement.facts.check(self.file, view)
        return view

    def _schedule(self) -> Schedule:
        schedule = build_schedule(self.file)
        schedule.check(self.agreement.topology.clients)
        return schedule

    def secrets(self) -> Secrets | None:
        """SettingError where privacy would be one in name only."""
        path = self.own.party.secret
        if path is not None:
            return Secrets(self.run, {str(self.me): read_secret(Path(path))})
        if self.noisy is not None and self.me != SERVER:
            raise SettingError(
                f"{title(self.me)}: privacy needs party.secret: without it, noise is drawn from "
                "the run's seed, and every party can take it off again. Make one with `fedloom "
                "keys secret noise.secret`, and name it in the party file: "
                'secret = "noise.secret"'
            )
        return None

    def _own_book(self, rows: View) -> PrivacyBook | None:
        if self.noisy is None or not isinstance(self.me, Client):
            return None
        assert self.noisy.privacy is not None
        path, rates = self.folder / BOOK, (self.noisy.privacy, self.noisy.scales)
        own = rows.rows[self.me]
        return PrivacyBook(path, self.run, self.me, own[own < rows.size], *rates)

    def transport(self, position: Position | None = None) -> PartyTransport:
        kinds = sorted({way.kind for way in self.agreement.permits.forms})
        for kind in self.own.limits.norms:
            if kind not in kinds:
                raise SettingError(f"limits.norms: {kind!r}{nearest(kind, kinds)}")
        return self.links.transport(self.run, self.agreement.permits, self.log.note, position)

    def _totals(self, transport: PartyTransport) -> dict[str, Any]:
        """Of this process: bytes to and from each peer (`on the wire`: with framing, without TLS),
        and bytes by kind of what left."""
        links = {str(peer): dict(link.counts) for peer, link in transport.links.items()}
        left = {str(peer): dict(link.left) for peer, link in transport.links.items()}
        return {"links": links, "left": left}
