"""Curves: a metric, or the training loss, against rounds, iterations, time units or bytes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ..core.errors import DataError, nearest
from . import style, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Axis = Literal["round", "iteration", "time", "bytes"]
AXES: dict[str, str] = {
    "round": "communication rounds",
    "iteration": "local iterations",
    "time": "time units",
    "bytes": "sent in all",
}
LOWEST_R2 = (
    -0.5
)  # below, a model is far worse than the mean: the curve would be all there is to see
LABEL, ABOVE = 34, 60  # characters of a line in the legend, to the right of curves and above


class Curve(NamedTuple):
    """Points in order; `low` and `high` where there is a band around them. `note` says of what.
    `level`: a value without rounds, a line across the figure."""

    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    note: str = ""
    level: bool = False

    @property
    def banded(self) -> bool:
        return self.low != self.high

    def beyond_zero(self) -> Curve:
        """Without the points that have no place on a logarithmic scale."""
        keep = [place > 0 for place in self.x]
        x, y, low, high = (list(compress(column, keep)) for column in self[:4])
        return Curve(x, y, low, high, self.note)

    def across(self, curves: Iterable[Curve]) -> Curve:
        """A level from where the others begin to where they end."""
        places = [place for other in curves if not other.level for place in other.x]
        if not self.level or not self.x or not places:
            return self
        y = [self.y[0], self.y[0]]
        return self._replace(x=[min(places), max(places)], y=y, low=y, high=y)


def at(record: Mapping[str, Any], axis: Axis) -> float | None:
    """Where a record stands on an axis; None where that was not recorded."""
    if axis == "bytes":
        sent = record.get("bytes")
        return float(sum(sent.values())) if isinstance(sent, Mapping) and sent else None
    return words.number(record.get(axis))


def curve(records: Sequence[Mapping[str, Any]], metric: str, axis: Axis) -> Curve:
    """The curve of one part; a band from the worst to the best silo where silos train alone."""
    if records and (records[0].get("notes") or {}).get("pooled"):
        level = words.value_of(records[-1], metric)
        values = [] if level is None else [level]
        return Curve([0.0] * len(values), values, values, values, level=True)
    points = []
    for record in records:
        x, y = at(record, axis), words.value_of(record, metric)
        if x is not None and y is not None:
            silos = words.silo_values(record, metric) or [y]
            points.append((x, y, min(silos), max(silos)))
    xs, ys, low, high = ([point[i] for point in points] for i in range(4))
    made = Curve(xs, ys, low, high)
    return made._replace(note="mean; band: worst to best silo") if made.banded else made


def curves(runs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str, axis: Axis) -> Figure:
    """Records of several parts or runs, by the names they are to have, in one figure."""
    if axis not in get_args(Axis):
        raise DataError(f"axis: {axis!r}{nearest(axis, get_args(Axis))}")
    return drawn(
        {name: curve(records, metric, axis) for name, records in runs.items()}, metric, axis
    )


def drawn(curves: Mapping[str, Curve], metric: str, axis: Axis, narrow: bool = False) -> Figure:
    """One figure, the legend to its right (or above), in the order in which the curves end."""
    width = ABOVE if narrow else LABEL
    labels = [_label(name, c, metric, width) for name, c in curves.items() if c.x]
    lines = 0.3 + 0.17 * sum(label.count("\n") + 1.4 for label in labels)
    figure = style.figure(style.width(narrow), 3.2 + lines if narrow else max(4.6, lines))
    axes = figure.subplots()
    if draw(axes, curves, metric, axis):
        legend(figure, curves, metric, narrow)
    return figure


def panels(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    which: Sequence[tuple[str, Axis]],
    narrow: bool = False,
) -> Figure:
    """Several (metric, axis) side by side, two in a row (or one), one legend above."""
    columns = 1 if narrow else min(2, len(which))
    rows = math.ceil(len(which) / columns)
    above = 0.4 + 0.25 * len(runs) if narrow else 0.9
    figure = style.figure(style.width(narrow), above + (2.8 if narrow else 3.1) * rows)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    shared: dict[str, Curve] = {name: Curve([], [], [], []) for name in runs}
    for axes, (metric, axis) in zip(grid, which, strict=False):
        curves = {name: curve(records, metric, axis) for name, records in runs.items()}
        draw(axes, curves, metric, axis)
        shared.update((name, c) for name, c in curves.items() if c.x and not shared[name].note)
    for axes in grid[len(which) :]:
        axes.set_axis_off()
    same = {metric for metric, _ in which}
    legend(figure, shared, same.pop() if len(same) == 1 else None, True, 1 if narrow else 2)
    return figure


def banded(runs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str) -> list[str]:
    """The names of curves with a band, from the worst to the best silo."""
    return [name for name, records in runs.items() if curve(records, metric, "round").banded]


def close_up(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str, narrow: bool = False
) -> Figure | None:
    """The second half of the rounds, enlarged, without curves with a band, which would need too
    much room; None where there is not enough to enlarge."""
    curves, left_out = {}, banded(runs, metric)
    for name, records in runs.items():
        last = records[-1]["round"] if records else 0
        late = [record for record in records if 2 * record["round"] >= last]
        curves[name] = curve([] if name in left_out else late, metric, "round")
    starts = [c.x[0] for c in curves.values() if len(c.x) > 2]
    if not starts:
        return None
    figure = style.figure(style.width(narrow), 3.2 + 0.25 * len(curves) if narrow else 3.4)
    axes = figure.subplots()
    draw(axes, curves, metric, "round")
    axes.set_xlim(left=min(starts) - 0.02 * (axes.get_xlim()[1] - min(starts)))
    legend(figure, curves, metric, narrow)
    return figure


def draw(axes: Any, curves: Mapping[str, Curve], metric: str, axis: Axis) -> bool:
    """Draw curves on one matplotlib axes; False where there was nothing to draw."""
    style.tidy(axes)
    if not any(c.x for c in curves.values()):
        style.empty(axes, f"{words.full_name(metric)} against\n{AXES[axis]}: not recorded")
        return False
    factor = 100 if metric in words.IN_PERCENT else 1
    unit = _x_scale(axes, {name: c for name, c in curves.items() if not c.level}, axis)
    if axes.get_xscale() == "log":
        curves = {name: c if c.level else c.beyond_zero() for name, c in curves.items()}
    curves = {name: c.across(curves.values()) for name, c in curves.items()}
    for index, c in enumerate(curves.values()):
        line = style.line(index)
        x = [value / unit for value in c.x]
        look = _line(line) | ({"linewidth": 1.2, "marker": ""} if c.level else {})
        marks = None if c.level else _marks(len(x), index)
        axes.plot(x, [factor * value for value in c.y], **look, markevery=marks)
        if c.banded:
            low, high = ([factor * value for value in side] for side in (c.low, c.high))
            axes.fill_between(x, low, high, color=line.color, alpha=0.15, linewidth=0)
    if axes.get_xscale() == "linear":
        end = axes.dataLim.x1 or 1
        axes.set_xlim(-0.02 * end, 1.03 * end)
    _y_scale(axes, curves, metric)
    return True


def _x_scale(axes: Any, curves: Mapping[str, Curve], axis: Axis) -> float:
    """Label the x axis; returns what its values are divided by. Bytes that differ by far are drawn
    on a logarithmic scale."""
    from matplotlib.ticker import MaxNLocator

    if axis != "bytes":
        axes.set_xlabel(AXES[axis], fontsize=style.TEXT)
        if axis != "time":
            axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))
        return 1.0
    ends = [c.x[-1] for c in curves.values() if c.x and c.x[-1] > 0]
    power = words.size_power(max(ends, default=0.0))
    wide = bool(ends) and max(ends) > 20 * min(ends)
    scale = ", logarithmic" if wide else ""
    label = f"{AXES[axis]}, {words.size_unit(power)}{scale}"
    silent = [name for name, c in curves.items() if c.x and not c.x[-1]]
    if silent and ends:
        names = style.plain(", ".join(silent))
        label = "\n".join([label, *textwrap.wrap(f"sent nothing: {names}", 50)])
    axes.set_xlabel(label, fontsize=style.TEXT)
    if wide:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return 1000.0**power


def _y_scale(axes: Any, curves: Mapping[str, Curve], metric: str) -> None:
    label = words.full_name(metric) + (", %" if metric in words.IN_PERCENT else "")
    values = [value for c in curves.values() for value in (*c.low, *c.high)]
    if metric == "r2" and min(values) < LOWEST_R2:
        axes.set_ylim(LOWEST_R2, max(max(values), 0.0) + 0.05)
        label += f" (from {LOWEST_R2:g} up)"
    if words.smaller_is_better(metric) and min(values) > 0 and max(values) > 20 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        label += ", logarithmic"
    axes.set_ylabel(label, fontsize=style.TEXT)


def _line(line: style.Line) -> dict[str, Any]:
    return {**line._asdict(), "linewidth": 1.8, "markersize": 5, "markerfacecolor": "white"}


def _marks(points: int, index: int) -> tuple[int, int]:
    """Some six markers a curve, not all at the same place."""
    every = max(1, points // 6)
    return (index % every, every)


def legend(
    figure: Figure,
    curves: Mapping[str, Curve],
    metric: str | None,
    above: bool = False,
    columns: int = 1,
) -> None:
    """Names to the right of the data, or above; with a metric, each with its last value, the
    highest first."""
    from matplotlib.lines import Line2D

    lines = {name: style.line(index) for index, name in enumerate(curves)}
    names = [name for name, c in curves.items() if c.x]
    if metric is not None:
        names.sort(key=lambda name: -curves[name].y[-1])
    figure.legend(
        [
            Line2D([], [], **_line(lines[name]) | ({"marker": ""} if curves[name].level else {}))
            for name in names
        ],
        [_label(name, curves[name], metric, ABOVE if above else LABEL) for name in names],
        loc="outside upper left" if above else "outside right upper",
        ncols=columns,
        frameon=False,
        fontsize=style.SMALL,
        handlelength=3.6,
        labelspacing=0.6,
    )


def _label(name: str, c: Curve, metric: str | None, width: int = LABEL) -> str:
    value = "" if metric is None else f"{words.show(metric, c.y[-1])}  "
    note = f"({c.note})" if c.note else ""
    text = value + style.plain(name)
    if len(text) + len(note) < width:
        return f"{text} {note}".strip()
    lines = textwrap.wrap(text, width, break_on_hyphens=False) + textwrap.wrap(note, width)
    return "\n".join(lines)
