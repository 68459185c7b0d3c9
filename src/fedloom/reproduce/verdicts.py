"""Whether the curves show what the paper says: computed over seeds, with a stated margin.

An expectation compares one number per run (`stat` of `y` against `x`, see lines.py) up to the
place that all compared curves reach, or `until` a share of that. `kind` is one of

    order     the number goes `trend` "up" or "down" along an axis, step by step (`pairs` "each"),
              from first to last ("ends"), or from the first to every other ("first")
    alike     the means lie within `margin` of each other, and none is below `least`
    bound     the mean is `at_least`, `at_most`
    wider     how far the others are ahead of the first place of an axis grows from the first of
              `t_comms` to the last, where they must be ahead
    slope     of log(number) by log(place on the axis) is within `at_least`, `at_most`
    below     `y` stays below `other` everywhere, in the mean over seeds
    diverges  training diverged, or its loss ended above its start, for most seeds

A difference counts if its mean over seeds is at least `margin` and more than twice its standard
error; a negative margin asks for no more than "not worse by more than that". Seeds are paired.
An expectation along an axis must hold at every place of the other axes, unless `where` names some.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..core.errors import SettingError, nearest
from .lines import FigureLine, Floats, Measure

Expectation = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """One expectation, judged. `reason` is the likely one where it does not hold."""

    claim: str
    held: bool
    detail: str
    reason: str = ""

    def __str__(self) -> str:
        why = f" [likely: {self.reason}]" if self.reason and not self.held else ""
        return (
            f"{'reproduced' if self.held else 'NOT REPRODUCED'}: {self.claim}: {self.detail}{why}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge_all(expects: Sequence[Expectation], lines: Sequence[FigureLine]) -> list[Verdict]:
    """All that can be judged: where curves were left out on purpose, some cannot."""
    verdicts = []
    for expect in expects:
        own = [line for line in lines if line.setting.is_at(expect.get("where", {}))]
        most = max(2, len(expect.get("values", ())))
        groups = _groups(expect, own).values() if "along" in expect else ()
        if own and all(len(group) >= most for group in groups):
            verdicts.append(judge(expect, lines))
    return verdicts


def judge(expect: Expectation, lines: Sequence[FigureLine]) -> Verdict:
    """One expectation against the records."""
    if expect["kind"] not in KINDS:
        raise SettingError(f"expect: kind {expect['kind']!r}{nearest(expect['kind'], KINDS)}")
    own = [line for line in lines if line.setting.is_at(expect.get("where", {}))]
    if not own:
        raise SettingError(f"expect: nothing is at {dict(expect.get('where', {}))}")
    holds, detail = KINDS[expect["kind"]](expect, own)
    seeds = {len(line.runs) for line in own}
    many = f"{min(seeds)} seed{'s' if min(seeds) > 1 else ''}"
    return Verdict(expect["claim"], holds, f"{detail}; {many}", expect.get("reason", ""))


def _groups(expect: Expectation, lines: Sequence[FigureLine]) -> dict[str, list[FigureLine]]:
    """Lines along the axis, by their place on the others; `values` picks and orders places."""
    axis = expect["along"]
    wanted = expect.get("values") or list(dict.fromkeys(x.setting.place[axis] for x in lines))
    groups: dict[str, list[FigureLine]] = {}
    known = {axis: None, **expect.get("where", {})}
    for value in wanted:
        for line in (candidate for candidate in lines if candidate.setting.place[axis] == value):
            other = {a: v for a, v in line.setting.place.items() if a != axis}
            name = line.setting.called(known) if set(other) - set(known) else ""
            groups.setdefault(name, []).append(line)
    return groups


def _numbers(expect: Expectation, group: Sequence[FigureLine], measure: Measure) -> list[Floats]:
    until = expect.get("until", 1.0) * min(line.end(measure) for line in group)
    return [line.values(measure, until, expect.get("stat", "last")) for line in group]


def _gain(better: Floats, than: Floats, sign: int) -> tuple[float, float]:
    """Mean of the paired differences, and its standard error."""
    count = min(len(better), len(than))
    gains = sign * (better[:count] - than[:count])
    error = gains.std(ddof=1) / math.sqrt(count) if count > 1 else 0.0
    return float(gains.mean()), float(error)


def _counts(gain: float, error: float, margin: float) -> bool:
    return bool(gain >= margin and (margin < 0 or gain > 2 * error))


def _shown(value: float) -> str:
    return "diverged" if math.isnan(value) else f"{value:.4g}"


def _listed(group: Sequence[FigureLine], numbers: Sequence[Floats], axis: str | None) -> str:
    words = [line.setting.words[axis] if axis is not None else line.setting.name for line in group]
    return ", ".join(f"{w} {_shown(float(n.mean()))}" for w, n in zip(words, numbers, strict=True))


def _order(expect: Expectation, lines: Sequence[FigureLine]) -> tuple[bool, str]:
    measure, margin = Measure.of(expect), expect.get("margin", 0.0)
    sign, holds, details = {"up": 1, "down": -1}[expect["trend"]], True, []
    for name, group in _groups(expect, lines).items():
        numbers = _numbers(expect, group, measure)
        pairs = {
            "each": list(itertools.pairwise(numbers)),
            "ends": [(numbers[0], numbers[-1])],
            "first": [(numbers[0], other) for other in numbers[1:]],
        }[expect.get("pairs", "each")]
        gains = [_gain(b, a, sign) for a, b in pairs]
        holds &= all(_counts(gain, error, margin) for gain, error in gains)
        gain, error = min(gains, key=lambda pair: pair[0] - 2 * pair[1])
        details.append(
            f"{name + ': ' if name else ''}{_listed(group, numbers, expect['along'])} "
            f"(least step {_shown(gain)} +- {error:.2g})"
        )
    return holds, f"{'; '.join(details)}; margin {margin:g}"


def _alike(expect: Expectation, lines: Sequence[FigureLine]) -> tuple[bool, str]:
    measure, holds, details = Measure.of(expect), True, []
    for name, group in _groups(expect, lines).items():
        numbers = _numbers(expect, group, measure)
        means = [float(n.mean()) for n in numbers]
        spread = max(means) - min(means) if not any(map(math.isnan, means)) else math.nan
        holds &= spread <= expect["margin"] and min(means) >= expect.get("least", -math.inf)
        details.append(
            f"{name + ': ' if name else ''}{_listed(group, numbers, expect['along'])} "
            f"(spread {_shown(spread)})"
        )
    least = f", at least {expect['least']:g}" if "least" in expect else ""
    return holds, f"{'; '.join(details)}; margin {expect['margin']:g}{least}"


def _bound(expect: Expectation, lines: Sequence[FigureLine]) -> tuple[bool, str]:
    measure = Measure.of(expect)
    numbers = [_numbers(expect, [line], measure)[0] for line in lines]
    means = [float(n.mean()) for n in numbers]
    low, high = expect.get("at_least", -math.inf), expect.get("at_most", math.inf)
    holds = all(low <= mean <= high for mean in means)
    return holds, f"{_listed(lines, numbers, None)}; wanted {low:g} to {high:g}"


def _wider(expect: Expectation, lines: Sequence[FigureLine]) -> tuple[bool, str]:
    holds, details, margin = True, [], expect.get("margin", 0.0)
    first, last = expect["t_comms"][0], expect["t_comms"][-1]
    for name, group in _groups(expect, lines).items():
        gaps: list[Floats] = []
        for t_comm in (first, last):
            measure = Measure(expect["y"], "time", t_comm)
            behind, *others = _numbers(expect, group, measure)
            sign = -1 if measure.falls else 1
            gaps.append(sign * (np.mean(others, axis=0) - behind))
        gain, error = _gain(gaps[1], gaps[0], 1)
        holds &= _counts(gain, error, margin) and float(gaps[1].mean()) > 0
        details.append(
            f"{name + ': ' if name else ''}{_shown(float(gaps[0].mean()))} at t_comm {first:g}, "
            f"{_shown(float(gaps[1].mean()))} at {last:g} (+- {error:.2g})"
        )
    return holds, f"{'; '.join(details)}; margin {margin:g}"


def _slope(expect: Expectation, lines: Sequence[FigureLine]) -> tuple[bool, str]:
    measure, holds, details = Measure.of(expect), True, []
    low, high = expect.get("at_least", -math.inf), expect.get("at_most", math.inf)
    for name, group in _groups(expect, lines).items():
        places = [float(line.setting.place[expect["along"]]) for line in group]
        numbers = [line.values(measure, line.end(measure), expect["stat"]) for line in group]
        means = [float(n.mean()) for n in numbers]
        slope = float(np.polyfit(np.log(places), np.log(means), 1)[0])
        holds &= low <= slope <= high
        listed = _listed(group, numbers, expect["along"])
        details.append(f"{name + ': ' if name else ''}slope {slope:.3f} of {listed}")
    return holds, f"{'; '.join(details)}; wanted {low:g} to {high:g}"


def _below(expect: Expectation, lines: Sequence[FigureLine]) -> tuple[bool, str]:
    worst, where = 0.0, ""
    for line in lines:
        both = [
            np.mean([Measure(y).points(run)[1] for run in line.common()], axis=0)
            for y in (expect["y"], expect["other"])
        ]
        ratio = float(np.max(both[0][1:] / both[1][1:]))
        if ratio > worst:
            worst, where = ratio, line.setting.name
    return worst <= 1, f"at most {worst:.3g} of it (at {where})"


def _diverges(expect: Expectation, lines: Sequence[FigureLine]) -> tuple[bool, str]:
    holds, details = True, []
    for line in lines:
        grown = [
            seed
            for seed, run in line.runs.items()
            if seed in line.diverged or run[-1]["train_loss"] > run[0]["train_loss"]
        ]
        holds &= 2 * len(grown) > len(line.runs)
        details.append(f"{line.setting.name}: {len(grown)} of {len(line.runs)}")
    return holds, "; ".join(details)


KINDS: dict[str, Callable[[Expectation, Sequence[FigureLine]], tuple[bool, str]]] = {
    "order": _order,
    "alike": _alike,
    "bound": _bound,
    "wider": _wider,
    "slope": _slope,
    "below": _below,
    "diverges": _diverges,
}
