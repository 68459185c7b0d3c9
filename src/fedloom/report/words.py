"""Numbers and names as people read them, and the verdict in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..records.metrics import smaller_is_better as smaller_is_better
from .folder import RunFolder, judged

Record = Mapping[str, Any]

DASH, MINUS, TIMES = "\u2013", "\u2212", "\u00d7"

PARTS = {
    "central": "pooled (central)",
    "alone": "silos alone",
    "no-exchange": "silos alone, scores combined",
}
ALGORITHMS = {
    "tdcd": "TDCD",
    "tdcd-private-labels": "TDCD with private labels",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedbcd": "FedBCD",
    "splitnn": "SplitNN",
    "splitnn-u": "U-shaped SplitNN",
    "splitnn-async": "asynchronous SplitNN",
    "vafl": "VAFL",
    "hyfem-avg": "HyFEM-Avg",
    "hyfem-prox": "HyFEM-Prox",
}
OTHERS = {
    "central": "the pooled model",
    "no-exchange": "the silos' scores combined without exchange",
    "alone": "a silo alone",
}
LONE = ("alone", "no-exchange")
METRICS = {
    "accuracy": "accuracy",
    "top5": "top-5 accuracy",
    "f1": "F1",
    "precision": "precision",
    "recall": "recall",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "r2": "R²",
    "mse": "mean squared error",
    "train_loss": "training loss",
    "local_accuracy": "accuracy of the clients' own models",
    "local_auroc": "AUROC of the clients' own models",
    "local_r2": "R² of the clients' own models",
}
IN_PERCENT = {"accuracy", "top5", "local_accuracy"}
TIERS = {"bottom": "inside silos", "top": "between hubs"}


def part_name(run: RunFolder, part: str) -> str:
    """What a part of a run, an algorithm or a baseline, is called on the page."""
    if run.lone is not None and part in LONE:
        return f"silo {run.lone} alone"
    return PARTS.get(part) or ALGORITHMS.get(part, part)


def metric_name(metric: str) -> str:
    return METRICS.get(metric, metric)


def full_name(metric: str) -> str:
    """With what it is measured on: 'test accuracy', but 'training loss'."""
    return metric_name(metric) if metric == "train_loss" else f"test {metric_name(metric)}"


def number(value: Any) -> float | None:
    """A finite number, or None: null, NaN and infinity are all 'undefined'."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def show(metric: str, value: float | None, unit: bool = True) -> str:
    """A value of a metric: '96.2 %', '0.931', 'undefined'."""
    if value is None:
        return "undefined"
    if metric in IN_PERCENT:
        return f"{100 * value:.1f}" + (" %" if unit else "")
    if abs(value) >= 100:
        return f"{value:,.0f}".replace("-", MINUS)
    if smaller_is_better(metric):
        return f"{value:.3g}"
    return f"{value:.3f}".replace("-", MINUS)


def size(count: float) -> str:
    """Bytes: '1.2 MB', '3.4 kB'. Powers of 1000."""
    power = size_power(count)
    scaled = count / 1000**power
    digits = 0 if power == 0 or scaled >= 99.95 else 1
    return f"{scaled:.{digits}f} {size_unit(power)}"


def size_power(count: float) -> int:
    """So that the count, in units of 1000 to this power, lies between 1 and 1000."""
    power = 0
    while power < 5 and count >= 999.5 * 1000**power:
        power += 1
    return power


def size_unit(power: int) -> str:
    return ("bytes", "kB", "MB", "GB", "TB", "PB")[power]


def value_of(record: Record, metric: str) -> float | None:
    """A record's value of a metric, or of the training loss."""
    values = record if metric == "train_loss" else record.get("metrics") or {}
    return number(values.get(metric))


def silo_values(record: Record, metric: str) -> list[float]:
    """What the silos reach one by one, where they train alone."""
    silos = (record.get("by_silo") or {}).values()
    known = [number(silo.get(metric)) for silo in silos]
    return [value for value in known if value is not None]


def best(records: Sequence[Record], metric: str) -> tuple[float, int] | None:
    """The best value of a metric, and its round."""
    sign = 1 if smaller_is_better(metric) else -1
    values = [
        (sign * value, int(record["round"]))
        for record in records
        if (value := value_of(record, metric)) is not None
    ]
    return (sign * min(values)[0], min(values)[1]) if values else None


def spread(metric: str, values: Sequence[float]) -> str:
    """'62.0–71.4 %' of several values."""
    low, high = show(metric, min(values), unit=False), show(metric, max(values))
    if low == show(metric, max(values), unit=False):
        return high
    return f"{low} to {high}" if MINUS in low + high else f"{low}{DASH}{high}"


def when(time: Any) -> str:
    """A time of a manifest: '2025-01-31 12:00 UTC'."""
    try:
        return f"{datetime.fromisoformat(str(time)).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return str(time)


def rounds(count: int) -> str:
    return f"{count:,} round" if count == 1 else f"{count:,} rounds"


def status(run: RunFolder) -> str:
    """A warning where a run is not complete; '' where it is."""
    if failed := run.manifest.get("failed"):
        return f"Training ended with an error: {failed}. What was recorded until then is shown."
    if run.interrupted:
        return "This run was interrupted: the report shows what was recorded until then."
    if not run.finished:
        return "This run is not finished: the report shows what is recorded so far."
    return ""


def verdict(run: RunFolder) -> str:
    """What came of it, in words computed from the numbers."""
    metric, records = run.headline, run.records.get(run.main) or []
    if not records:
        return "Nothing is recorded yet."
    last = judged(records)
    subject = OTHERS.get(run.main) or part_name(run, run.main)
    start = f"After {rounds(last['round'])} {subject} {_reaches(metric, last)}"
    others = [
        _other(
            part_name(run, part) if run.lone and part in LONE else phrase,
            judged(run.records[part]),
            metric,
            last["round"],
        )
        for part, phrase in OTHERS.items()
        if part != run.main and run.records.get(part)
    ]
    return "; ".join([start, ", ".join(others)] if others else [start]) + "." + _worth(run)


def _values(record: Record, metric: str) -> list[float]:
    """The silos' values where they train alone, else the one value; [] where undefined."""
    value = value_of(record, metric)
    return silo_values(record, metric) or ([] if value is None else [value])


def _reaches(metric: str, record: Record) -> str:
    values = _values(record, metric)
    if not values:
        return f"has no defined {full_name(metric)}"
    if metric in IN_PERCENT:
        return f"reaches {spread(metric, values)} {full_name(metric)}"
    return f"reaches a {full_name(metric)} of {spread(metric, values)}"


def _other(phrase: str, record: Record, metric: str, after: int) -> str:
    values = _values(record, metric)
    said = f"{phrase} {spread(metric, values) if values else 'undefined'}"
    return said if record["round"] == after else f"{said} (after {rounds(record['round'])})"


def _worth(run: RunFolder) -> str:
    """What the exchange between silos brought, against scores combined without it."""
    metric, last = run.headline, run.records[run.main][-1]
    records = run.records.get("no-exchange") or (run.lone and run.records.get("alone"))
    if not records or run.main in PARTS or records[-1]["round"] != last["round"]:
        return ""
    own = value_of(judged(run.records[run.main]), metric)
    other = value_of(judged(records), metric)
    if own is None or other is None or smaller_is_better(metric):
        return ""
    more = sum(last["bytes"].values()) - sum(records[-1]["bytes"].values())
    gain, cost = round(own - other, 3), size(max(0, more))
    if gain <= 0:
        return f" The exchange between silos ({cost} more to send) did not help here."
    amount = f"{100 * gain:.1f} percentage points" if metric in IN_PERCENT else f"{gain:.3f}"
    return f" The exchange between silos added {amount} and took {cost} more."
