"""Running what a description asks for: the search for step sizes, then every setting and seed.

    DIR/NAME/search/CURVE,KEY=VALUE/    a run's folder, without checkpoint and model once finished
    DIR/NAME/runs/CURVE,seed=S/         the same
    DIR/NAME/curves.csv  figure.png  result.json

What is finished is not run again, the rest goes on from its checkpoint. With a time limit,
unfinished runs take turns, so that all curves go about as far.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config.runfile import RunFile
from ..core.errors import ExistsError, InterruptedRun, NotFiniteError
from ..core.files import SHARED, write_text
from ..records.history import Checkpoints
from ..records.record import read_records
from ..runs.job import Job, Watcher
from ..runs.sweep import by_point, is_finished
from . import theory
from .experiment import Experiment, Setting, merged
from .lines import Line

DIVERGED = "diverged.txt"
TURN = 60.0  # seconds, at least, of a run's turn under a time limit


@dataclass(frozen=True)
class One:
    """A run to be done: which, its run file and its folder."""

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
        """The folder must hold this very run, perhaps on another device."""
        wanted = self.file.to_dict()
        begun = RunFile.read(self.folder / "run.toml").to_dict()
        wanted["engine"]["device"] = begun["engine"]["device"]
        if wanted != begun:
            raise ExistsError(f"{self.folder} holds another run: name another folder (--out)")

    @property
    def records(self) -> list[dict[str, Any]]:
        path = self.folder / "records.jsonl"
        return [record.to_json() for record in read_records(path)] if path.is_file() else []


class Turn(Watcher):
    """Ends a job when its turn is over, and tells whoever watches how it goes on."""

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
    """An experiment in a folder. `tell` hears about every run: how many are done, of how many,
    which, and how far it is."""

    experiment: Experiment
    root: Path
    seeds: int
    device: str | None = None
    iterations: int | None = None
    limit: float | None = None
    tell: Callable[[int, int, One, str], None] = field(default=lambda *_: None)
    _begun: float = field(default_factory=time.monotonic)
    _moved: bool = False  # a limit is never too short for one round

    def folder_of(self, name: str) -> Path:
        return self.root / (f"{name}-full" if self.experiment.full else name)

    @property
    def folder(self) -> Path:
        """Of this figure; the runs may be in another's."""
        return self.folder_of(self.experiment.name)

    def go(self) -> bool:
        """Run what is left; False where the time was too short. A limit of 0 only asks."""
        if self.limit == 0:
            return all(one.done for one in [*self.searched, *self.ones])
        return self._all(self.searched) and self._all(self.ones)

    @cached_property
    def searched(self) -> list[One]:
        """The runs of the grid search: one seed, every value, for every place on the axes `by`."""
        search = self.experiment.told.get("search", {})
        if len(search.get("values", ())) < 2:
            return []
        trials: dict[str, One] = {}
        for setting in self.experiment.settings:
            for value in search["values"]:
                one = self._one(setting, 0, "search", search["iterations"], value)
                trials.setdefault(self._like(setting, value), one)
        return list(trials.values())

    @property
    def ones(self) -> list[One]:
        """The runs of the figure; their step sizes are those that the search found."""
        return [
            self._one(setting, seed, "runs", self.iterations, self._best(setting))
            for setting in self.experiment.settings
            for seed in range(self.seeds)
        ]

    def lines(self) -> list[Line]:
        """What was recorded so far, of settings that have all their seeds."""
        ones = self.ones
        lines = []
        for setting in self.experiment.settings:
            own = [one for one in ones if one.setting.place == setting.place]
            runs = {one.seed: one.records for one in own}
            if all(len(run) > 1 for run in runs.values()):
                lost = frozenset(one.seed for one in own if one.diverged)
                lines.append(Line(setting, runs, lost))
        return lines

    def search_table(self) -> list[dict[str, Any]]:
        """Every run of the search: its value and training loss (None: diverged), and whether that
        value was picked."""
        key = self.experiment.told.get("search", {}).get("key", "")
        rows = []
        for one in self.searched:
            value, last = _value(one, key), one.records[-1] if one.records else None
            loss = None if last is None or one.diverged else last["train_loss"]
            picked = value == self._best(one.setting)
            search = self.experiment.told["search"]
            name = ", ".join(one.setting.words[a] for a in search.get("by", one.setting.place))
            rows.append({"setting": name, "value": value, "train_loss": loss, "picked": picked})
        return rows

    def _like(self, setting: Setting, value: Any) -> str:
        search = self.experiment.told["search"]
        by = search.get("by", list(setting.place))
        return json.dumps([setting.place[axis] for axis in by] + [value])

    def _best(self, setting: Setting) -> Any:
        """The value with the lowest training loss; runs that diverged do not count."""
        search = self.experiment.told.get("search")
        if not search:
            return None
        if not self.searched:
            return search["values"][0]
        values = {self._like(setting, value): value for value in search["values"]}
        results = []
        for one in self.searched:
            key = self._like(one.setting, _value(one, search["key"]))
            if key in values and not one.diverged and one.records:
                point = {"settings": {search["key"]: values[key]}, "last": one.records[-1]}
                results.append({**point, "finished": one.done})
        best = by_point(results, "train_loss")
        return best[0]["settings"][search["key"]] if best else search["values"][0]

    def _one(
        self, setting: Setting, seed: int, where: str, iterations: int | None, value: Any
    ) -> One:
        name = f"seed={seed}"
        if value is not None:
            key = self.experiment.told["search"]["key"]
            over: Any = value
            for part in reversed(key.split(".")):
                over = {part: over}
            setting = Setting(setting.place, setting.words, merged(setting.tables, over))
            if where == "search":
                name = f"{key.rpartition('.')[2]}={value}"
        file = self.experiment.file(setting, seed, self.device, iterations)
        folder = self.folder_of(self.experiment.runs_name) / where
        return One(setting, seed, file, folder / f"{_plain(setting.name)},{name}")

    def _all(self, ones: list[One]) -> bool:
        """Run all of these, in turns where there is a limit."""
        check(ones)
        while left := [one for one in ones if not one.done]:
            for one in left:
                rest = self._rest()
                if rest <= 0 and self._moved:
                    return False
                self._moved = True
                waiting = sum(not other.done for other in left)
                turn = rest if self.limit is None else max(TURN, rest / waiting)
                done = sum(other.done for other in ones)
                self._run(one, min(turn, rest), lambda said: self.tell(done, len(ones), one, said))  # noqa: B023
        return True

    def _rest(self) -> float:
        passed = time.monotonic() - self._begun
        return float("inf") if self.limit is None else self.limit - passed

    def _run(self, one: One, turn: float, tell: Callable[[str], None]) -> None:
        def progress(done: int, rounds: int) -> None:
            tell(f"round {done} of {rounds}")

        if self.experiment.told.get("measure") == "theory":
            theory.measure(one.file, one.folder, progress)
            tell("done")
            return
        watch = Turn(time.monotonic() + turn, progress)
        if (one.folder / "run.toml").is_file():
            watch.job = Job.resume(one.folder, watch)
        else:
            shutil.rmtree(one.folder, ignore_errors=True)  # killed before it had begun
            watch.job = Job.new(one.file, one.folder, watch)
        try:
            watch.job.go()
        except NotFiniteError as problem:
            write_text(one.folder / DIVERGED, f"{problem}\n", SHARED)
        except InterruptedRun:
            if not watch.over:
                raise InterruptedRun("stopped; the same command goes on from here") from None
            return
        tell("diverged" if one.diverged else "done")
        shutil.rmtree(one.folder / "model", ignore_errors=True)
        Checkpoints(one.folder).clear()


def check(ones: list[One]) -> None:
    """What has begun must be what is described."""
    for one in ones:
        if (one.folder / "run.toml").is_file():
            one.check()


def seconds(ones: list[One]) -> float:
    """Spent on the rounds of these runs."""
    return sum(one.records[-1]["wall"] for one in ones if one.records)


def rows_per_second(ones: list[One]) -> Iterator[tuple[str, float]]:
    """Rows through a silo's model and back, a second, by setting."""
    for one in ones:
        settings, records = one.file.values["algorithm"], one.records
        if one.seed == 0 and settings.get("batch") and records and records[-1]["wall"]:
            rows = records[-1]["iteration"] * settings["batch"] * len(_silos(one.folder))
            yield one.setting.name, rows / records[-1]["wall"]


def _silos(folder: Path) -> Mapping[str, Any]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["data"]["silos"]


def _value(one: One, key: str) -> Any:
    value: Any = one.setting.tables
    for part in key.split("."):
        value = value[part]
    return value


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.,=+-]+", "_", name.replace(" = ", "=").replace(", ", ","))
