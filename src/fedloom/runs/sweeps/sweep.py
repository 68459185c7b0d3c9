"""Many runs from one run file: a grid over any keys, several seeds, in parallel processes.

    DIR/sweep.json   what was asked for
    DIR/NAME/        a run's folder, for each point of the grid and each seed

Starting the same sweep again goes on with it: finished runs stay, the others are resumed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.runfile import RunFile, override_key
from ...core.errors import ExistsError, SettingError, nearest
from ...core.files import SHARED, write_json, write_text
from ...core.registry import metrics
from ...core.toml import inline
from ...records.manifest import Manifest
from ...records.metrics import LOSS, smaller_is_better
from ...records.record import read_records, result_of
from ..processes import Started

Point = dict[str, Any]
TRAIN_LOSS = "train_loss"


@dataclass(frozen=True)
class Sweep:
    """A run file, the keys to vary with their values, and how many seeds."""

    file: Path
    overrides: tuple[str, ...]
    grid: Mapping[str, Sequence[Any]]
    seeds: int
    folder: Path

    @staticmethod
    def of(
        file: Path, overrides: Sequence[str], grid: Sequence[str], seeds: int, out: Path
    ) -> Sweep:
        """`grid` are "section.key=[value, ...]" texts."""
        if seeds < 1:
            raise SettingError(f"--seeds must be at least 1, not {seeds}")
        values_of: dict[str, Sequence[Any]] = {}
        for key, values, text in values_by_key(grid):
            if not isinstance(values, list) or not values:
                raise SettingError(f"--grid {text}: section.key=[value, value, ...] is expected")
            values_of[key] = values
        return Sweep(file, tuple(overrides), values_of, seeds, out)

    def points(self) -> dict[str, Point]:
        """Folder name -> the keys that are set there."""
        first = RunFile.read(self.file, self.overrides).engine.seed
        points: dict[str, Point] = {}
        for values in itertools.product(*self.grid.values()):
            for seed in range(first, first + self.seeds):
                point = dict(zip(self.grid, values, strict=True))
                if self.seeds > 1 or not point:
                    point["engine.seed"] = seed
                if points.setdefault(name_of(point), point) is not point:
                    raise SettingError(f"two runs of the sweep would be called {name_of(point)}")
        return points

    def prepare(self) -> dict[str, Path]:
        """Check every run file before any is started, and write them: {name: folder}."""
        files = {
            name: RunFile.read(self.file, (*self.overrides, *settings_of(point)))
            for name, point in self.points().items()
        }
        wanted = {"file": self.file.read_text(), "set": list(self.overrides), "seeds": self.seeds}
        wanted["grid"] = {key: list(values) for key, values in self.grid.items()}
        claim(self.folder, wanted)
        return {name: write_file(self.folder, name, file) for name, file in files.items()}

    def go(self, jobs: int, tell: Callable[[str, int], None]) -> dict[str, int]:
        """Run what is not finished, `jobs` at a time; {name: exit code}. One that fails does not
        stop the others."""
        folders = self.prepare()
        waiting = [name for name, folder in folders.items() if not is_finished(folder)]
        codes = dict.fromkeys(set(folders) - set(waiting), 0)
        running: dict[str, Started] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    name = waiting.pop(0)
                    running[name] = started(self.folder, name, jobs)
                for name in [
                    name for name, process in running.items() if process.poll() is not None
                ]:
                    codes[name] = running.pop(name).wait()
                    tell(name, codes[name])
                time.sleep(0.05)
        finally:
            for process in running.values():  # each saves what it has done
                process.terminate()
            for process in running.values():
                process.wait()
        return codes

    def results(self) -> list[dict[str, Any]]:
        """A line for every run: its keys, and the record that it is judged by."""
        return [result(self.folder, name, point) for name, point in self.points().items()]


def values_by_key(grid: Sequence[str]) -> Iterator[tuple[str, Any, str]]:
    """The key and the values of each text "section.key=values", and the text."""
    keys: set[str] = set()
    for text in grid:
        raw: dict[str, Any] = {}
        key = ".".join(override_key(raw, text))
        values: Any = raw
        for part in key.split("."):
            values = values[part]
        if key in keys:
            raise SettingError(f"--grid names {key} twice")
        keys.add(key)
        yield key, values, text


def claim(folder: Path, wanted: Mapping[str, Any]) -> None:
    """The folder is this sweep's: a new one, or one that goes on."""
    saved = folder / "sweep.json"
    if saved.is_file():
        if json.loads(saved.read_text()) != wanted:
            raise ExistsError(f"{folder} holds another sweep: name another folder (--out)")
    elif folder.exists() and any(folder.iterdir()):
        raise ExistsError(f"{folder} is not empty: name another folder (--out)")
    write_json(saved, wanted, SHARED)


def write_file(folder: Path, name: str, file: RunFile) -> Path:
    """The run file of one run; returns the run's own folder."""
    own = file.replaced("output", folder=str(folder / name))
    write_text(folder / "files" / f"{name}.toml", own.to_toml(), SHARED)
    return folder / name


def started(folder: Path, name: str, jobs: int) -> Started:
    """One run as a process, from its start or where it was; one of `jobs` at a time."""
    begun = (folder / name / "run.toml").is_file()
    own = ["--resume", str(folder / name)] if begun else [str(folder / "files" / f"{name}.toml")]
    env = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    log = folder / "files" / f"{name}.log"
    return Started(["run", "--quiet", *own], env, log, session=True)  # Ctrl-C is ours to pass on


def result(folder: Path, name: str, point: Point) -> dict[str, Any]:
    """A run's keys, and the record that it is judged by."""
    path = folder / name / "records.jsonl"
    records = read_records(path) if path.is_file() else []
    last = result_of(records).to_json() if records else None
    finished = is_finished(folder / name)
    return {"name": name, "settings": point, "finished": finished, "last": last}


def ranking(file: RunFile, asked: str | None) -> str:
    """The metric that runs are ranked by: of the validation rows, or the training loss; never of
    the test rows, which would then say too much."""
    has_rows = file.values["data"]["validation"] is not None
    if asked is None:
        stopping = file.stopping
        usual = LOSS if stopping is None else stopping.metric
        return usual if has_rows else TRAIN_LOSS
    if asked == TRAIN_LOSS:
        return asked
    if asked != LOSS and asked not in set(metrics):
        raise SettingError(f"--best {asked}{nearest(asked, [TRAIN_LOSS, LOSS, *metrics])}")
    if not has_rows:
        raise SettingError(
            f"--best {asked}: without validation rows this would choose by the test rows; keep "
            "some back (--set data.validation=0.15), or rank by train_loss"
        )
    return asked


def by_point(results: Sequence[Mapping[str, Any]], metric: str) -> list[dict[str, Any]]:
    """The finished runs by their settings but for the seed: the metric's mean and its spread, best
    first."""
    groups: dict[str, list[float]] = {}
    tests: dict[str, list[Mapping[str, Any]]] = {}
    settings: dict[str, Point] = {}
    for line in results:
        value = _value(line["last"], metric) if line["finished"] else None
        if value is not None:
            point = {key: v for key, v in line["settings"].items() if key != "engine.seed"}
            settings[name_of(point)] = point
            groups.setdefault(name_of(point), []).append(value)
            tests.setdefault(name_of(point), []).append(line["last"]["metrics"])
    points = [
        {
            "settings": settings[name],
            "mean": sum(values) / len(values),
            "lowest": min(values),
            "highest": max(values),
            "seeds": len(values),
            "test": {key: _mean([last.get(key) for last in tests[name]]) for key in tests[name][0]},
        }
        for name, values in groups.items()
    ]
    lower = smaller_is_better(metric)
    return sorted(points, key=lambda point: point["mean"] if lower else -point["mean"])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _value(last: Mapping[str, Any], metric: str) -> float | None:
    """Of the validation rows, or the training loss."""
    return last[metric] if metric == TRAIN_LOSS else (last.get("validation") or {}).get(metric)


def is_finished(folder: Path) -> bool:
    manifest = Manifest.read(folder)
    return manifest is not None and manifest.values["finished"] is not None


def settings_of(point: Point) -> Iterator[str]:
    for key, value in point.items():
        yield f"{key}={inline(value)}"


def name_of(point: Point) -> str:
    """A folder's name that says what is special about the run."""
    words = []
    for key, value in point.items():
        text = json.dumps(value) if isinstance(value, list | dict) else str(value)
        words.append(f"{key.split('.')[-1]}={re.sub(r'[^A-Za-z0-9.+-]+', '_', text).strip('_')}")
    return ",".join(words)
