"""What each silo adds to the joint model, as sentences and a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..records.bootstrap import Difference
from ..records.metrics import smaller_is_better
from ..records.predictions import WITHOUT, Predictions
from . import style, words
from .folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

REPLACED, RETRAINED = "replaced", "retrained"


class Addition(NamedTuple):
    """How much the headline loses without a silo: it is positive where the silo helps."""

    silo: str
    how: str
    left: float
    loss: Difference


def additions(run: RunFolder) -> list[Addition]:
    """Of every silo, without its embedding and trained without it, as far as the folder has them;
    those that add most first."""
    main = run.predictions.get(run.main)
    metric = run.headline
    if main is None or main.alone or metric not in main.metrics:
        return []
    whole = main.resampled([metric]).get(metric)
    if whole is None:
        return []
    found = []
    for how, silo, scores in _without(run, main):
        part = replace(main, by_hub=dict.fromkeys(main.by_hub, scores))
        left = part.resampled([metric]).get(metric)
        if left is not None:
            loss = left.minus(whole) if smaller_is_better(metric) else whole.minus(left)
            found.append(Addition(silo, how, left.value, loss))
    most = {a.silo: a.loss.value for a in reversed(found)}  # by the first way
    return sorted(found, key=lambda a: (-most[a.silo], a.silo, a.how != REPLACED))


def _without(run: RunFolder, main: Predictions) -> Iterator[tuple[str, str, Tensor]]:
    """How a silo is left out, which one, and scores of the test rows then."""
    for silo, scores in main.without.items():
        yield REPLACED, silo, scores
    for silo in run.retrained:
        own = run.predictions.get(WITHOUT + silo)
        if own is not None:
            yield RETRAINED, silo, next(iter(own.by_hub.values()))


def sentences(run: RunFolder, found: Sequence[Addition]) -> list[str]:
    """One for each silo and way."""
    return [_sentence(run.headline, addition) for addition in found]


def _sentence(metric: str, addition: Addition) -> str:
    silo, how, left, loss = addition
    start = f"Without {silo}" if how == REPLACED else f"Trained without {silo}"
    name, value = words.full_name(metric), words.show(metric, left)
    if loss.order() == "not told apart":
        unsure = f"{start}, the {name} is {value}: not told apart from the model with it"
        if loss.interval is None:
            return f"{unsure}."
        return f"{unsure} (95 % interval of what is lost {_spread(metric, loss.interval)})."
    assert loss.interval is not None
    worse = loss.value > 0
    ends = loss.interval if worse else [-end for end in reversed(loss.interval)]
    amount = words.points(metric, [abs(loss.value)])
    return (
        f"{start}, the {name} is {'worse' if worse else 'better'} by {amount} "
        f"(95 % interval {_spread(metric, ends)}): {value}."
    )


def _spread(metric: str, ends: Sequence[float]) -> str:
    return words.spread(metric, list(ends))


def bars(found: Sequence[Addition], metric: str, narrow: bool = False) -> Figure | None:
    """What is lost without each silo, with intervals."""
    if not found:
        return None
    silos = list(dict.fromkeys(a.silo for a in found))
    ways = [how for how in (REPLACED, RETRAINED) if any(a.how == how for a in found)]
    figure = style.figure(
        style.width(narrow), 1.3 + 0.3 * (len(ways) > 1) + 0.42 * len(silos) * len(ways)
    )
    axes = figure.subplots()
    style.tidy(axes)
    factor = 100 if metric in words.IN_PERCENT else 1
    step = 0.8 / len(ways)
    for index, how in enumerate(ways):
        own = [a for a in found if a.how == how]
        places = [silos.index(a.silo) - 0.4 + step * (index + 0.5) for a in own]
        values = [factor * a.loss.value for a in own]
        colour = (style.BLUE, style.ORANGE)[index]
        axes.barh(places, values, height=0.8 * step, color=colour, label=NAMES[how])
        for place, addition in zip(places, own, strict=True):
            if addition.loss.interval is not None:
                ends = [factor * end for end in addition.loss.interval]
                axes.plot(ends, [place, place], color=style.BLACK, linewidth=1.2, marker="|")
    axes.axvline(0, color=style.GREY, linewidth=1)
    axes.set_yticks(range(len(silos)), [style.plain(silo[:24]) for silo in silos])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    unit = ", percentage points" if metric in words.IN_PERCENT else ""
    axes.set_xlabel(f"{words.full_name(metric)} that is lost{unit}", fontsize=style.TEXT)
    if len(ways) > 1:
        figure.legend(
            loc="outside upper left", ncols=1 if narrow else 2, frameon=False, fontsize=style.SMALL
        )
    return figure


NAMES = {REPLACED: "embedding replaced by its mean", RETRAINED: "trained without the silo"}
