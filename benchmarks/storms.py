"""Kills the processes of parties by SIGKILL again and again: one, two, or a silo at once, at random
moments and at named lines of code. They are restarted at once or late; hubs also from a backup of
their folder that was made while they ran.

With `wait`, the model must equal that of an undisturbed run, bit for bit; with `skip`, that of a
replay of what the hubs recorded. Ledgers must be equal message by message.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedloom.core.errors import LostError
from fedloom.core.topology import Client, Party
from fedloom.deployment.agreement.agreement import Agreement
from fedloom.deployment.rehearsal import Rehearsal
from fedloom.fabric.schedule import Recorded
from fedloom.runs.run import Run

WAIT = {"start": 300.0, "patience": 240.0, "beat": 0.2, "silence": 1.0, "linger": 20.0}
SKIP = {**WAIT, "on_missing_client": "skip", "deadline": 5.0}
KEEP, MAX_BEHIND = 40, 30  # rounds that parties keep; how far a restored hub may be behind
WHEN = ("before", "after", "closed")  # for each kind of message
CRASH_POINTS = [  # of hubs
    "before checkpoint",
    "writing checkpoint.safetensors",
    "between the two files",
    "after checkpoint",
    "writing round-0.msgpack",
    "written round-1.msgpack",
    "written round-3.msgpack",
]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a storm. `at_points`: kills at named lines; `absences`: clients absent from
    rounds; `restored`: hubs restored from a backup; `went_back`: rollbacks of all hubs."""

    kills: int
    hubs: int
    at_points: int
    absences: int
    restored: int
    went_back: int
    rounds: int
    seconds: float
    difference: float
    same_ledger: bool

    @property
    def is_exact(self) -> bool:
        return self.difference == 0 and self.same_ledger


@dataclass
class Storm:
    """A storm over a rehearsal that is not prepared yet. At least `kills` processes are killed;
    `restores`: some hubs are restored from a backup."""

    rehearsal: Rehearsal
    kills: int
    draw: random.Random
    restores: bool = False
    within: float = 1800.0
    say: Callable[[str], None] = lambda line: None
    _killed: Counter[str] = field(default_factory=Counter)
    _at_points: int = 0
    _due: dict[Party, float] = field(default_factory=dict)  # when to restart parties
    # of hubs: after which round, and where
    _backups: dict[str, tuple[int, Path]] = field(default_factory=dict)
    _restored: int = 0

    def blow(self) -> Outcome:
        """Run the storm and compare; all processes have ended when this returns."""
        run, began = self.rehearsal.prepare(), time.monotonic()
        self._until = began + self.within
        self._silos = run.placement.topology.silos
        self._parties = list(run.placement.topology.parties)
        permits = Agreement.read(self.rehearsal.folder / "agreement.json").permits
        kinds = sorted({way.kind for way in permits.forms})
        self._crash_points = [f"{when} {kind}" for when in WHEN for kind in kinds] + CRASH_POINTS
        if self.restores:
            for party in self._parties:
                path = self.rehearsal.of(party) / "party.toml"
                path.write_text(path.read_text().replace("[party]\n", f"[party]\nkeep = {KEEP}\n"))
        try:
            for party in self._parties:
                self.rehearsal.start(party)
            self._storm()
            while self._due or not self._have_ended():
                self._pass(0.1)
            self.rehearsal.wait(1.0)
        finally:
            self.rehearsal.stop()
        return self._outcome(run, time.monotonic() - began)

    def _storm(self) -> None:
        while self._killed.total() < self.kills:
            if self.draw.random() < 0.75:  # sometimes also while some are still starting
                self._await_rounds(self.draw.randint(1, 4))
            self._pass(self.draw.uniform(0.0, 1.0))
            if self._have_ended(any_party=True):
                self.say("the run ended before all kills: ask for more rounds")
                return
            if self.restores and self.draw.random() < 0.8:
                self._back_up(self.draw.choice(self._silos))
            self._strike(self._chosen())
            self.say(f"{self._killed.total()} kills, round {self._round()}")

    def _chosen(self) -> list[Party]:
        """The next victims: one, two, two hubs, or a hub with some or all of its clients."""
        choice = self.draw.choice(["one", "one", "two", "hubs", "silo", "silo"])
        if choice == "silo":
            silo = self.draw.choice(self._silos)
            clients = [p for p in self._parties if isinstance(p, Client) and p.silo == silo]
            return [silo, *self.draw.sample(clients, self.draw.randint(1, len(clients)))]
        candidates = [p for p in self._parties if choice != "hubs" or not isinstance(p, Client)]
        return self.draw.sample(candidates, min(len(candidates), 1 if choice == "one" else 2))

    def _strike(self, chosen: Sequence[Party]) -> None:
        """Kill parties and plan their restarts. `late`: after the others count them as lost."""
        late, restart = (
            3 * WAIT["silence"],
            self.draw.choice(["at once", "late", "each", "hub first"]),
        )
        for party in chosen:
            if party not in self._due and self.rehearsal.processes[party].poll() is None:
                self.rehearsal.processes[party].send_signal(signal.SIGKILL)
                pause = {
                    "at once": self.draw.uniform(0.0, 0.3),
                    "late": late,
                    "each": self.draw.uniform(0.0, late),
                    "hub first": late if isinstance(party, Client) else 0.0,
                }[restart]
                self._down(party, pause)

    def _back_up(self, hub: str) -> None:
        """Copy a hub's folder while it runs."""
        copy = self.rehearsal.folder / f"backup-{hub}"
        shutil.rmtree(copy, ignore_errors=True)
        self._backups.pop(hub, None)
        rounds = self._round(hub)
        try:
            shutil.copytree(self.rehearsal.of(hub) / "out", copy)
        except (shutil.Error, FileNotFoundError):  # a file was removed meanwhile: copy again later
            return
        self._backups[hub] = rounds, copy

    def _restore(self, hub: str) -> None:
        """Restore a hub's folder from its backup, once, if all hubs still have that round."""
        rounds, copy = self._backups.pop(hub, (0, None))
        if copy is not None and max(map(self._round, self._silos)) - rounds < MAX_BEHIND:
            shutil.rmtree(self.rehearsal.of(hub) / "out")
            copy.rename(self.rehearsal.of(hub) / "out")
            self._restored += 1

    def _down(self, party: Party, pause: float) -> None:
        self.rehearsal.processes[party].wait()
        if isinstance(party, str) and self.draw.random() < 0.8:
            self._restore(party)
        self._killed["clients" if isinstance(party, Client) else "hubs"] += 1
        self._due[party] = time.monotonic() + pause

    def _pass(self, seconds: float) -> None:
        """Wait; restart parties that are due, and plan restarts of those that died at a crash
        point."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for party in [party for party, back in self._due.items() if back <= now]:
                del self._due[party]
                self.rehearsal.start(party, "--resume", crash=self._point(party))
            for party, process in self.rehearsal.processes.items():
                if party not in self._due and process.poll() == -signal.SIGKILL:
                    self._at_points += 1
                    self._down(party, self.draw.choice([0.0, 0.3, 3.0]))
            if now > self._until:
                raise LostError(f"not done within {self.within:g} s")
            if now >= until:
                return
            time.sleep(min(0.02, until - now))

    def _point(self, party: Party) -> str | None:
        """The crash point of a restarted hub; in one of three restarts."""
        if isinstance(party, Client) or self.draw.random() > 0.35:
            return None
        return f"{self.draw.choice(self._crash_points)}:{self.draw.choice([1, 1, 2, 3, 7])}"

    def _await_rounds(self, more: int, within: float = 60.0) -> None:
        """Wait until the first hub has played some more rounds."""
        target, until = self._round() + more, time.monotonic() + within
        while self._round() < target and time.monotonic() < until:
            if self._have_ended(any_party=True):
                return
            self._pass(0.05)

    def _round(self, hub: str | None = None) -> int:
        """The last round of a hub (default: the first hub)."""
        log = self.rehearsal.of(hub or self._silos[0]) / "out" / "log.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        rounds = (
            json.loads(line)["round"] for line in reversed(lines) if '"event": "round"' in line
        )
        return next(rounds, 0)

    def _have_ended(self, any_party: bool = False) -> bool:
        """Whether all (or some) parties have ended by themselves."""
        codes = [process.poll() for process in self.rehearsal.processes.values()]
        ended = [code not in (None, -signal.SIGKILL) for code in codes]
        return any(ended) if any_party else all(ended)

    def _outcome(self, run: Run, seconds: float) -> Outcome:
        skips = self.rehearsal.waits.get("on_missing_client") == "skip"
        expected = self.rehearsal.replayed() if skips or self.rehearsal.is_live else run
        comparison = self.rehearsal.compare(expected, seconds)
        return Outcome(
            self._killed.total(),
            self._killed["hubs"],
            self._at_points,
            sum(
                len(names)
                for by_silo in expected.record.dropped.values()
                for names in by_silo.values()
            ),
            self._restored,
            len(Recorded.read(self.rehearsal.of(self._silos[0]) / "out" / "schedule.json").back),
            expected.round,
            seconds,
            comparison.difference,
            comparison.same_ledger,
        )
