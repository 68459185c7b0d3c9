"""The figure, with the paper's axes: a panel for each `[[panel]]`, a band from lowest to highest
seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..report import style
from ..report.curves import Curve, draw, legend
from .experiment import Experiment
from .lines import FigureLine, Measure

DOTS = 90  # to the inch: a book holds many figures
COLUMNS = 2


def figure(experiment: Experiment, lines: Sequence[FigureLine], path: Path) -> None:
    """Draw what was recorded into a PNG."""
    panels = [p for p in experiment.description["panel"] if _at(lines, p)]
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    page = style.figure(9.5 if columns > 1 else 6.5, 0.8 + 3.1 * rows)
    grid = page.subplots(rows, columns, squeeze=False).flatten()
    shared: dict[str, Curve] = {}
    for axes, panel in zip(grid, panels, strict=False):
        shared |= {name: c for name, c in _panel(axes, panel, lines).items() if c.x}
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    legend(page, shared, None, True, min(4, len(shared)))
    path.parent.mkdir(parents=True, exist_ok=True)
    page.savefig(path, dpi=DOTS, metadata={"Software": None})
    _smaller(path)


def _at(lines: Sequence[FigureLine], panel: Mapping[str, Any]) -> list[FigureLine]:
    """The lines that belong to a panel: none where its curves were left out on purpose."""
    return [line for line in lines if line.setting.is_at(panel.get("where", {}))]


def _panel(axes: Any, panel: Mapping[str, Any], lines: Sequence[FigureLine]) -> dict[str, Curve]:
    """One panel; its curves by the names they have in the legend."""
    measure, where = Measure.of(panel), panel.get("where", {})
    curves = {line.setting.called(where): curve(line, measure) for line in _at(lines, panel)}
    if panel.get("until"):
        curves = {name: _until(c, panel["until"]) for name, c in curves.items()}
    for axis in panel.get("log", ""):  # before drawing, which leaves out what has no place there
        getattr(axes, f"set_{axis}scale")("log")
    if draw(axes, curves, measure.y, measure.x):  # type: ignore[arg-type]
        axes.set_title(panel.get("title", ""), fontsize=style.TEXT)
        for side in ("x", "y"):
            if f"{side}_label" in panel:
                getattr(axes, f"set_{side}label")(panel[f"{side}_label"], fontsize=style.TEXT)
        if "x" not in panel.get("log", ""):
            axes.locator_params(axis="x", integer=True)
        if panel.get("common"):  # so many times as far as all curves go
            end = panel["common"] * min(c.x[-1] for c in curves.values() if c.x)
            axes.set_xlim(-0.02 * end, min(axes.get_xlim()[1], end))
    return curves


def _until(c: Curve, end: float) -> Curve:
    count = sum(x <= end for x in c.x)
    return Curve(c.x[:count], c.y[:count], c.low[:count], c.high[:count], c.note)


def curve(line: FigureLine, measure: Measure) -> Curve:
    """The mean over seeds, where all have recorded, between the lowest and the highest."""
    xs, means, low, high = [], [], [], []
    for records in zip(*line.common(), strict=True):
        places = [x for r in records if (x := measure.place(r)) is not None]
        values = [y for r in records if (y := measure.value(r)) is not None]
        if len(values) == len(places) == len(records):
            xs.append(sum(places) / len(places))
            means.append(sum(values) / len(values))
            low.append(min(values))
            high.append(max(values))
    return Curve(xs, means, low, high)


def _smaller(path: Path) -> None:
    """Few colours are enough for lines."""
    from PIL import Image

    with Image.open(path) as image:
        plain = image.convert("RGB").quantize(64)
    plain.save(path, optimize=True)
