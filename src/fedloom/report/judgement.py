"""Figures of predictions: ROC, precision by recall, calibration, confusion, predicted by true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import style
from .judged import Judged, bins, precision_recall, roc, two_sided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLASSES = 20  # of a confusion matrix that can be read
CURVES = 7  # one-against-all curves that can be told apart
CROWD = 1500  # points beyond which their density is drawn
BLUES = ("#FFFFFF", "#CFE3F1", "#7FB5DA", style.BLUE, "#00395A")
LONGEST = 16  # letters of a class on an axis


def pair(narrow: bool, above: float = 0.0) -> tuple[Figure, Any, Any]:
    """A figure with two panels, beside or below each other."""
    height = 2 * 3.7 + above if narrow else 4.1 + above
    figure = style.figure(style.width(narrow), height)
    one, two = figure.subplots(2, 1) if narrow else figure.subplots(1, 2)
    style.tidy(one)
    style.tidy(two)
    return figure, one, two


def curves(parts: Mapping[str, Judged], narrow: bool = False) -> Figure | None:
    """ROC and precision by recall: of every part where there are two classes; of the main part, by
    class, where there are more."""
    main = next(iter(parts.values()))
    if not two_sided(main):
        return None
    binary = main.rows.goal == "binary"
    drawn = _by_part(parts) if binary else _by_class(main)
    above = 0.3 + 0.22 * len(drawn) if narrow else 0.3 + 0.22 * -(-len(drawn) // 2)
    figure, left, right = pair(narrow, above)
    for index, (positive, scores) in enumerate(drawn.values()):
        look = style.line(index)._asdict() | {"marker": "", "linewidth": 1.4}
        if binary and not index:
            look |= {"linewidth": 2.2, "zorder": 3}
        left.plot(*roc(positive, scores), **look)
        right.step(*precision_recall(positive, scores), where="post", **look)
    left.plot([0, 1], [0, 1], color=style.GREY, linewidth=1, linestyle=":")
    left.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.03))
    right.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.03))
    _named(left, "false alarms: share of the others", "found: share of the class", "ROC")
    _named(right, "found (recall)", "right when said (precision)", "precision by recall")
    if binary:
        base = float(main.shares[1])
        right.axhline(base, color=style.GREY, linewidth=1, linestyle=":")
        low = base < 0.85
        right.text(
            0.0,
            base + (0.015 if low else -0.015),
            f"base rate {100 * base:.0f} %",
            color=style.GREY,
            fontsize=style.SMALL,
            va="bottom" if low else "top",
        )
    _legend(figure, list(drawn), 1 if narrow else 2)
    return figure


def _by_part(parts: Mapping[str, Judged]) -> dict[str, tuple[Any, Any]]:
    return {of.name: of.rows.by_class[0] for of in parts.values() if two_sided(of)}


def _by_class(of: Judged) -> dict[str, tuple[Any, Any]]:
    """Each class against the others; of many, those that are found least well."""
    from ..records.scoring import area_under_roc

    z, y = of.rows.scores, of.rows.labels
    odds = z - np.logaddexp.reduce(z, axis=1)[:, None]
    found = {c: (y == c, odds[:, c]) for c in range(z.shape[1]) if 0 < (y == c).sum() < len(y)}
    areas = {c: area_under_roc(*curve) for c, curve in found.items()}
    worst = sorted(sorted(areas, key=lambda c: areas[c])[:CURVES])
    return {f"{of.class_name(c)} (AUROC {areas[c]:.3f})": found[c] for c in worst}


def calibration(main: Judged, narrow: bool = False) -> Figure | None:
    """What is said, by what came true; and how often each probability is given."""
    if not np.isfinite(main.rows.scores).all():
        return None
    figure, left, right = pair(narrow)
    groups = bins(main)
    left.plot([0, 1], [0, 1], color=style.GREY, linewidth=1, linestyle=":")
    said, true = [g.said for g in groups], [g.true for g in groups]
    # rounding may leave an end of an interval a hair inside
    ends = np.maximum(0.0, [[g.true - g.low for g in groups], [g.high - g.true for g in groups]])
    left.errorbar(
        said, true, ends, color=style.BLUE, marker="o", markersize=5, markerfacecolor="white",
        linewidth=1.6, elinewidth=1.0, capsize=2,
    )  # fmt: skip
    left.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.03))
    binary = main.rows.goal == "binary"
    what = main.class_name(1) if binary else "the class that it says"
    _named(left, f"probability given to {_short(what, 24)}", "share that is", "calibration")
    colours, edges = (style.SKY, style.ORANGE), np.linspace(0, 1, 21)
    happened = main.came_true
    labels = ("is not", "is") if binary else ("wrong", "right")
    right.hist(
        [main.likely[happened], main.likely[~happened]], edges, stacked=True,
        color=list(colours), label=[labels[1], labels[0]], edgecolor="white", linewidth=0.5,
    )  # fmt: skip
    _named(right, f"probability given to {_short(what, 24)}", "test rows", "how often it is given")
    right.legend(frameon=False, fontsize=style.SMALL)
    return figure


def confusion(main: Judged, narrow: bool = False) -> Figure | None:
    """Rows by true class and by the class that is said; colours are shares of the true class."""
    from matplotlib.colors import LinearSegmentedColormap

    count = main.outputs
    if count > MOST_CLASSES:
        return None
    table = main.confusion
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    width = style.width(narrow)
    side = min(width - 1.6, max(2.6, 0.42 * count + 0.8))
    figure = style.figure(width if narrow else min(width, side + 2.6), side + 1.1)
    axes = figure.subplots()
    colours = LinearSegmentedColormap.from_list("shares", BLUES)
    axes.imshow(shares, cmap=colours, vmin=0, vmax=1)
    size = style.SMALL if count <= 10 else 6.0
    percent = count <= (3 if narrow else 6)
    for (true, said), rows in np.ndenumerate(table):
        share = shares[true, said]
        text = f"{rows:,}\n{100 * share:.0f} %" if percent else f"{rows:,}" if rows else ""
        colour = "white" if share > 0.55 else style.BLACK
        axes.text(said, true, text, ha="center", va="center", fontsize=size, color=colour)
    names = [style.plain(_short(main.class_name(c), LONGEST)) for c in range(count)]
    tilt = 90 if max(map(len, names)) * count > (24 if narrow else 60) else 0
    axes.set_xticks(range(count), names, rotation=tilt, fontsize=size)
    axes.set_yticks(range(count), names, fontsize=size)
    axes.tick_params(length=0)
    axes.set_xlabel("said to be", fontsize=style.TEXT)
    axes.set_ylabel("is", fontsize=style.TEXT)
    return figure


def errors(main: Judged, narrow: bool = False) -> Figure | None:
    """Predicted by true, and how far they are apart; of the first label where there are several."""
    from matplotlib.colors import LinearSegmentedColormap

    true, said = main.rows.labels[:, 0], main.rows.predicted[:, 0]
    if not np.isfinite(said).all():
        return None
    figure, left, right = pair(narrow)
    low, high = float(min(true.min(), said.min())), float(max(true.max(), said.max()))
    edge = 0.04 * (high - low or 1.0)
    if len(true) > CROWD:
        colours = LinearSegmentedColormap.from_list("rows", BLUES[1:])
        left.hexbin(
            true, said, gridsize=45, bins="log", mincnt=1, cmap=colours, linewidths=0,
            extent=(low, high, low, high),
        )  # fmt: skip
    else:
        left.plot(true, said, "o", markersize=4, color=style.BLUE, alpha=0.45, markeredgewidth=0)
    left.plot([low, high], [low, high], color=style.GREY, linewidth=1, linestyle=":")
    left.set(xlim=(low - edge, high + edge), ylim=(low - edge, high + edge))
    _named(left, "true", "predicted", "predicted by true")
    residuals = said - true
    right.hist(residuals, min(40, max(8, len(true) // 8)), color=style.SKY, edgecolor="white")
    right.axvline(0, color=style.GREY, linewidth=1, linestyle=":")
    _named(right, "predicted minus true", "test rows", "errors")
    return figure


def _named(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xlabel(style.plain(x), fontsize=style.TEXT)
    axes.set_ylabel(style.plain(y), fontsize=style.TEXT)
    axes.set_title(title, loc="left", fontsize=style.TEXT, fontweight="bold")


def _legend(figure: Figure, names: Sequence[str], columns: int) -> None:
    from matplotlib.lines import Line2D

    looks = [style.line(i)._asdict() | {"marker": "", "linewidth": 1.8} for i in range(len(names))]
    figure.legend(
        [Line2D([], [], **look) for look in looks],
        [style.plain(_short(name, 44)) for name in names],
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=style.SMALL,
        handlelength=3.6,
    )


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}\u2026"
