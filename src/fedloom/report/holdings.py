"""A figure of who holds what: a panel for each silo, its features, its clients' rows by class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.extras import need
from ..core.rng import Floats
from . import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS = 20  # up to so many clients there is a bar for each
KEYS = 20  # up to so many classes there is a key for each
LINE = 44  # letters in a line over a panel
WIDTH = 3.6  # inches
SMALL = 9

# Okabe and Ito's colours, which colour-blind people can tell apart.
OKABE_ITO = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#000000",
)
TEST, UNKNOWN = "#DDDDDD", "#8C8C8C"


def holdings(summary: Mapping[str, Any], path: Path | None = None, narrow: bool = False) -> Figure:
    """Draw what `Federated.summary()` says; with a path, save it there too. `narrow`: the silos one
    under the other.

    Up to 20 clients a silo: a bar each. Above: a thin column each, those with the same main class
    together, most training rows first. Test rows are grey, beyond the training rows.
    """
    need("report", "a figure")
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    silos: Mapping[str, Mapping[str, Any]] = summary["silos"]
    classes = _classes(summary)
    colours = _colours(len(classes))
    across = 2 if len(silos) == 4 else min(len(silos), 3 if len(silos) <= 9 else 4)
    across = 1 if narrow else across
    down = math.ceil(len(silos) / across)
    heights = [
        max(map(_height, list(silos.values())[row * across : (row + 1) * across]))
        for row in range(down)
    ]
    figure = Figure(
        figsize=(max(style.NARROW, WIDTH * across), sum(heights) + 1.2 + 0.02 * len(classes)),
        layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08),
    )
    panels = figure.subplots(down, across, squeeze=False, height_ratios=heights).flatten()
    for panel, (silo, holding) in zip(panels, silos.items(), strict=False):
        _panel(
            panel, silo, holding, colours if classes == [] or _has_classes(holding) else [UNKNOWN]
        )
    for panel in panels[len(silos) :]:
        panel.set_axis_off()
    bars = [
        p
        for p, holding in zip(panels, silos.values(), strict=False)
        if len(holding["clients"]) <= BARS
    ]
    widest = max((panel.get_xlim()[1] for panel in bars), default=1.0)
    for panel in bars:  # the same length is the same number of rows in every silo
        panel.set_xlim(0, widest)
    rows = summary["rows"]
    title = f"{summary['name']}: {rows['train']:,} training rows, {rows['test']:,} test rows"
    figure.suptitle(title, fontsize=SMALL + 2)
    unknown = bool(classes) and not all(map(_has_classes, silos.values()))
    _key(figure, panels, classes, colours, unknown, test=rows["test"] > 0)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _classes(summary: Mapping[str, Any]) -> list[str]:
    """Names of classes; none where the goal is a number."""
    counts = [holding["classes"] for holding in summary["silos"].values() if _has_classes(holding)]
    if not counts:
        return []
    count = len(next(iter(counts[0].values())))
    named = list(summary["classes"])
    return [str(named[k]) if k < len(named) else str(k) for k in range(count)]


def _has_classes(holding: Mapping[str, Any]) -> bool:
    """Whether a silo knows the classes of its rows."""
    return bool(holding["labels"] and holding["classes"])


def _colours(count: int) -> list[Any]:
    """One for each class, or the only one."""
    if count <= len(OKABE_ITO):
        return list(OKABE_ITO[: max(1, count)])
    from matplotlib import colormaps

    return list(colormaps["viridis"](np.linspace(0, 1, count)))


def _height(holding: Mapping[str, Any]) -> float:
    clients = len(holding["clients"])
    return 1.0 + (0.19 * max(3, clients) if clients <= BARS else 1.9)


def _panel(panel: Axes, silo: str, holding: Mapping[str, Any], colours: Sequence[Any]) -> None:
    names = list(holding["clients"])
    train = np.array([holding["clients"][name][0] for name in names], dtype=float)
    test = np.array([holding["clients"][name][1] for name in names], dtype=float)
    by_class = (
        np.array([holding["classes"][name] for name in names], dtype=float).T
        if _has_classes(holding)
        else train[None]
    )
    panel.set_title(_title(silo, holding), fontsize=SMALL, loc="left")
    panel.tick_params(labelsize=SMALL)
    panel.spines[["top", "right"]].set_visible(False)
    if len(names) <= BARS:
        _bars(panel, names, by_class, test, colours)
    else:
        order = _order(by_class)
        _profile(panel, by_class[:, order], test[order], colours)


def _bars(
    panel: Axes, names: Sequence[str], by_class: Floats, test: Floats, colours: Sequence[Any]
) -> None:
    """A bar for each client, from the top."""
    places = np.arange(len(names))
    reached = np.zeros(len(names))
    for rows, colour in [*zip(by_class, colours, strict=True), (test, TEST)]:
        panel.barh(places, rows, left=reached, color=colour, height=0.75)
        reached = reached + rows
    panel.set_yticks(places, [_short(name, 16) for name in names])
    panel.set_ylim(max(3, len(names)) - 0.5, -0.5)
    panel.set_xlim(0, max(1.0, 1.02 * reached.max()))
    panel.xaxis.set_major_locator(_few(4))
    panel.set_xlabel("rows", fontsize=SMALL)


def _profile(panel: Axes, by_class: Floats, test: Floats, colours: Sequence[Any]) -> None:
    """A thin column for each client."""
    edges = np.arange(len(test) + 1)
    reached = np.zeros(len(test))
    for rows, colour in [*zip(by_class, colours, strict=True), (test, TEST)]:
        panel.stairs(
            reached + rows,
            edges,
            baseline=reached,
            fill=True,
            color=colour,
            linewidth=0,
            antialiased=False,
        )
        reached = reached + rows
    panel.set_xlim(0, len(test))
    panel.set_ylim(0, max(1.0, 1.02 * reached.max()))
    panel.xaxis.set_major_locator(_few(5))
    panel.yaxis.set_major_locator(_few(4))
    how = "main class and rows" if len(by_class) > 1 else "training rows"
    panel.set_xlabel(f"{len(test):,} clients, by {how}", fontsize=SMALL)
    panel.set_ylabel("rows", fontsize=SMALL)


def _order(by_class: Floats) -> Any:
    """Clients by the class of which they have most rows, then by their number of rows."""
    return np.lexsort((-by_class.sum(axis=0), by_class.argmax(axis=0)))


def _few(ticks: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(ticks, integer=True)


def _title(silo: str, holding: Mapping[str, Any]) -> str:
    """Over a panel: the silo, its clients, its features."""
    clients, shape, columns = len(holding["clients"]), holding["shape"], list(holding["columns"])
    who = f"{clients:,} client{'s' if clients > 1 else ''}"
    labels = "" if holding["labels"] else ", no labels"
    size = " x ".join(map(str, shape))
    what = f"{size} column{'s' if shape != [1] else ''}" if len(shape) == 1 else f"features {size}"
    return f"{_short(silo, 22)}: {who}{labels}\n{what}\n{_listed(columns)}".rstrip()


def _listed(columns: Sequence[str]) -> str:
    """As many names as a line has room for."""
    line = ""
    for k, name in enumerate(columns):
        more = f"{line}, {_short(name, 20)}" if line else _short(name, 20)
        if len(more) + (5 if k + 1 < len(columns) else 0) > LINE:
            return f"{line}, ..."
        line = more
    return line


def _short(text: str, letters: int) -> str:
    """Text cut to a length, free of what matplotlib would take for mathematics."""
    text = " ".join(text.split())
    text = text if len(text) <= letters else text[: letters - 1] + "\u2026"
    return text.replace("$", r"\$")


def _key(
    figure: Figure,
    panels: Any,
    classes: Sequence[str],
    colours: Sequence[Any],
    unknown: bool,
    test: bool,
) -> None:
    """What the colours mean; `unknown`: some silos have no labels."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    marks: list[Patch] = [Patch(color=TEST, label="test rows")] if test else []
    if unknown:
        marks = [Patch(color=UNKNOWN, label="without labels"), *marks]
    if len(classes) > KEYS:
        edges = np.arange(len(classes) + 1) - 0.5
        scale = ScalarMappable(BoundaryNorm(edges, len(classes)), ListedColormap(colours))
        ticks = np.arange(0, len(classes), math.ceil(len(classes) / 10))
        bar = figure.colorbar(
            scale, ax=panels, location="bottom", ticks=ticks, aspect=60, fraction=0.04, pad=0.03
        )
        bar.set_label("training rows by class (number)", fontsize=SMALL)
        bar.ax.tick_params(labelsize=SMALL)
    else:
        pairs = zip(classes, colours, strict=False)
        marks = [Patch(color=colour, label=_short(name, 14)) for name, colour in pairs] + marks
        if not classes:
            marks = [Patch(color=colours[0], label="training rows"), *marks]
    if marks:
        longest = max(len(str(mark.get_label())) for mark in marks)
        columns = int(figure.get_figwidth() / (0.45 + 0.075 * longest))
        figure.legend(
            handles=marks,
            loc="outside lower center",
            ncols=max(1, min(len(marks), columns)),
            fontsize=SMALL,
            title="training rows by class" if 0 < len(classes) <= KEYS else None,
            title_fontsize=SMALL,
            frameon=False,
            columnspacing=1.2,
            handlelength=1.2,
        )
