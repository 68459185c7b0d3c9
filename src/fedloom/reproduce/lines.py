"""The lines of a figure: one for each setting, with the records of a run for each seed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..report import words
from ..report.curves import at
from .experiment import Setting

Floats = npt.NDArray[np.float64]
LATE = 0.1  # of the range: what `last` is the mean of


@dataclass(frozen=True)
class Measure:
    """What is plotted: a metric `y` against `x`. With `t_comm`, time is the paper's: a round costs
    3 t_comm and a unit for each local step."""

    y: str
    x: str = "round"
    t_comm: float | None = None

    @staticmethod
    def of(table: Mapping[str, Any]) -> Measure:
        return Measure(table["y"], table.get("x", "round"), table.get("t_comm"))

    def place(self, record: Mapping[str, Any]) -> float | None:
        if self.x == "time" and self.t_comm is not None:
            return 3 * self.t_comm * record["round"] + record["iteration"]
        return at(record, self.x)  # type: ignore[arg-type]

    def value(self, record: Mapping[str, Any]) -> float | None:
        if self.y == "time":
            return at(record, "time")
        return words.value_of(record, self.y)

    @property
    def falls(self) -> bool:
        """Whether smaller is better."""
        return words.smaller_is_better(self.y)

    def points(self, records: Iterable[Mapping[str, Any]]) -> tuple[Floats, Floats]:
        pairs = [(self.place(record), self.value(record)) for record in records]
        finite = [(x, y) for x, y in pairs if x is not None and y is not None]
        xs, ys = np.array(finite, dtype=np.float64).reshape(-1, 2).T
        return xs, ys


@dataclass(frozen=True)
class FigureLine:
    """A setting and the records of its runs, by seed. `diverged`: the seeds whose training
    diverged; their records before that stay."""

    setting: Setting
    runs: Mapping[int, Sequence[Mapping[str, Any]]]
    diverged: frozenset[int] = frozenset()

    def end(self, measure: Measure) -> float:
        """How far all its runs go."""
        return min(float(measure.points(run)[0].max(initial=0)) for run in self.runs.values())

    def values(self, measure: Measure, until: float, stat: str) -> Floats:
        """A number for every seed: the `mean` of the curve from 0 to `until`, its `last` tenth, the
        `best` on the way, or how `rough` its second half is (the deviation of its steps). NaN for a
        run that diverged."""
        numbers = []
        for seed, run in self.runs.items():
            xs, ys = measure.points(run)
            if seed in self.diverged or not len(xs):
                numbers.append(float("nan"))
                continue
            before = xs < until
            xs, ys = (
                np.append(xs[before], until),
                np.append(ys[before], np.interp(until, xs, ys)),
            )
            if stat == "best":
                numbers.append(float(ys.min() if measure.falls else ys.max()))
            elif stat == "rough":
                numbers.append(float(np.diff(ys[xs >= until / 2]).std()))
            else:
                begin = xs[0] if stat == "mean" else max(xs[0], (1 - LATE) * until)
                numbers.append(_height(xs, ys, begin))
        return np.array(numbers)

    def common(self) -> list[list[Mapping[str, Any]]]:
        """The records of every run, of the rounds that all have."""
        shared = set.intersection(*({r["round"] for r in run} for run in self.runs.values()))
        return [[r for r in run if r["round"] in shared] for run in self.runs.values()]


def _height(xs: Floats, ys: Floats, begin: float) -> float:
    """The mean height of a curve from `begin` to its end."""
    after = xs > begin
    x = np.concatenate([[begin], xs[after]])
    y = np.concatenate([[np.interp(begin, xs, ys)], ys[after]])
    if len(x) == 1:
        return float(y[0])
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / (x[-1] - x[0]))


def as_csv(lines: Sequence[FigureLine]) -> str:
    """All that was recorded: a row for every evaluation."""
    metrics = list(
        dict.fromkeys(
            name
            for line in lines
            for run in line.runs.values()
            for r in run
            for name in r["metrics"]
        )
    )
    axes = list(lines[0].setting.place) if lines else []
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow([*axes, "seed", "round", "iteration", "time", "wall", "train_loss", *metrics])
    for line in lines:
        for seed, run in line.runs.items():
            for r in run:
                row = [r["round"], r["iteration"], r["time"], r["wall"], r["train_loss"]]
                numbers = [r["metrics"].get(name) for name in metrics]
                table.writerow([*line.setting.place.values(), seed, *row, *numbers])
    return out.getvalue()
