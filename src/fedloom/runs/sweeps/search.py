"""A search by Optuna: settings are drawn from ranges, and poor runs are stopped on the way.

    DIR/sweep.json   what was asked for
    DIR/study.log    Optuna's own storage
    DIR/NAME/        a run's folder, for each point that was tried

Starting the same search again goes on with it: the study remembers finished runs, and those that
were going on are resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config.runfile import RunFile
from ...core.errors import SettingError
from ...core.extras import need
from ...core.files import make_folder
from ...records.metrics import smaller_is_better
from ...records.record import Record, read_records
from ..processes import Started
from .sweep import (
    TRAIN_LOSS,
    Point,
    claim,
    is_finished,
    name_of,
    result,
    settings_of,
    started,
    values_by_key,
    write_file,
)

SAMPLERS = ("tpe", "random")
WARM = 5  # finished runs before others are compared with them on the way
AGAIN = 20  # points that are drawn before another is waited for
FAILED = "exit code"
RANGE = {"low", "high", "log"}


@dataclass
class Trial:
    """A run that is going on. `told`: the round of the last record that the study knows."""

    trial: Any
    name: str
    process: Started
    told: int = 0
    is_stopped: bool = False


@dataclass
class Search:
    """`space`: for each key, a list of values or a range {low, high, log}. `trials`: in all."""

    file: Path
    overrides: tuple[str, ...]
    space: Mapping[str, Any]
    sampler: str
    trials: int
    metric: str
    folder: Path
    _study: Any = field(init=False, default=None)

    @staticmethod
    def of(
        file: Path,
        overrides: Sequence[str],
        grid: Sequence[str],
        sampler: str,
        trials: int,
        metric: str,
        out: Path,
    ) -> Search:
        """`grid` are texts "section.key=[value, ...]" or "section.key={low = 1, high = 9}"."""
        need("optuna", "--search")
        if trials < 1:
            raise SettingError(f"--trials must be at least 1, not {trials}")
        space = {}
        for key, values, text in values_by_key(grid):
            _check_range(values, text)
            space[key] = values
        if not space:
            raise SettingError("--search needs what to search over: --grid section.key=...")
        search = Search(file, tuple(overrides), space, sampler, trials, metric, out)
        for end in (0, -1):  # both ends of each range, before anything is run
            search.run_file({key: _ends(values)[end] for key, values in space.items()})
        return search

    def run_file(self, point: Point) -> RunFile:
        return RunFile.read(self.file, (*self.overrides, *settings_of(point)))

    def go(self, jobs: int, tell: Callable[[str, int], None]) -> None:
        """Until so many trials have ended, `jobs` at a time."""
        wanted: dict[str, Any] = {"file": self.file.read_text(), "set": list(self.overrides)}
        wanted |= {"space": dict(self.space), "search": self.sampler, "metric": self.metric}
        claim(self.folder, wanted)
        make_folder(self.folder / "files")
        self._open()
        running: dict[int, Trial] = {}
        try:
            while True:
                while len(running) < jobs and self._ended() + len(running) < self.trials:
                    begun = self._begin(jobs, {trial.name for trial in running.values()})
                    if begun is None:  # no other point is left while these run
                        break
                    running[begun.trial.number] = begun
                if not running:
                    return
                for number, one in list(running.items()):
                    self._watch(one)
                    if one.process.poll() is not None:
                        tell(one.name, self._end(one))
                        del running[number]
                time.sleep(0.05)
        finally:
            for one in running.values():  # each saves what it has done
                one.process.terminate()
            for one in running.values():
                one.process.wait()

    def results(self) -> list[dict[str, Any]]:
        """A line for every run of the study: its keys, and the record that it is judged by."""
        points = {name_of(point): point for point in self._points()}
        return [result(self.folder, name, point) for name, point in points.items()]

    def _points(self) -> Iterator[Point]:
        for trial in self._study.trials:
            if set(trial.params) == set(self.space):
                yield {key: trial.params[key] for key in self.space}

    # The study

    def _open(self) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = RunFile.read(self.file, self.overrides).engine.seed
        samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        self._study = optuna.create_study(
            study_name=self.folder.name,
            storage=JournalStorage(JournalFileBackend(str(self.folder / "study.log"))),
            sampler=samplers[self.sampler](seed=seed + len(list(self.folder.glob("files/*.toml")))),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=WARM),
            direction="minimize" if smaller_is_better(self.metric) else "maximize",
            load_if_exists=True,
        )
        for trial in self._study.trials:  # of a search that was killed
            if trial.state == optuna.trial.TrialState.RUNNING:
                self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                if set(trial.params) == set(self.space):
                    self._study.enqueue_trial(trial.params)

    def _ended(self) -> int:
        """Points that were tried to their end, or as long as it was worth while, or that failed."""
        return sum(
            trial.state.name in ("COMPLETE", "PRUNED") or FAILED in trial.user_attrs
            for trial in self._study.trials
        )

    def _begin(self, jobs: int, running: set[str]) -> Trial | None:
        from optuna.trial import TrialState

        for _ in range(AGAIN):
            trial = self._study.ask()
            point = {key: _suggest(trial, key, values) for key, values in self.space.items()}
            name = name_of(point)
            if name not in running:
                write_file(self.folder, name, self.run_file(point))
                return Trial(trial, name, started(self.folder, name, jobs))
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def _watch(self, one: Trial) -> None:
        """Tell the study what is new; stop a run that is worse than most were by then."""
        for record in self._records(one.name):
            value = self._value(record)
            if record.round > one.told and value is not None:
                one.trial.report(value, record.round)
                one.told = record.round
        if one.told and not one.is_stopped and one.trial.should_prune():
            one.is_stopped = True
            one.process.terminate()  # once: it ends after its round

    def _end(self, one: Trial) -> int:
        """The run's exit code, or 0 where it was stopped on the way."""
        from optuna.trial import TrialState

        code = one.process.wait()
        self._watch(one)
        line = result(self.folder, one.name, {})
        if is_finished(self.folder / one.name):
            value = self._value(Record.from_json(line["last"]))
            state = TrialState.FAIL if value is None else TrialState.COMPLETE
            self._study.tell(one.trial, value, state=state)
            return code
        if not one.is_stopped:
            one.trial.set_user_attr(FAILED, code)
        self._study.tell(one.trial, state=TrialState.PRUNED if one.is_stopped else TrialState.FAIL)
        return 0 if one.is_stopped else code

    def _records(self, name: str) -> list[Record]:
        path = self.folder / name / "records.jsonl"
        return read_records(path) if path.is_file() else []

    def _value(self, record: Record) -> float | None:
        if self.metric == TRAIN_LOSS:
            return record.train_loss
        return (record.validation or {}).get(self.metric)


def _check_range(values: Any, text: str) -> None:
    """A list of values, or a range of numbers."""
    if isinstance(values, list) and values:
        if not all(isinstance(value, int | float | str) for value in values):
            raise SettingError(f"--grid {text}: a search takes numbers, texts, true and false")
        return
    form = "section.key=[value, ...] or section.key={low = 0.001, high = 1.0, log = true}"
    if not isinstance(values, Mapping) or not {"low", "high"} <= set(values) <= RANGE:
        raise SettingError(f"--grid {text}: {form} is expected")
    low, high, log = values["low"], values["high"], values.get("log", False)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high))
    if not numbers or not low < high or not isinstance(log, bool) or (log and low <= 0):
        raise SettingError(f"--grid {text}: low < high are expected, above 0 if log = true")


def _ends(values: Any) -> Any:
    return values if isinstance(values, list) else [values["low"], values["high"]]


def _suggest(trial: Any, key: str, values: Any) -> Any:
    if isinstance(values, list):
        return trial.suggest_categorical(key, values)
    whole = isinstance(values["low"], int) and isinstance(values["high"], int)
    draw = trial.suggest_int if whole else trial.suggest_float
    return draw(key, values["low"], values["high"], log=values.get("log", False))
