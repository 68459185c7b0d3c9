"""The report of a run: one HTML file that needs no other, and its figures as PNGs beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.extras import need
from ..privacy.settings import ASSUMED
from ..privacy.spending import in_words
from . import bars, costs, judgement, quality, style, tables, words
from . import silos as contributions
from .curves import Axis, banded, close_up, panels
from .folder import RunFolder, read_run
from .judged import Judged, judged
from .style import Image
from .verdict import verdict

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

AXES: tuple[Axis, ...] = ("round", "iteration", "time", "bytes")
NAMES = (
    *("metric", "end", "metrics", "loss", "holdings", "ledger", "parts", "delays"),
    *("curves", "calibration", "confusion", "errors", "contributions"),
)  # of figures


def write_report(folder: Path) -> Path:
    """Write report.html and figures/*.png into a run folder; returns the path of the page."""
    need("report", "a report")
    folder = Path(folder)
    run = read_run(folder)
    page = folder / "report.html"
    page.write_text(render(run, figures(run, folder / "figures")), encoding="utf-8")
    return page


def figures(run: RunFolder, folder: Path) -> dict[str, Image]:
    """Draw what there is to draw, by name; PNGs of an earlier report go."""
    for name in NAMES:
        (folder / f"{name}.png").unlink(missing_ok=True)
    named = {words.part_name(run, part): records for part, records in run.records.items()}
    curved = any(len(records) > 1 for records in named.values())
    draw: dict[str, Callable[[bool], Figure | None]] = {}
    if run.metrics and curved:
        draw["metric"] = partial(panels, named, [(run.headline, axis) for axis in AXES])
        draw["end"] = partial(close_up, named, run.headline)
    if len(run.metrics) > 1 and curved:
        others = [(metric, AXES[0]) for metric in run.metrics[1:]]
        draw["metrics"] = partial(panels, named, others)
    if curved:
        losses = [("train_loss", axis) for axis in _loss_axes(run)]
        draw["loss"] = partial(panels, named, losses)
    if run.data.get("silos"):
        from .holdings import holdings

        draw["holdings"] = partial(holdings, dict(run.data), None)
    if run.main in run.ledgers:
        draw["ledger"] = partial(costs.by_kind, run.ledgers[run.main])
    if old := delays(run):
        draw["delays"] = partial(bars.histogram, old, "age of an embedding, in turns of the master")
    if len(run.ledgers) > 1:
        draw["parts"] = partial(
            costs.by_part, {words.part_name(run, p): v for p, v in run.ledgers.items()}
        )
    draw |= _judged_figures(judged(run))
    if added := contributions.additions(run):
        draw["contributions"] = partial(contributions.bars, added, run.headline)
    drawn = {name: style.save(figure, folder / f"{name}.png") for name, figure in draw.items()}
    return {name: image for name, image in drawn.items() if image is not None}


def _judged_figures(parts: Mapping[str, Judged]) -> dict[str, Callable[[bool], Figure | None]]:
    """What the predictions of test rows are shown by."""
    if not parts:
        return {}
    main = next(iter(parts.values()))
    if main.rows.goal == "number":
        return {"errors": partial(judgement.errors, main)}
    return {
        "curves": partial(judgement.curves, parts),
        "calibration": partial(judgement.calibration, main),
        "confusion": partial(judgement.confusion, main),
    }


def _loss_axes(run: RunFolder) -> tuple[Axis, ...]:
    """The loss is drawn on all axes where it is all there is."""
    return ("round", "bytes") if run.metrics else AXES


def render(run: RunFolder, images: Mapping[str, Image]) -> str:
    """The page, with its figures."""
    return (
        environment()
        .get_template("template.html.j2")
        .render(
            run=run,
            manifest=run.manifest,
            when=words.when,
            main=words.part_name(run, run.main),
            captions=captions(run),
            verdict=verdict(run),
            status=words.status(run),
            headline=words.full_name(run.headline),
            finals=tables.finals(run),
            metrics=[words.metric_name(metric) for metric in run.metrics],
            values=tables.values(run),
            about=tables.about(run),
            quality=quality_of(run),
            added=contributions.sentences(run, contributions.additions(run)),
            skipped=skipped(run),
            privacy=privacy(run),
            notes=(run.records.get(run.main) or [{}])[-1].get("notes") or {},
            silos=tables.silos(run.data),
            costs={
                words.part_name(run, part): tables.cost(ledger)
                for part, ledger in run.ledgers.items()
            },
            images=images,
        )
    )


def captions(run: RunFolder) -> dict[str, str]:
    """What depends on the run in what stands under its figures."""
    named = {words.part_name(run, part): records for part, records in run.records.items()}
    left_out = ", ".join(banded(named, run.headline))
    alone = any(len(record["by_silo"]) > 1 for part in named.values() for record in part)
    return {
        "end": f", without the curve with a band ({left_out})" if left_out else "",
        "loss": "; where silos train alone, the mean over silos" if alone else "",
    }


@cache
def environment() -> Environment:
    """Templates beside this file; everything that goes into a page is escaped."""
    from jinja2 import Environment, PackageLoader

    return Environment(
        loader=PackageLoader("fedloom.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def delays(run: RunFolder) -> list[int]:
    """How many embeddings were 0, 1, 2, ... turns old when the master worked with them."""
    records = run.records.get(run.main) or []
    return (records[-1].get("notes") or {}).get("delays") or [] if records else []


def privacy(run: RunFolder) -> list[str]:
    """What was spent of a privacy budget, and what any promise rests on."""
    records = run.records.get(run.main) or []
    spent = records[-1].get("privacy") if records else None
    if spent is None:
        return []
    return [in_words(spent), *(ASSUMED if spent["guarantee"] else ())]


def quality_of(run: RunFolder) -> dict[str, Any]:
    """Whose predictions are shown, and what is said of them."""
    parts = judged(run)
    if not parts:
        return {}
    main = next(iter(parts.values()))
    several = main.rows.goal == "number" and main.rows.labels.shape[1] > 1
    return {
        "name": main.name,
        "rows": f"{main.size:,}",
        "sentences": quality.sentences(main),
        "binary": main.rows.goal == "binary",
        "first": " The first of several labels is drawn." if several else "",
    }


def skipped(run: RunFolder) -> list[str]:
    """Silos that the run was to be trained without, and could not be."""
    silos = list(run.data.get("silos") or {})
    return [silo for silo in silos if run.retrained and silo not in run.retrained]
