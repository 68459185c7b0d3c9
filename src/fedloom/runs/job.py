"""A run in a folder: records, checkpoints, report; it can be stopped, killed and resumed.

    run.toml  manifest.json  partition.json  records.jsonl  ledger.json  schedule.json
    checkpoint.safetensors and the one before it  model/  report.html
    predictions.safetensors  baselines/NAME/{records.jsonl, ledger.json, ...}

Every part (the run itself, each baseline) trains to its end before the next begins. A part that was
stopped goes on from its checkpoint, and its records are then those of an uninterrupted run: rounds
draw from streams named by their number, and records later than the checkpoint are made again.
"""

from __future__ import annotations

import signal
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from ..config.runfile import RunFile
from ..core.errors import (
    DamagedError,
    DamagedWarning,
    DataError,
    ExistsError,
    FedLoomError,
    HaltedWarning,
    InterruptedRun,
    NotFiniteError,
    SettingError,
)
from ..core.files import LOCK, SHARED, locked, make_folder, write_json, write_text
from ..data.federated import Federated
from ..data.partition.partition import Cut
from ..engines.multiprocess.ranks import Ranks
from ..fabric.kinds import ABOUT
from ..records.history import CHECKPOINT, Checkpoints
from ..records.manifest import Manifest
from ..records.predictions import Predictions
from ..records.record import Record, append_record, result_of, write_records
from ..records.writers import Writer, open_writers
from . import contributions
from .build import build_data
from .callbacks import Callback
from .divergence import check_divergence, cure
from .parts import Parts, all_parts
from .pooled.baseline import Pooled
from .pooled.part import train_pooled
from .run import Run
from .warm_restart import folder_of, warm_restart


class Watcher:
    """Told how a job goes on; what a terminal or a notebook shows is derived from it."""

    def data(self, data: Federated) -> None:
        """The rows are there; nothing has been trained yet."""

    def length(self, rounds: int, epochs: float) -> None:
        """How long a run is, at most."""

    def part(self, name: str, rounds: int, done: int, metric: str | None) -> None:
        """A part begins, perhaps not from its start; `metric` is the one to judge it by."""

    def round(self, done: int) -> None:
        """A round is done."""

    def record(self, record: Record) -> None:
        """The model was evaluated."""

    def stopping(self) -> None:
        """Somebody asked to stop: the round that is going on is the last."""

    def damaged(self, why: str) -> None:
        """A file is not what was written, and an earlier one takes its place."""
        warnings.warn(why, DamagedWarning, stacklevel=2)

    def end(self) -> None:
        """The part is over."""


@dataclass
class Job:
    """A run file and the folder it writes to."""

    file: RunFile
    folder: Path
    watcher: Watcher = field(default_factory=Watcher)
    ranks: Ranks | None = None  # of which this process is the first, and the one that writes
    _stop: bool = False

    @staticmethod
    def new(
        file: RunFile, folder: Path, watcher: Watcher | None = None, ranks: Ranks | None = None
    ) -> Job:
        """A job that has not begun. A folder that already holds a run is refused."""
        if any((folder / name).exists() for name in ("manifest.json", "run.toml", CHECKPOINT)):
            begun = Manifest.read(folder)
            done = begun is not None and begun.values["finished"] is not None
            cure = f"go on with it (fedloom run --resume {folder}), or "
            raise ExistsError(
                f"{folder} already holds a {'finished ' if done else ''}run: "
                f"{'' if done else cure}name another folder (--out)"
            )
        if folder.exists() and (not folder.is_dir() or {p.name for p in folder.iterdir()} - {LOCK}):
            raise ExistsError(f"{folder} already exists and is not empty: name another (--out)")
        return Job(file, folder, watcher or Watcher(), ranks)

    @staticmethod
    def resume(folder: Path, watcher: Watcher | None = None, ranks: Ranks | None = None) -> Job:
        """A job that was begun before."""
        if not (folder / "run.toml").is_file():
            raise DataError(f"{folder} holds no run to resume (no run.toml)")
        return Job(RunFile.read(folder / "run.toml"), folder, watcher or Watcher(), ranks)

    @staticmethod
    def more(file: RunFile, folder: Path, rounds: int, watcher: Watcher | None = None) -> Job:
        """A finished job that goes on for so many rounds more. `file`: what it was run from."""
        return Job(warm_restart(file, folder, rounds), folder, watcher or Watcher())

    def go(self) -> dict[str, Run | Pooled]:
        """Train every part that is not at its end yet."""
        data = self._data()
        # everything is checked before anything is written
        parts = all_parts(self.file, data, self.ranks)
        make_folder(self.folder, SHARED)
        with locked(self.folder), self._interruptible():
            manifest = self._begin(data, parts)
            self._meet()
            self.watcher.data(data)
            self.watcher.length(*length_of(self.file, data))
            try:
                for number, (name, run) in enumerate(parts.runs.items()):
                    self._train(name, run, number == 0)
                for name, baseline in parts.pooled.items():
                    train_pooled(self, name, baseline)
            except (InterruptedRun, KeyboardInterrupt):
                manifest.stopped(self.folder)
                raise
            except FedLoomError as problem:
                manifest.failed(self.folder, str(problem))
                raise
            parts.main.save(self.folder / "model")
            runs = parts.runs.items()
            halted = {name: run.halted for name, run in runs if run.halted is not None}
            best = {name: run.best._asdict() for name, run in runs if run.best is not None}
            manifest.finished(self.folder, halted, best)
        return {**parts.runs, **parts.pooled}

    def folder_of(self, name: str, main: bool) -> Path:
        return folder_of(self.folder, name, main)

    def _data(self) -> Federated:
        saved = self.folder / "partition.json"
        data = build_data(self.file, Cut.load(saved) if saved.is_file() else None)
        begun = Manifest.read(self.folder)
        if begun is not None and begun.values["sources"] != dict(data.sources):
            raise DataError(f"{self.folder}: the data have changed since this run began")
        self.file = self.file.of_rows(data.train.size)
        return data

    def _begin(self, data: Federated, parts: Parts) -> Manifest:
        begun = Manifest.read(self.folder)
        if begun is not None:
            return begun
        write_text(self.folder / "run.toml", self.file.to_toml(), SHARED)
        if data.cut is not None:
            data.cut.save(self.folder / "partition.json")
        loss, (_, epochs) = parts.main.task.loss, length_of(self.file, data)
        return Manifest.begun(self.file, data, parts.names, self.folder, epochs, loss)

    def _meet(self) -> None:
        """From here on the folder is as all ranks find it."""
        digest = zlib.crc32(self.file.replaced("output", folder=None).to_toml().encode())
        if self.ranks is not None and not self.ranks.same("the run file", digest):
            raise SettingError("the ranks were given different run files")

    def _train(self, name: str, run: Run, main: bool) -> None:
        folder = self.folder_of(name, main)
        make_folder(folder, SHARED)
        output = self.file.output
        title = f"{output.title or self.folder.name} {name}"
        with open_writers(output.asked_writers, folder, title, self.file.to_dict()) as writers:
            part = JobRun(self, name, run, folder, writers)
            part.restore()
            self.watcher.part(name, self.file.rounds, run.round, run.headline)
            try:
                part.train()
                part.finish(contributions.wanted(self.file, run) if main else False)
            finally:
                self.watcher.end()

    def stop(self) -> None:
        """Stop after the round that is going on, and save it."""
        self._stop = True

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether somebody asked this process to stop."""
        return self._stop

    @property
    def stopping(self) -> bool:
        """Whether somebody asked to stop; one of all ranks is enough."""
        if self.ranks is None:
            return self._stop
        return any(self.ranks.numbers("stopping", self._stop))

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C and a polite kill stop after the round that is going on; twice, at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if self._stop:
                raise KeyboardInterrupt(
                    f"stopped at once; go on from the last checkpoint with "
                    f"fedloom run --resume {self.folder}"
                )
            self._stop = True
            self.watcher.stopping()

        before = {sign: signal.signal(sign, ask) for sign in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sign, handler in before.items():
                signal.signal(sign, handler)


def length_of(file: RunFile, data: Federated) -> tuple[int, float]:
    """Rounds and epochs, at most."""
    rows = data.train.size
    return file.of_rows(rows).rounds, file.epochs_of(rows)


@dataclass
class JobRun(Callback):
    """One run of a job in its own folder."""

    job: Job
    name: str
    run: Run
    folder: Path
    writers: list[Writer]
    saved: int = -1  # the round of the checkpoint on disk

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.folder)

    def restore(self) -> None:
        """Back to the last checkpoint that is whole; records that are newer are forgotten, and made
        again."""
        problems: list[DamagedError] = []
        checkpoint = self.checkpoints.latest(problems.append)
        if checkpoint is not None:
            for problem in problems:
                why = f"{problem}. Going on from the one before, of round {checkpoint.round}"
                self.job.watcher.damaged(why)
            self.run.restore(checkpoint.snapshot(self.run.blank()))
            self.run.records, self.run.wall = list(checkpoint.records), checkpoint.wall
            begun = Manifest.read(self.job.folder)
            if begun is not None and begun.more_from(self.name) == self.run.round:
                self.run.renew_patience()
            self.saved = checkpoint.round
        ranks = self.job.ranks
        if ranks is not None and not ranks.same("the checkpoint", self.saved + 1):
            raise DataError(
                f"{self.checkpoints.newest}: not all ranks see it; they need a folder they share"
            )
        self._rewrite()

    def train(self) -> None:
        rounds = self.job.file.rounds
        try:
            if not self.run.records:
                self._record()
            if self.run.round < rounds:
                self._fit(rounds)
            if self.run.halted is not None:
                if self.run.records[-1].round < self.run.round:
                    self._record()
                if self.saved < self.run.round:
                    self._save()
        finally:
            self._ledger()

    def finish(self, replaced: bool) -> None:
        """Judge what came of it: predictions of the test rows, and intervals of the metrics.
        `replaced`: also with each silo's embedding replaced by its mean."""
        found = self.run.predictions(self.job.file.evaluation.rows)
        if found is not None:
            self._judge(found, replaced)

    def _judge(self, found: Predictions, replaced: bool) -> None:
        if replaced:
            found = replace(found, without=contributions.replaced(self.run))
        found.save(self.folder)
        judged, ends = result_of(self.run.records), found.intervals()
        self.run.records = [
            replace(record, intervals=ends if record is judged else None)
            for record in self.run.records
        ]
        self._rewrite()

    def _fit(self, rounds: int) -> None:
        try:
            with warnings.catch_warnings(action="ignore", category=HaltedWarning):
                self.run.fit(rounds, callbacks=[self])
        except NotFiniteError as problem:
            raise NotFiniteError(f"{problem}: {cure(self.run)}") from problem

    def on_round(self, run: Run) -> None:
        file, last = self.job.file, run.round == self.job.file.rounds
        self.job.watcher.round(run.round)
        evaluated = run.round % file.every == 0 or last
        if evaluated:
            self._record()
        if run.round % file.checkpoint_every == 0 or last:
            self._save()
        if evaluated:
            check_divergence(run, file.evaluation.diverged)
        if self.job.stopping and not last:
            if self.saved != run.round:
                self._save()
            raise InterruptedRun(
                f"stopped after round {run.round} of {file.rounds}; go on with "
                f"fedloom run --resume {self.job.folder}"
            )

    def _rewrite(self) -> None:
        write_records(self.folder / "records.jsonl", self.run.records)

    def _record(self) -> None:
        record = self.run.add_record(self.job.file.evaluation.rows)
        append_record(self.folder / "records.jsonl", record)
        for writer in self.writers:
            writer.write(record)
        self.job.watcher.record(record)

    def _save(self) -> None:
        run = self.run
        self.checkpoints.save(run.snapshot(), run.records, run.wall)
        self.saved = run.round

    def _ledger(self) -> None:
        lines = [
            {**line._asdict(), "about": ABOUT.get(line.kind, ""), "messages": n, "bytes": size}
            for line, (n, size) in self.run.ledger.lines().items()
        ]
        ledger = {"rounds": self.run.round, "lines": lines}
        write_json(self.folder / "ledger.json", ledger, SHARED)
        write_json(self.folder / "schedule.json", self.run.record.to_json(), SHARED)
