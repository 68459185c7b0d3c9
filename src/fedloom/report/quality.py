"""How good the predictions of test rows are, in plain sentences."""

from __future__ import annotations

import numpy as np

from . import words
from .judged import Bin, Judged, bins, miscalibrated
from .words import DASH, hundred

NEAR = 0.3  # a probability to speak of: neither sure nor a guess


def sentences(of: Judged) -> list[str]:
    """What the figures show, for the model named."""
    if of.rows.goal == "number":
        return _numbers(of)
    if not np.isfinite(of.rows.scores).all():
        return ["Its scores are not finite: there is nothing to show."]
    return _binary(of) if of.rows.goal == "binary" else _classes(of)


def _binary(of: Judged) -> list[str]:
    no, yes = of.class_name(0), of.class_name(1)
    base = float(of.shares[1])
    common = yes if base >= 0.5 else no
    said = [
        f"Base rate: {hundred(base)} of 100 test rows are {yes}. Who always says {common} is right "
        f"in {hundred(max(base, 1 - base))} of 100."
    ]
    if of.rows.by_class:
        said.append(_pairs(of, yes))
    hits, (called, true) = of.confusion[1, 1], (of.confusion[:, 1].sum(), of.confusion[1].sum())
    if called:
        right = f"{hundred(hits / called)} of 100 of these are"
        said.append(
            f"It says {yes} of {called:,} of {of.size:,} rows; {right}. "
            + (f"Of 100 rows that are {yes}, it finds {hundred(hits / true)}." if true else "")
        )
    else:
        said.append(f"It says {yes} of no row.")
    groups = bins(of)
    group = min(groups, key=lambda group: abs(group.said - NEAR))
    return [*said, _given(group, f"are {yes}"), _off(groups)]


def _pairs(of: Judged, yes: str) -> str:
    from ..records import scoring

    ((positive, odds),) = of.rows.by_class
    area = scoring.area_under_roc(positive, odds)
    return (
        f"Of a row that is {yes} and one that is not, the first has the higher score in "
        f"{hundred(area)} of 100 pairs (AUROC {area:.3f}; 50 is chance)."
    )


def _given(group: Bin, what: str) -> str:
    low, high = hundred(group.low), hundred(group.high)
    return (
        f"Of 100 rows to which the model gives about {100 * group.said:.0f} %, "
        f"{hundred(group.true)} {what} (counted in {group.rows:,} rows; 95 % interval "
        f"{low}{DASH}{high})."
    )


def _off(groups: list[Bin]) -> str:
    off = miscalibrated(groups)
    lean = sum(g.rows * (g.said - g.true) for g in groups) / sum(g.rows for g in groups)
    side = ""
    if off > 0 and abs(lean) > 0.5 * off:
        side = ", mostly too high" if lean > 0 else ", mostly too low"
    return f"On average a probability is off by {100 * off:.1f} percentage points{side}."


def _classes(of: Judged) -> list[str]:
    table, shares = of.confusion, of.shares
    top = int(shares.argmax())
    right = float(np.trace(table) / of.size)
    said = [
        f"The most frequent class, {of.class_name(top)}, has {hundred(shares[top])} of 100 test "
        f"rows: who always says it is right as often. The model is right in {hundred(right)} of "
        "100."
    ]
    found = np.divide(np.diag(table), table.sum(1), out=np.ones(len(table)), where=table.sum(1) > 0)
    worst = int(found.argmin())
    if found[worst] < 1:
        said.append(f"Hardest is {of.class_name(worst)}: {hundred(found[worst])} of 100 are found.")
    wrong = table - np.diag(np.diag(table))
    if wrong.any():
        true, called = np.unravel_index(int(wrong.argmax()), wrong.shape)
        share = wrong[true, called] / table[true].sum()
        said.append(
            f"The most frequent mistake: of 100 rows that are {of.class_name(int(true))}, "
            f"{hundred(share)} are said to be {of.class_name(int(called))}."
        )
    groups = bins(of)
    group = min(groups, key=lambda group: abs(group.said - 0.8))
    sure = (
        f"Where the model gives about {100 * group.said:.0f} % to the class that it says, it is "
        f"right in {hundred(group.true)} of 100 (counted in {group.rows:,} rows; 95 % interval "
        f"{hundred(group.low)}{DASH}{hundred(group.high)})."
    )
    return [*said, sure, _off(groups)]


def _numbers(of: Judged) -> list[str]:
    true, predicted = of.rows.labels, of.rows.predicted
    errors = np.abs(predicted - true).ravel()
    if not np.isfinite(errors).all():
        return ["Its predictions are not finite: there is nothing to show."]
    half, nine = np.quantile(errors, [0.5, 0.9])
    mean = float(np.median(np.abs(true - true.mean(0))))
    lean = float((predicted - true).mean())
    typical = float(np.sqrt((errors**2).mean()))
    said = [
        f"Half of the test rows are off by less than {_size(half)}, 9 of 10 by less than "
        f"{_size(nine)} (in units of the label). Who says the mean of everybody is off by "
        f"{_size(mean)} or less in half of the rows.",
        f"The root of the mean squared error is {_size(typical)}; on average what is said is "
        f"{_size(abs(lean))} too {'high' if lean > 0 else 'low'}.",
    ]
    if true.shape[1] == 1 and len(true) >= 30:
        order = np.argsort(true[:, 0], kind="stable")
        third = len(order) // 3
        low, high = (float((predicted - true)[at].mean()) for at in (order[:third], order[-third:]))
        said.append(
            f"In the third of the rows with the lowest labels it says {_size(abs(low))} too "
            f"{'much' if low > 0 else 'little'}, in the third with the highest "
            f"{_size(abs(high))} too {'much' if high > 0 else 'little'}."
        )
    return said


def _size(value: float) -> str:
    """A number in units of the label: three digits that count."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}".replace("-", words.MINUS)
