"""What came of a run, in a few sentences that are computed from its numbers.

Where the folder has predictions of the test rows, models are compared on the same resamples of
them: one is called better or worse only where the 95 % interval of the difference leaves out 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..models.threshold import HALF, in_words, is_rule
from ..records.bootstrap import Difference, Order, Resampled
from ..records.metrics import smaller_is_better
from .folder import RunFolder
from .words import (
    IN_PERCENT,
    LONE,
    OTHERS,
    PARTS,
    Record,
    between,
    full_name,
    part_name,
    points,
    rounds,
    silo_values,
    size,
    spread,
    value_of,
)

ORDERS: dict[Order, str] = {
    "better": "Better than that on these test rows",
    "not told apart": "Not told apart from it",
    "worse": "Worse",
}


def verdict(run: RunFolder) -> str:
    """The sentences."""
    metric, records = run.headline, run.records.get(run.main) or []
    if not records:
        return "Nothing is recorded yet."
    last, result = records[-1], run.result(run.main)
    subject = OTHERS.get(run.main, part_name(run, run.main)).removesuffix(" on the same budget")
    start = f"After {rounds(result['round'])} {subject} {_reaches(metric, result)}"
    if result is not last:
        start += f" (the best by validation rows; training went on to round {last['round']:,})"
    ranked = against(run)
    plain = [
        _other(_phrase(run, part), run.result(part), metric, result["round"])
        for part in OTHERS
        if part != run.main and run.records.get(part) and part not in ranked
    ]
    sentences = ["; ".join([start, ", ".join(plain)] if plain else [start]) + "."]
    for order, said in ORDERS.items():
        named = [
            _ranked(run, part, difference, order)
            for part, difference in ranked.items()
            if difference.order(smaller_is_better(metric)) == order
        ]
        sentences += [f"{said}: {', '.join(named)}."] * bool(named)
    return " ".join(sentences) + _worth(run) + _decided(run)


def _decided(run: RunFolder) -> str:
    """Above which probability rows are said to be of the second class, unless it is a half."""
    chosen = run.result(run.main).get("threshold")
    if chosen is None:
        return ""
    values = list(chosen.values()) if isinstance(chosen, Mapping) else [chosen]
    rule = (run.manifest.get("config") or {}).get("evaluation", {}).get("threshold", HALF)
    how = f", chosen on validation rows for {in_words(rule)}" if is_rule(rule) else ""
    number = spread("threshold", values)
    return f" A row is said to be of the second class above a probability of {number}{how}."


def against(run: RunFolder) -> dict[str, Difference]:
    """How much more of the headline each other part has than the main one, on the same rows; of
    silos that train alone, the best one."""
    main = _headline(run, run.main)
    if main is None:
        return {}
    found = {}
    for part in OTHERS:
        if part != run.main and part in run.records:
            other = _headline(run, part, best=True)
            if other is not None and main.interval is not None:
                found[part] = other.minus(main)
    return found


def _headline(run: RunFolder, part: str, best: bool = False) -> Resampled | None:
    """The headline on resamples; of lone silos their mean, or that of the `best`."""
    found, metric = run.predictions.get(part), run.headline
    if found is None or metric not in found.metrics:
        return None
    silos = [own[metric] for own in found.of_hubs([metric]).values() if metric in own]
    if best and found.alone:
        sign = -1 if smaller_is_better(metric) else 1
        return max(silos, key=lambda one: sign * one.value, default=None)
    return found.resampled([metric]).get(metric)


def _phrase(run: RunFolder, part: str) -> str:
    return part_name(run, part) if run.lone and part in LONE else OTHERS[part]


def _ranked(run: RunFolder, part: str, difference: Difference, order: Order) -> str:
    """A part with its value; one that is better, by how much."""
    metric, record = run.headline, run.result(part)
    values = _values(record, metric)
    phrase = _phrase(run, part)
    if len(silo_values(record, metric)) > 1:
        phrase = "the best silo alone"
        values = [min(values) if smaller_is_better(metric) else max(values)]
    said = f"{phrase} {spread(metric, values) if values else 'undefined'}"
    if order != "better" or difference.interval is None:
        return said
    sizes = sorted(abs(end) for end in difference.interval)
    amount = points(metric, [abs(difference.value)])
    return f"{said} (by {amount}, 95 % interval {spread(metric, sizes)})"


def _values(record: Record, metric: str) -> list[float]:
    """The silos' values where they train alone, else the one value; [] where undefined."""
    value = value_of(record, metric)
    return silo_values(record, metric) or ([] if value is None else [value])


def _reaches(metric: str, record: Record) -> str:
    values = _values(record, metric)
    if not values:
        return f"has no defined {full_name(metric)}"
    interval = _interval(metric, record) if len(values) == 1 else ""
    if metric in IN_PERCENT:
        return f"reaches {spread(metric, values)} {full_name(metric)}{interval}"
    return f"reaches a {full_name(metric)} of {spread(metric, values)}{interval}"


def _interval(metric: str, record: Record) -> str:
    said = between(metric, (record.get("intervals") or {}).get(metric))
    return f" (95 % interval {said})" if said else ""


def _other(phrase: str, record: Record, metric: str, after: int) -> str:
    values = _values(record, metric)
    said = f"{phrase} {spread(metric, values) if values else 'undefined'}"
    if record["round"] == after or not record["bytes"]:
        return said
    return f"{said} (after {rounds(record['round'])})"


def _worth(run: RunFolder) -> str:
    """What the exchange between silos brought, against scores combined without it."""
    metric, last = run.headline, run.records[run.main][-1]
    part = "no-exchange" if run.records.get("no-exchange") else "alone" if run.lone else ""
    records = run.records.get(part)
    if not records or run.main in PARTS or records[-1]["round"] != last["round"]:
        return ""
    own, other = value_of(run.result(run.main), metric), value_of(run.result(part), metric)
    if own is None or other is None or smaller_is_better(metric):
        return ""
    more = sum(last["bytes"].values()) - sum(records[-1]["bytes"].values())
    gain, cost = round(own - other, 3), size(max(0, more))
    main, without = _headline(run, run.main), _headline(run, part)
    interval: Sequence[float] = ()
    if main is not None and without is not None and main.interval is not None:
        difference = main.minus(without)
        if difference.order() == "not told apart":
            return (
                " Whether the exchange between silos helped cannot be told from these test rows; "
                f"it took {cost} more."
            )
        interval = difference.interval or ()
    if gain <= 0:
        return f" The exchange between silos ({cost} more to send) did not help here."
    amount = points(metric, [gain])
    if interval:
        amount += f" (95 % interval {spread(metric, interval)})"
    return f" The exchange between silos added {amount} and took {cost} more."
