"""Parties as processes that are killed by SIGKILL again and again: one, two, or a silo at once, at
random moments and at named lines of code, and started again at once or late; hubs also from a
backup of their folder, made while they ran.

With `wait` the model must be that of an undisturbed run bit for bit, with `skip` that of the replay
of what the hubs recorded; ledgers must be equal message by message.
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
KEEP, HELD = 40, 30  # rounds of each party, where hubs are restored; behind, at most
WHEN = ("before", "after", "closed")  # for each kind of message
POINTS = [  # of hubs
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
    """What came of a storm. `at_points`: killed at named lines; `absences`: clients out of rounds;
    `restored`: hubs from a backup; `went_back`: how often all hubs did."""

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
    """Over a rehearsal that is not prepared yet: `kills` processes are killed, or a few more;
    `restores`: and some hubs restored from a backup."""

    one: Rehearsal
    kills: int
    draw: random.Random
    restores: bool = False
    within: float = 1800.0
    say: Callable[[str], None] = lambda line: None
    _killed: Counter[str] = field(default_factory=Counter)
    _at_points: int = 0
    _due: dict[Party, float] = field(default_factory=dict)  # who is to be started, and when
    _backups: dict[str, tuple[int, Path]] = field(default_factory=dict)  # of hubs, after rounds
    _restored: int = 0

    def blow(self) -> Outcome:
        """From the first process to the comparison; every process has ended when this returns."""
        run, began = self.one.prepare(), time.monotonic()
        self._until = began + self.within
        self._silos = run.placement.topology.silos
        self._parties = list(run.placement.topology.parties)
        permits = Agreement.read(self.one.folder / "agreement.json").permits
        kinds = sorted({way.kind for way in permits.forms})
        self._points = [f"{when} {kind}" for when in WHEN for kind in kinds] + POINTS
        if self.restores:
            for party in self._parties:
                path = self.one.of(party) / "party.toml"
                path.write_text(path.read_text().replace("[party]\n", f"[party]\nkeep = {KEEP}\n"))
        try:
            for party in self._parties:
                self.one.start(party)
            self._storm()
            while self._due or not self._have_ended():
                self._pass(0.1)
            self.one.wait(1.0)
        finally:
            self.one.stop()
        return self._outcome(run, time.monotonic() - began)

    def _storm(self) -> None:
        while self._killed.total() < self.kills:
            if self.draw.random() < 0.75:  # sometimes also while some are still starting
                self._await_rounds(self.draw.randint(1, 4))
            self._pass(self.draw.uniform(0.0, 1.0))
            if self._have_ended(some=True):
                self.say("it ended before it was killed so often: ask for more rounds")
                return
            if self.restores and self.draw.random() < 0.8:
                self._back_up(self.draw.choice(self._silos))
            self._strike(self._chosen())
            self.say(f"{self._killed.total()} kills, round {self._round()}")

    def _chosen(self) -> list[Party]:
        """One, two, two hubs, or a hub with some or all of its clients."""
        how = self.draw.choice(["one", "one", "two", "hubs", "silo", "silo"])
        if how == "silo":
            silo = self.draw.choice(self._silos)
            clients = [p for p in self._parties if isinstance(p, Client) and p.silo == silo]
            return [silo, *self.draw.sample(clients, self.draw.randint(1, len(clients)))]
        some = [p for p in self._parties if how != "hubs" or not isinstance(p, Client)]
        return self.draw.sample(some, min(len(some), 1 if how == "one" else 2))

    def _strike(self, chosen: Sequence[Party]) -> None:
        """Late: when the others count it as gone."""
        late, how = 3 * WAIT["silence"], self.draw.choice(["at once", "late", "each", "hub first"])
        for party in chosen:
            if party not in self._due and self.one.processes[party].poll() is None:
                self.one.processes[party].send_signal(signal.SIGKILL)
                pause = {
                    "at once": self.draw.uniform(0.0, 0.3),
                    "late": late,
                    "each": self.draw.uniform(0.0, late),
                    "hub first": late if isinstance(party, Client) else 0.0,
                }[how]
                self._down(party, pause)

    def _back_up(self, hub: str) -> None:
        """Its folder as it is, while it runs."""
        copy = self.one.folder / f"backup-{hub}"
        shutil.rmtree(copy, ignore_errors=True)
        self._backups.pop(hub, None)
        rounds = self._round(hub)
        try:
            shutil.copytree(self.one.of(hub) / "out", copy)
        except (shutil.Error, FileNotFoundError):  # a file went away meanwhile: copy it again later
            return
        self._backups[hub] = rounds, copy

    def _restore(self, hub: str) -> None:
        """From its backup, if all hubs still hold what it has; once."""
        rounds, copy = self._backups.pop(hub, (0, None))
        if copy is not None and max(map(self._round, self._silos)) - rounds < HELD:
            shutil.rmtree(self.one.of(hub) / "out")
            copy.rename(self.one.of(hub) / "out")
            self._restored += 1

    def _down(self, party: Party, pause: float) -> None:
        self.one.processes[party].wait()
        if isinstance(party, str) and self.draw.random() < 0.8:
            self._restore(party)
        self._killed["clients" if isinstance(party, Client) else "hubs"] += 1
        self._due[party] = time.monotonic() + pause

    def _pass(self, seconds: float) -> None:
        """Time passes: who is due is started, and who died at its point will be."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for party in [party for party, back in self._due.items() if back <= now]:
                del self._due[party]
                self.one.start(party, "--resume", crash=self._point(party))
            for party, process in self.one.processes.items():
                if party not in self._due and process.poll() == -signal.SIGKILL:
                    self._at_points += 1
                    self._down(party, self.draw.choice([0.0, 0.3, 3.0]))
            if now > self._until:
                raise LostError(f"not done within {self.within:g} s")
            if now >= until:
                return
            time.sleep(min(0.02, until - now))

    def _point(self, party: Party) -> str | None:
        """Where a hub that is started again will die, one in three."""
        if isinstance(party, Client) or self.draw.random() > 0.35:
            return None
        return f"{self.draw.choice(self._points)}:{self.draw.choice([1, 1, 2, 3, 7])}"

    def _await_rounds(self, more: int, within: float = 60.0) -> None:
        """Until the first hub has made some rounds."""
        wanted, until = self._round() + more, time.monotonic() + within
        while self._round() < wanted and time.monotonic() < until:
            if self._have_ended(some=True):
                return
            self._pass(0.05)

    def _round(self, hub: str | None = None) -> int:
        """That a hub, the first if none is named, has made last."""
        log = self.one.of(hub or self._silos[0]) / "out" / "log.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        made = (json.loads(line)["round"] for line in reversed(lines) if '"event": "round"' in line)
        return next(made, 0)

    def _have_ended(self, some: bool = False) -> bool:
        """By themselves: all, or some."""
        codes = [process.poll() for process in self.one.processes.values()]
        ended = [code not in (None, -signal.SIGKILL) for code in codes]
        return any(ended) if some else all(ended)

    def _outcome(self, run: Run, seconds: float) -> Outcome:
        skips = self.one.waits.get("on_missing_client") == "skip"
        right = self.one.replayed() if skips or self.one.is_live else run
        found = self.one.compare(right, seconds)
        return Outcome(
            self._killed.total(),
            self._killed["hubs"],
            self._at_points,
            sum(len(names) for who in right.record.dropped.values() for names in who.values()),
            self._restored,
            len(Recorded.read(self.one.of(self._silos[0]) / "out" / "schedule.json").back),
            right.round,
            seconds,
            found.difference,
            found.same_ledger,
        )
