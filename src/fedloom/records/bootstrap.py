"""How sure a test figure is: bootstrap intervals, and differences of two models on the same rows.

Test rows are drawn again with replacement, 1,000 times, and a metric is computed on each resample.
The interval is from the 2.5 to the 97.5 percentile. It says how much the figure would vary with
other test rows of the same kind; not with other training rows, or another seed.

All models see the same resamples, so they are compared in pairs. The work is bounded: of more than
10,000 rows, 10,000 are resampled, and the spread is scaled to the number there is (it goes with one
over the root). Metrics with a curve for each of several classes have fewer resamples, at least 200,
and beyond ten classes of fewer rows; so has a metric of your own, which is called on each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from ..core.errors import SettingError
from ..core.registry import metrics as registered
from ..core.rng import Streams
from .metrics import Array, Scored
from .weighted import WEIGHTED

RESAMPLES, FEWER = 1000, 200
MOST, FEWEST = 10_000, 10  # rows that are resampled; fewer rows have no interval
TAIL = 0.025
UNDEFINED = 0.05  # with a larger share of resamples without a value, there is no interval
AT_ONCE = 2**17  # numbers in a block of resamples: it stays in the processor's cache

Order = Literal["better", "worse", "not told apart"]


class Interval(NamedTuple):
    """A 95 % bootstrap interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Resampled:
    """A metric, and its value on every resample (NaN where that has none)."""

    value: float
    draws: Array

    @property
    def interval(self) -> Interval | None:
        return _interval(self.draws)

    def minus(self, other: Resampled) -> Difference:
        """The difference on the same resamples."""
        count = min(len(self.draws), len(other.draws))
        paired = self.draws[:count] - other.draws[:count]
        return Difference(self.value - other.value, _interval(paired))


class Difference(NamedTuple):
    """How much more one model has of a metric than another."""

    value: float
    interval: Interval | None

    def order(self, smaller_is_better: bool = False) -> Order:
        """Whether the first is better than the second, as far as the test rows tell."""
        if self.interval is None or self.interval.low <= 0 <= self.interval.high:
            return "not told apart"
        return "better" if (self.value > 0) != smaller_is_better else "worse"


def resampled(rows: Scored, names: Collection[str], seed: int = 0) -> dict[str, Resampled]:
    """Each of these metrics on resamples of the rows; those that are defined on the rows."""
    values = {name: registered[name](rows) for name in names}
    known = {name: value for name, value in values.items() if value is not None}
    found: dict[str, Resampled] = {}
    for wanted, most in _plans(known, rows):
        some = _some(rows, most, seed)
        draws = _draws(some, wanted, seed) if len(some.labels) >= FEWEST else {}
        scale = math.sqrt(len(some.labels) / len(rows.labels))
        for name in wanted:
            own = draws.get(name, np.empty(0))
            if some is not rows:
                centre = registered[name](some)
                own = known[name] + scale * (own - (math.nan if centre is None else centre))
            found[name] = Resampled(known[name], own)
    return {name: found[name] for name in known}


def mean(several: Sequence[Mapping[str, Resampled]]) -> dict[str, Resampled]:
    """Of silos that predict each by itself, the mean of those metrics that all of them have."""
    first, *others = several
    found = {}
    for name in first:
        if all(name in other for other in others):
            each = [one[name] for one in several]
            count = min(len(one.draws) for one in each)
            draws = np.mean([one.draws[:count] for one in each], axis=0)
            found[name] = Resampled(float(np.mean([one.value for one in each])), draws)
    return found


def intervals(found: Mapping[str, Resampled]) -> dict[str, Interval]:
    """The intervals of those metrics that have one."""
    return {name: one.interval for name, one in found.items() if one.interval is not None}


def counts(rows: int, seed: int, resamples: int = RESAMPLES) -> Iterator[Array]:
    """How often each row is in each resample, [resamples, rows], block by block."""
    stream = Streams(seed).common("bootstrap")
    block = max(1, AT_ONCE // rows)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = (stream.uniform(size * rows) * rows).astype(np.int64).reshape(size, rows)
        drawn += rows * np.arange(size)[:, None]
        flat = np.bincount(drawn.ravel(), minlength=size * rows)
        yield flat.reshape(size, rows).astype(np.float64)


def _plans(names: Collection[str], rows: Scored) -> Iterator[tuple[dict[str, int], int]]:
    """Metrics that are computed together: how many resamples each has, and of how many rows."""
    usual, curves = {}, {}
    classes = len(rows.by_class)
    for name in names:
        if name not in WEIGHTED:
            usual[name] = FEWER
        elif WEIGHTED[name].curves and classes > 1:
            curves[name] = max(FEWER, RESAMPLES // classes)
        else:
            usual[name] = RESAMPLES
    if usual:
        yield usual, MOST
    if curves:
        yield curves, MOST if classes <= 10 else 10 * MOST // classes


def _some(rows: Scored, most: int, seed: int) -> Scored:
    """The rows, or so many of them as are resampled."""
    size = len(rows.labels)
    if size <= most:
        return rows
    pick = np.sort(Streams(seed).common("bootstrap rows").sample(size, most))
    return replace(rows, scores=rows.scores[pick], labels=rows.labels[pick])


def _draws(rows: Scored, wanted: Mapping[str, int], seed: int) -> dict[str, Array]:
    """Each metric on so many resamples."""
    ready = {
        name: WEIGHTED[name].prepare(rows) if name in WEIGHTED else _one_by_one(name, rows)
        for name in wanted
    }
    found: dict[str, list[Array]] = {name: [] for name in wanted}
    done = 0
    for block in counts(len(rows.labels), seed, max(wanted.values())):
        for name, compute in ready.items():
            if (left := wanted[name] - done) > 0:
                found[name].append(compute(block[:left]))
        done += len(block)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _one_by_one(name: str, rows: Scored) -> Callable[[Array], Array]:
    """A metric that is known only as a function of rows."""
    places = np.arange(len(rows.labels))

    def of(count: Array) -> float:
        pick = np.repeat(places, count.astype(int))
        try:
            value = registered[name](
                replace(rows, scores=rows.scores[pick], labels=rows.labels[pick])
            )
        except SettingError:  # on a resample, say one without a class, it may be undefined
            value = None
        return math.nan if value is None else value

    return lambda block: np.array([of(count) for count in block])


def _interval(draws: Array) -> Interval | None:
    known = np.isfinite(draws)
    if not known.any() or known.mean() < 1 - UNDEFINED:
        return None
    low, high = np.quantile(draws[known], [TAIL, 1 - TAIL])
    return Interval(float(low), float(high))
