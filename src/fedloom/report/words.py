"""Numbers and names as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..records.metrics import smaller_is_better as smaller_is_better
from .folder import RunFolder

Record = Mapping[str, Any]

DASH, MINUS, TIMES = "\u2013", "\u2212", "\u00d7"

PARTS = {
    "central": "pooled (central)",
    "alone": "silos alone",
    "no-exchange": "silos alone, scores combined",
    "best-pooled": "best pooled network",
    "logistic": "logistic regression",
    "ridge": "ridge regression",
    "boosting": "gradient boosting",
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
    "central": "the pooled model on the same budget",
    "no-exchange": "the silos' scores combined without exchange",
    "alone": "a silo alone",
    "best-pooled": "the best pooled network",
    "logistic": "logistic regression on the pooled columns",
    "ridge": "ridge regression on the pooled columns",
    "boosting": "gradient boosting on the pooled columns",
}
ABOUT = {
    "central": "the same model, steps and minibatches on everyone's rows in one place: the same "
    "budget as the federation, which need not be enough to converge",
    "alone": "every silo with its own columns only",
    "no-exchange": "the scores of the lone silos, put together at prediction",
    "best-pooled": "the same network on everyone's rows, trained with Adam until the loss on rows "
    "set aside for validation falls no more: what the network can do",
    "logistic": "scikit-learn's, on all columns side by side, standardised; regularisation by "
    "cross-validation: what an analyst would have",
    "ridge": "scikit-learn's, on all columns side by side, standardised; regularisation by "
    "cross-validation: what an analyst would have",
    "boosting": "scikit-learn's, with its defaults, on all columns side by side: what an analyst "
    "would have",
}  # of baselines, what they are
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
        return f"{100 * value:.1f}".replace("-", MINUS) + (" %" if unit else "")
    if abs(value) >= 100:
        return f"{value:,.0f}".replace("-", MINUS)
    if smaller_is_better(metric):
        return f"{value:.3g}"
    return f"{value:.3f}".replace("-", MINUS)


def between(metric: str, interval: Sequence[float] | None) -> str:
    """An interval of a metric: '94.1–97.8 %'; '' where there is none."""
    return "" if interval is None else spread(metric, list(interval))


def points(metric: str, values: Sequence[float]) -> str:
    """A difference of a metric, or the ends of an interval of one: '1.2 percentage points'."""
    if metric in IN_PERCENT:
        return spread(metric, values).removesuffix(" %") + " percentage points"
    return spread(metric, values)


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


def hundred(share: float) -> str:
    """Of a hundred: '34', and 'fewer than 1'."""
    return "fewer than 1" if 0 < share < 0.005 else f"{100 * share:.0f}"


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
