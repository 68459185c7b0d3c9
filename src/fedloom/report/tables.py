"""The tables of a page: results, metrics, who holds what, what was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import costs, words
from .folder import RunFolder


def about(run: RunFolder) -> list[tuple[str, str]]:
    """What the baselines are, in the order of the table."""
    return [
        (words.part_name(run, part), words.ABOUT[part])
        for part in run.records
        if part != run.main and part in words.ABOUT
    ]


def finals(run: RunFolder) -> list[dict[str, str]]:
    """The headline of every part: of the model that is kept, and the best; and what it cost."""
    rows = []
    for part, records in run.records.items():
        if not records:
            continue
        last, result = records[-1], run.result(part)
        top = words.best(records, run.headline)
        silos = words.silo_values(result, run.headline)
        pooled = (last.get("notes") or {}).get("pooled")  # it has no rounds, and sends nothing
        row = {
            "part": words.part_name(run, part),
            "rounds": f"{last['round']:,}",
            "final": words.show(run.headline, words.value_of(result, run.headline)),
            "spread": words.spread(run.headline, silos) if len(silos) > 1 else "",
            "interval": words.between(run.headline, interval(result, run.headline)),
            "best": words.show(run.headline, top[0]) if top else "undefined",
            "best_round": f"{top[1]:,}" if top else "",
            "loss": words.show("train_loss", words.value_of(result, "train_loss")),
            "bottom": words.size(last["bytes"].get("bottom", 0)),
            "top": words.size(last["bytes"].get("top", 0)),
            "time": _amount(last.get("time")),
            "wall": _amount(last.get("wall")),
        }
        if pooled:
            epochs = f"{last['round']:,} epochs" if last["round"] else words.DASH
            nothing = dict.fromkeys(("best", "best_round", "bottom", "top", "time"), words.DASH)
            row |= {"rounds": epochs, **nothing}
        rows.append(row)
    return rows


def interval(record: Mapping[str, Any], metric: str) -> Any:
    """The interval of a metric, where one is recorded."""
    return (record.get("intervals") or {}).get(metric)


def _amount(value: Any) -> str:
    amount = words.number(value)
    return words.DASH if amount is None else f"{amount:,.1f}" if amount < 100 else f"{amount:,.0f}"


def values(run: RunFolder) -> list[tuple[str, bool, list[tuple[str, str]]]]:
    """The last value of every metric: (part or silo, whether it is a silo, values with their
    intervals)."""
    rows = []
    for part, records in run.records.items():
        if not records:
            continue
        last = run.result(part)
        shown = [
            (words.show(m, words.value_of(last, m)), words.between(m, interval(last, m)))
            for m in run.metrics
        ]
        silos = last["by_silo"] if len(last["by_silo"]) > 1 else {}
        rows.append((words.part_name(run, part) + (" (mean)" if silos else ""), False, shown))
        found = run.predictions.get(part)
        by_hub = found.of_hubs() if found is not None and silos else {}
        for silo, silo_values in silos.items():
            own = []
            for m in run.metrics:
                one = by_hub.get(silo, {}).get(m)
                ends = None if one is None else one.interval
                own.append(
                    (words.show(m, words.number(silo_values.get(m))), words.between(m, ends))
                )
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


def cost(ledger: Mapping[str, Any]) -> list[dict[str, Any]]:
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
