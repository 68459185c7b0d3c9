"""Runs what a description asks for: the search for step sizes, then every setting and seed.

    DIR/NAME/search/CURVE,KEY=VALUE/    a run's folder, without checkpoint and model once finished
    DIR/NAME/runs/CURVE,seed=S/         the same
    DIR/NAME/curves.csv  figure.png  result.json

Finished runs are not run again, the others go on from their checkpoints. With a time limit,
unfinished runs take turns, so that all curves get about as far.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ..config.runfile import RunFile
from ..core.errors import DivergedError, ExistsError, InterruptedRun
from ..core.files import SHARED, write_text
from ..records.history import Checkpoints
from ..records.record import read_records
from ..runs.job import Job, Watcher
from ..runs.sweeps.sweep import by_point, is_finished
from . import theory
from .experiment import Experiment, Setting, merged
from .lines import FigureLine

DIVERGED = "diverged.txt"
TURN = 60.0  # seconds, at least, of a run's turn under a time limit


@dataclass(frozen=True)
class PlannedRun:
    """A run of the experiment: its setting and seed, its run file and its folder."""

    setting: Setting
    seed: int
    file: RunFile
    folder: Path

    @property
    def diverged(self) -> bool:
        return (self.folder / DIVERGED).is_file()

    @property
    def done(self) -> bool:
        return self.diverged or is_finished(self.folder)

    def check(self) -> None:
        """Refuse a folder of another run; another device is allowed, or another bound at which
        training counts as diverged."""
        wanted = self.file.to_dict()
        begun = RunFile.read(self.folder / "run.toml").to_dict()
        wanted["engine"]["device"] = begun["engine"]["device"]
        for file in (wanted, begun):
            file["evaluation"].pop("diverged", None)
        if wanted != begun:
            raise ExistsError(f"{self.folder} holds another run: name another folder (--out)")

    @property
    def records(self) -> list[dict[str, Any]]:
        path = self.folder / "records.jsonl"
        return [record.to_json() for record in read_records(path)] if path.is_file() else []


class TimeSlice(Watcher):
    """Ends a job when its turn is over, and reports its progress."""

    def __init__(self, until: float, tell: Callable[[int, int], None]):
        self.job: Job | None = None
        self.over = False
        self._until, self._tell, self._rounds = until, tell, 0

    def part(self, name: str, rounds: int, done: int, metric: str | None) -> None:
        self._rounds = rounds

    def round(self, done: int) -> None:
        self._tell(done, self._rounds)
        if time.monotonic() > self._until and self.job is not None:
            self.over = True
            self.job.stop()


@dataclass
class Conduct:
    """An experiment in a folder. `tell` is called with every run's progress: how many are done, of
    how many, which run, and how far it is."""

    experiment: Experiment
    root: Path
    seeds: int
    device: str | None = None
    iterations: int | None = None
    limit: float | None = None
    tell: Callable[[int, int, PlannedRun, str], None] = field(default=lambda *_: None)
    _begun: float = field(default_factory=time.monotonic)
    _moved: bool = False  # a limit is never too short for one round

    def folder_of(self, name: str) -> Path:
        return self.root / (f"{name}-full" if self.experiment.full else name)

    @property
    def folder(self) -> Path:
        """Of this figure; the runs may be in another's."""
        return self.folder_of(self.experiment.name)

    def go(self) -> bool:
        """Run what is not done; False where the time was too short. A limit of 0 runs nothing."""
        if self.limit == 0:
            return all(run.done for run in [*self.trials, *self.runs])
        return self._run_all(self.trials) and self._run_all(self.runs)

    @cached_property
    def trials(self) -> list[PlannedRun]:
        """The runs of the grid search: one seed, every value, for every place on the axes `by`."""
        search = self.experiment.description.get("search", {})
        if len(search.get("values", ())) < 2:
            return []
        by_place: dict[str, PlannedRun] = {}
        for setting in self.experiment.settings:
            for value in search["values"]:
                run = self._planned(setting, 0, "search", search["iterations"], value)
                by_place.setdefault(self._like(setting, value), run)
        return list(by_place.values())

    @property
    def runs(self) -> list[PlannedRun]:
        """The runs of the figure, with the step sizes that the search found."""
        return [
            self._planned(setting, seed, "runs", self.iterations, self._best(setting))
            for setting in self.experiment.settings
            for seed in range(self.seeds)
        ]

    def lines(self) -> list[FigureLine]:
        """The records so far, of settings that have all their seeds."""
        runs, lines = self.runs, []
        for setting in self.experiment.settings:
            seeds = [run for run in runs if run.setting.place == setting.place]
            records = {run.seed: run.records for run in seeds}
            if all(len(of_seed) > 1 for of_seed in records.values()):
                diverged = frozenset(run.seed for run in seeds if run.diverged)
                lines.append(FigureLine(setting, records, diverged))
        return lines

    def search_table(self) -> list[dict[str, Any]]:
        """Every run of the search: its value and training loss (None: diverged), and whether that
        value was picked."""
        key = self.experiment.description.get("search", {}).get("key", "")
        rows = []
        for run in self.trials:
            value, last = _value(run, key), run.records[-1] if run.records else None
            loss = None if last is None or run.diverged else last["train_loss"]
            picked = value == self._best(run.setting)
            search = self.experiment.description["search"]
            name = ", ".join(run.setting.words[a] for a in search.get("by", run.setting.place))
            rows.append({"setting": name, "value": value, "train_loss": loss, "picked": picked})
        return rows

    def _like(self, setting: Setting, value: Any) -> str:
        search = self.experiment.description["search"]
        by = search.get("by", list(setting.place))
        return json.dumps([setting.place[axis] for axis in by] + [value])

    def _best(self, setting: Setting) -> Any:
        """The value with the lowest training loss; runs that diverged do not count."""
        search = self.experiment.description.get("search")
        if not search:
            return None
        if not self.trials:
            return search["values"][0]
        values = {self._like(setting, value): value for value in search["values"]}
        results = []
        for run in self.trials:
            key = self._like(run.setting, _value(run, search["key"]))
            if key in values and not run.diverged and run.records:
                point = {"settings": {search["key"]: values[key]}, "last": run.records[-1]}
                results.append({**point, "finished": run.done})
        best = by_point(results, "train_loss")
        return best[0]["settings"][search["key"]] if best else search["values"][0]

    def _planned(
        self, setting: Setting, seed: int, where: str, iterations: int | None, value: Any
    ) -> PlannedRun:
        name = f"seed={seed}"
        if value is not None:
            key = self.experiment.description["search"]["key"]
            over: Any = value
            for part in reversed(key.split(".")):
                over = {part: over}
            setting = Setting(setting.place, setting.words, merged(setting.tables, over))
            if where == "search":
                name = f"{key.rpartition('.')[2]}={value}"
        file = self.experiment.file(setting, seed, self.device, iterations)
        folder = self.folder_of(self.experiment.runs_name) / where
        return PlannedRun(setting, seed, file, folder / f"{_plain(setting.name)},{name}")

    def _run_all(self, runs: list[PlannedRun]) -> bool:
        """Run all of these, in turns where there is a limit."""
        check(runs)
        while left := [run for run in runs if not run.done]:
            for run in left:
                rest = self._rest()
                if rest <= 0 and self._moved:
                    return False
                self._moved = True
                waiting = sum(not other.done for other in left)
                turn = rest if self.limit is None else max(TURN, rest / waiting)
                done = sum(other.done for other in runs)
                self._run(run, min(turn, rest), partial(self.tell, done, len(runs), run))
        return True

    def _rest(self) -> float:
        passed = time.monotonic() - self._begun
        return float("inf") if self.limit is None else self.limit - passed

    def _run(self, run: PlannedRun, turn: float, tell: Callable[[str], None]) -> None:
        def progress(done: int, rounds: int) -> None:
            tell(f"round {done} of {rounds}")

        if self.experiment.description.get("measure") == "theory":
            theory.measure(run.file, run.folder, progress)
            tell("done")
            return
        watch = TimeSlice(time.monotonic() + turn, progress)
        if (run.folder / "run.toml").is_file():
            watch.job = Job.resume(run.folder, watch)
        else:
            shutil.rmtree(run.folder, ignore_errors=True)  # killed before it had begun
            watch.job = Job.new(run.file, run.folder, watch)
        try:
            watch.job.go()
        except DivergedError as problem:
            write_text(run.folder / DIVERGED, f"{problem}\n", SHARED)
        except InterruptedRun:
            if not watch.over:
                raise InterruptedRun("stopped; the same command goes on from here") from None
            return
        tell("diverged" if run.diverged else "done")
        shutil.rmtree(run.folder / "model", ignore_errors=True)
        Checkpoints(run.folder).clear()


def check(runs: list[PlannedRun]) -> None:
    """Refuse runs that have begun and are not as described."""
    for run in runs:
        if (run.folder / "run.toml").is_file():
            run.check()


def seconds(runs: list[PlannedRun]) -> float:
    """Time spent on the rounds of these runs."""
    return sum(run.records[-1]["wall"] for run in runs if run.records)


def rows_per_second(runs: list[PlannedRun]) -> Iterator[tuple[str, float]]:
    """Rows through a silo's model and back, a second, by setting."""
    for run in runs:
        settings, records = run.file.values["algorithm"], run.records
        if run.seed == 0 and settings.get("batch") and records and records[-1]["wall"]:
            rows = records[-1]["iteration"] * settings["batch"] * len(_silos(run.folder))
            yield run.setting.name, rows / records[-1]["wall"]


def _silos(folder: Path) -> Mapping[str, Any]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["data"]["silos"]


def _value(run: PlannedRun, key: str) -> Any:
    value: Any = run.setting.tables
    for part in key.split("."):
        value = value[part]
    return value


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.,=+-]+", "_", name.replace(" = ", "=").replace(", ", ","))
