"""Progress on a terminal: a bar for every part of a run; plain lines where there is no terminal."""

from __future__ import annotations

import sys
from typing import TextIO

from tqdm import tqdm

from ..data.federated import Federated
from ..records.record import Record
from ..runs.job import Watcher
from ..runs.progress import Bar, said

STOPPING = "stopping after this round; once more stops at once"


class Quiet(Watcher):
    """Warnings only."""

    def damaged(self, why: str) -> None:
        tqdm.write(f"warning: {why}", file=sys.stderr)


def length(rounds: int, epochs: float) -> str:
    """How long a run is."""
    return f"{rounds} rounds, {epochs:.3g} epochs of the training rows"


class Bars(Quiet):
    """One bar a part."""

    def length(self, rounds: int, epochs: float) -> None:
        print(length(rounds, epochs), file=sys.stderr, flush=True)

    def data(self, data: Federated) -> None:
        for line in data.lines():
            print(line, file=sys.stderr, flush=True)

    def stopping(self) -> None:
        tqdm.write(STOPPING, file=sys.stderr)

    def part(self, name: str, rounds: int, done: int, metric: str | None) -> None:
        self._bar = Bar(rounds, done, True, metric, name)

    def round(self, done: int) -> None:
        self._bar.step(done)

    def record(self, record: Record) -> None:
        self._bar.say(record)

    def end(self) -> None:
        self._bar.close()


class Lines(Quiet):
    """A line now and then, for logs."""

    def __init__(self, out: TextIO | None = None):
        self._out = out or sys.stderr
        self._name, self._rounds, self._next = "", 0, 0
        self._metric: str | None = None

    def length(self, rounds: int, epochs: float) -> None:
        print(length(rounds, epochs), file=self._out, flush=True)

    def data(self, data: Federated) -> None:
        for line in data.lines():
            print(line, file=self._out, flush=True)

    def part(self, name: str, rounds: int, done: int, metric: str | None) -> None:
        self._name, self._rounds, self._next, self._metric = name, rounds, done, metric

    def stopping(self) -> None:
        print(STOPPING, file=self._out, flush=True)

    def record(self, record: Record) -> None:
        if record.round >= self._next:
            where = f"round {record.round} of {self._rounds}"
            print(
                f"{self._name}: {where}, {said(record, self._metric)}", file=self._out, flush=True
            )
            self._next = record.round + max(1, self._rounds // 5)
            self._next = min(self._next, max(self._rounds, record.round + 1))


def watcher(quiet: bool) -> Watcher:
    """Bars on a terminal, lines elsewhere."""
    if quiet:
        return Quiet()
    return Bars() if sys.stderr.isatty() else Lines()
