"""A rehearsal, the last step before going live: every party of a run as a process of its own on
this machine, with throw-away certificates and secrets and its own rows only, in its own folder.

    run.toml  agreement.json  keys/SILO/...
    parties/NAME/{party.toml, rows.safetensors, noise.secret, log, out/}

Where the run has tables with hashed ids, a client's party file names its own table, and the
preparation of its columns lies beside the rows, where `fedloom predict` reads it.

The result is compared with the reference engine: the model bit for bit, the ledger message by
message.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..config.fingerprint import fingerprint
from ..config.runfile import RunFile
from ..core import tree
from ..core.errors import ExistsError, FedLoomError, LostError
from ..core.files import SHARED, make_folder, write_json, write_text
from ..core.rng import Secrets
from ..core.toml import dumps
from ..core.topology import SERVER, Client, Party, title
from ..fabric.ledger import Ledger
from ..fabric.schedule import Recorded
from ..records.checkpoint import load_checkpoint
from ..records.history import CHECKPOINT
from ..runs.build import build_data, build_run
from ..runs.processes import Started
from ..runs.run import Run
from .agreement.agreement import Agreement
from .agreement.own_rows import write_preparation, write_rows
from .agreement.shared_facts import SharedFacts, wants_balance
from .connect import listeners, peers
from .keys.allow_list import write_list
from .keys.certificates import Authority, save
from .keys.secret import new_secret, read_secret
from .prediction.lookup import by_id

DAYS = 2
PORTS = 10_000, 32_768  # systems give none of these to outgoing connections
ROWS, SECRET = "rows.safetensors", "noise.secret"
Process = Started | subprocess.Popen[bytes]


@dataclass(frozen=True)
class Outcome:
    """How a rehearsal went. `difference`: the largest between the parties' state and that of the
    reference engine; `wire`: bytes with framing."""

    difference: float
    same_ledger: bool
    payload: int
    wire: int
    seconds: float

    @property
    def is_equal(self) -> bool:
        return self.difference == 0 and self.same_ledger


@dataclass
class Rehearsal:
    """A run in a folder. `waits`: the [waits] of every party file."""

    file: RunFile
    folder: Path
    waits: Mapping[str, Any] = field(default_factory=dict)
    processes: dict[Party, Process] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        """Whether the order of visits is found by the parties, and the reference replays it."""
        return self.file.algorithm.asynchronous and self.file.engine.order == "arrival"

    def prepare(self) -> Run:
        """Write every party's files; returns the reference run, trained unless `is_live`."""
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ExistsError(f"{self.folder} already exists and is not empty: name another")
        make_folder(self.folder)
        threads = self.file.engine.threads or 1
        torch.set_num_threads(threads)
        file = self.file.replaced("engine", name="reference", threads=threads)
        data = build_data(file)
        run = build_run(file, data)
        if run.algorithm.asynchronous and not self.is_live:  # parties replay the order of visits
            run.fit(file.of_rows(run.placement.size).rounds)
            write_json(self.folder / "schedule.json", run.record.to_json())
            file = file.replaced("engine", schedule=str(self.folder / "schedule.json"))
        write_text(self.folder / "run.toml", file.to_toml(), SHARED)
        agreement = Agreement.of(file, SharedFacts.of(run, wants_balance(file)))
        agreement.write(self.folder / "agreement.json")
        self._write_parties(run, agreement)
        run = build_run(file, data, secrets=self.secrets)
        return run if self.is_live else run.fit(file.of_rows(run.placement.size).rounds)

    @property
    def secrets(self) -> Secrets:
        """All parties', for the reference."""
        agreement = Agreement.read(self.folder / "agreement.json")
        run = fingerprint(RunFile.read(self.folder / "run.toml"), agreement.to_json())
        parties = agreement.topology.parties
        return Secrets(run, {str(p): read_secret(self.of(p) / SECRET) for p in parties})

    def _write_parties(self, run: Run, agreement: Agreement) -> None:
        hubs, allowed = listeners(agreement.topology), {}
        ports = dict(zip(hubs, free_ports(len(hubs)), strict=True))
        for organisation in hubs:
            authority = Authority.new(organisation, DAYS)
            authority.save(self.folder / "keys" / organisation)
            members: list[Party] = [organisation]
            if organisation != SERVER:
                members += agreement.topology.of(organisation)
            for party in members:
                certificate, key = authority.issue(party, DAYS)
                save(self.of(party), "party", certificate, key)
                allowed[str(party)] = [certificate.fingerprint]
        for party in agreement.topology.parties:
            new_secret(self.of(party) / SECRET)
            write_rows(self.of(party) / ROWS, run.rows.view([party]))
            self._write_preparation(party, run)
            self._write_party_file(party, agreement, ports)
            theirs = {str(peer) for both in peers(agreement.topology, party) for peer in both}
            own = {name: prints for name, prints in allowed.items() if name in theirs}
            write_list(self.of(party) / "allow.toml", own)

    def _write_preparation(self, party: Party, run: Run) -> None:
        made = None if run.data is None else run.data.preparation
        if made is not None and party != SERVER:
            silo = party.silo if isinstance(party, Client) else party
            own = replace(made, silos={silo: made[silo]})
            write_preparation(self.of(party) / ROWS, own)

    def _write_party_file(
        self, party: Party, agreement: Agreement, ports: Mapping[str, int]
    ) -> None:
        known = [party.silo] if isinstance(party, Client) else listeners(agreement.topology)
        party_file: dict[str, Any] = {
            "party": {
                "name": str(party),
                "agreement": str(self.folder.resolve() / "agreement.json"),
                "rows": ROWS,
                "folder": "out",
                "secret": SECRET,
            },
            "keys": {"certificate": "party.pem", "key": "party.key", "allow": "allow.toml"},
            "peers": {
                name: {
                    "ca": str(self.folder.resolve() / "keys" / name / "ca.pem"),
                    "address": f"127.0.0.1:{ports[name]}",
                }
                for name in known
            },
            "waits": dict(self.waits),
        }
        if not isinstance(party, Client):
            party_file["listen"] = f"127.0.0.1:{ports[party]}"
        elif by_id(self.file):
            data = self.file.values["data"]
            files = data["silos"][party.silo]
            table = files[party.name] if isinstance(files, Mapping) else files
            party_file["party"] |= {"table": str(table), "salt": str(data["salt_file"])}
        write_text(self.of(party) / "party.toml", dumps(party_file))

    def of(self, party: Party) -> Path:
        """A party's own folder."""
        return self.folder / "parties" / str(party).replace("/", "-")

    # Processes

    def start(
        self, party: Party, *options: str, crash: str | None = None, verb: str | None = None
    ) -> Process:
        """One party as a process of its own; again, if it has ended. `crash`: where it is to be
        killed (core/crash_points.py). `verb`: what it does, other than to train."""
        verb = verb or ("client" if isinstance(party, Client) else "hub")
        files = [str(self.folder / "run.toml"), str(self.of(party) / "party.toml")]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "FEDLOOM_CRASH": crash or ""}
        self.processes[party] = self.launch(party, [verb, *files, *options], env)
        return self.processes[party]

    def launch(self, party: Party, words: list[str], env: dict[str, str]) -> Process:
        """`fedloom words`; what it prints goes to the party's log."""
        return Started(words, env, self.of(party) / "log")

    def wait(self, within: float, say: Callable[[str], None] = lambda line: None) -> None:
        """Until everyone is done; LostError names who was not, and why."""
        until = time.monotonic() + within
        ended: set[Party] = set()
        while len(ended) < len(self.processes):
            for party, process in self.processes.items():
                code = process.poll()
                if code is not None and party not in ended:
                    ended.add(party)
                    say(f"{title(party)}: {'done' if code == 0 else f'ended with {code}'}")
            if time.monotonic() > until:
                late = ", ".join(title(party) for party in self.processes if party not in ended)
                self.stop()
                raise LostError(f"not done within {within:g} s: {late}")
            time.sleep(0.05)
        failed = {party: p.returncode for party, p in self.processes.items() if p.returncode}
        if failed:
            first = next(iter(failed))
            codes = "; ".join(f"{title(party)}: exit code {code}" for party, code in failed.items())
            raise LostError(f"{codes}. {title(first)} says: {self.last_words(first)}")

    def last_words(self, party: Party) -> str:
        text = (self.of(party) / "log").read_text(encoding="utf-8", errors="replace").strip()
        return text.splitlines()[-1] if text else "nothing"

    def stop(self) -> None:
        """End what is still running."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait()

    # Results

    def replayed(self) -> Run:
        """The reference, with what happened at the parties as these recorded it."""
        outs = [self.of(party) / "out" for party in self.processes]
        record = Recorded.merged(Recorded.read(out / "schedule.json") for out in outs)
        write_json(self.folder / "happened.json", record.to_json())
        file = RunFile.read(self.folder / "run.toml")
        file = file.replaced("engine", schedule=str(self.folder / "happened.json"))
        run = build_run(file, build_data(file), secrets=self.secrets)
        return run.fit(file.of_rows(run.placement.size).rounds)

    def compare(self, run: Run, seconds: float) -> Outcome:
        """With the reference run."""
        ledgers, wire = [], 0
        worst, blank = 0.0, run.blank()
        for party in run.placement.topology.parties:
            out = self.of(party) / "out"
            ledgers.append(Ledger.from_json(json.loads((out / "ledger.json").read_text())))
            like = {name: {p: v for p, v in at.items() if p == party} for name, at in blank.items()}
            state = load_checkpoint(out / CHECKPOINT).snapshot(like).state
            wanted = run.snapshot().state
            right = {name: {p: wanted[name][p] for p in at} for name, at in like.items()}
            worst = max(worst, tree.largest_difference(dict(state), right))
            wire += sum(link.get("on the wire", 0) for link in self._links(party).values())
        merged = Ledger.merged(ledgers)
        same = list(merged) == list(run.ledger)
        return Outcome(worst, same, merged.total(), wire, seconds)

    def _links(self, party: Party) -> dict[str, dict[str, int]]:
        lines = (self.of(party) / "out" / "audit.jsonl").read_text().splitlines()
        sent = [line for line in map(json.loads, lines) if line["event"] == "sent"]
        return sent[-1]["links"] if sent else {}


def rehearse(
    file: RunFile,
    folder: Path,
    within: float = 600.0,
    say: Callable[[str], None] = lambda line: None,
    waits: Mapping[str, Any] | None = None,
) -> Outcome:
    """Prepare, run and compare; every process has ended when this returns."""
    rehearsal = Rehearsal(file, folder, waits or {})
    say("the reference: everyone in this process")
    run = rehearsal.prepare()
    for line in [] if run.data is None else run.data.lines():
        say(line)
    parties = run.placement.topology.parties
    say(f"{len(parties)} parties, each a process of its own")
    began = time.monotonic()
    try:
        for party in parties:
            rehearsal.start(party)
        rehearsal.wait(within, say)
    finally:
        rehearsal.stop()
    seconds = time.monotonic() - began
    outcome = rehearsal.compare(rehearsal.replayed() if rehearsal.is_live else run, seconds)
    if not outcome.is_equal:
        ledgers = "are equal" if outcome.same_ledger else "differ"
        raise FedLoomError(
            f"the rehearsal differs from the reference by {outcome.difference:g}; ledgers {ledgers}"
        )
    return outcome


def free_ports(count: int) -> list[int]:
    """Ports of this machine that are free, and that no system gives to outgoing connections: a hub
    that is started again finds its port free."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(*PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports += [port] * (port not in ports)
    return ports
