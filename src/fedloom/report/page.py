"""The report of a run: one HTML file that needs no other, and its figures as PNGs beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.extras import need
from ..privacy.settings import ASSUMED
from ..privacy.spending import in_words
from . import bars, costs, style, words
from .curves import Axis, banded, close_up, panels
from .folder import RunFolder, judged, read_run
from .style import Image

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

AXES: tuple[Axis, ...] = ("round", "iteration", "time", "bytes")


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
    for name in ("metric", "end", "metrics", "loss", "holdings", "ledger", "parts", "delays"):
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
    drawn = {name: style.save(figure, folder / f"{name}.png") for name, figure in draw.items()}
    return {name: image for name, image in drawn.items() if image is not None}


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
            verdict=words.verdict(run),
            status=words.status(run),
            headline=words.full_name(run.headline),
            finals=finals(run),
            metrics=[words.metric_name(metric) for metric in run.metrics],
            values=values(run),
            privacy=privacy(run),
            notes=(run.records.get(run.main) or [{}])[-1].get("notes") or {},
            silos=silos(run.data),
            costs={
                words.part_name(run, part): _cost(ledger) for part, ledger in run.ledgers.items()
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


def finals(run: RunFolder) -> list[dict[str, str]]:
    """The headline of every part: last and best value, loss, and what it cost."""
    rows = []
    for part, records in run.records.items():
        if not records:
            continue
        last, top = records[-1], words.best(records, run.headline)
        result = judged(records)
        silos = words.silo_values(result, run.headline)
        rows.append(
            {
                "part": words.part_name(run, part),
                "rounds": f"{last['round']:,}",
                "final": words.show(run.headline, words.value_of(result, run.headline)),
                "spread": words.spread(run.headline, silos) if len(silos) > 1 else "",
                "best": words.show(run.headline, top[0]) if top else "undefined",
                "best_round": f"{top[1]:,}" if top else "",
                "loss": words.show("train_loss", words.value_of(result, "train_loss")),
                "bottom": words.size(last["bytes"].get("bottom", 0)),
                "top": words.size(last["bytes"].get("top", 0)),
                "time": _amount(last.get("time")),
                "wall": _amount(last.get("wall")),
            }
        )
    return rows


def _amount(value: Any) -> str:
    amount = words.number(value)
    return words.DASH if amount is None else f"{amount:,.1f}" if amount < 100 else f"{amount:,.0f}"


def values(run: RunFolder) -> list[tuple[str, bool, list[str]]]:
    """Every metric of the model that was kept: (part or silo, whether it is a silo, values)."""
    rows = []
    for part, records in run.records.items():
        if not records:
            continue
        last = judged(records)
        shown = [words.show(metric, words.value_of(last, metric)) for metric in run.metrics]
        silos = last["by_silo"] if len(last["by_silo"]) > 1 else {}
        rows.append((words.part_name(run, part) + (" (mean)" if silos else ""), False, shown))
        for silo, silo_values in silos.items():
            own = [words.show(m, words.number(silo_values.get(m))) for m in run.metrics]
            rows.append((silo, True, own))
    return rows


def silos(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Who holds what, silo by silo, in words."""
    rows = []
    for silo, holding in (data.get("silos") or {}).items():
        counts = [pair[0] for pair in holding["clients"].values()]
        shape, columns = holding.get("shape") or [], holding.get("columns") or []
        rows.append(
            {
                "silo": silo,
                "clients": f"{len(counts):,}",
                "rows": _range(counts),
                "features": f" {words.TIMES} ".join(map(str, shape)) or "1",
                "columns": ", ".join(map(str, columns)),
                "labels": "yes" if holding.get("labels") else "no",
            }
        )
    return rows


def _range(counts: Sequence[int]) -> str:
    ends = [f"{end:,}" for end in sorted({min(counts, default=0), max(counts, default=0)})]
    return words.DASH.join(ends)


def _cost(ledger: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tier by tier: lines and their sum."""
    items, sums = costs.items(ledger), costs.by_tier(ledger)
    return [
        {
            "tier": name,
            "lines": [
                {**i._asdict(), "messages": f"{i.messages:,}", "bytes": words.size(i.bytes)}
                for i in items
                if i.tier == tier
            ],
            "messages": f"{sums[tier][0]:,}",
            "bytes": words.size(sums[tier][1]),
        }
        for tier, name in words.TIERS.items()
    ]
