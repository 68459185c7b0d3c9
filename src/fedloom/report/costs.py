"""The ledger as figures: what was sent, by kind and tier; and by tier, part for part."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import style, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HATCHES = {"bottom": "///", "top": ""}  # so that the tiers differ in grey, too
ROOM = {False: 1.22, True: 1.45}  # the axis is this much longer than the longest bar: room for
# the number, on a wide and on a narrow page


class Item(NamedTuple):
    """One line of a ledger."""

    tier: str
    direction: str
    kind: str
    about: str
    messages: int
    bytes: int


def items(ledger: Mapping[str, Any]) -> list[Item]:
    """The lines of a ledger, inside the silos first, the largest first."""
    lines = [
        Item(
            str(line["tier"]),
            str(line["direction"]),
            str(line["kind"]),
            str(line.get("about") or ""),
            int(line["messages"]),
            int(line["bytes"]),
        )
        for line in ledger.get("lines", ())
    ]
    return sorted(lines, key=lambda item: (item.tier, -item.bytes, item.kind))


def by_tier(ledger: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """(messages, bytes) of each tier."""
    sums = dict.fromkeys(words.TIERS, (0, 0))
    for item in items(ledger):
        messages, size = sums.get(item.tier, (0, 0))
        sums[item.tier] = (messages + item.messages, size + item.bytes)
    return sums


def by_kind(ledger: Mapping[str, Any], narrow: bool = False) -> Figure:
    """Bars by kind: inside the silos above, between the hubs below, on one scale."""
    groups = {tier: [i for i in items(ledger) if i.tier == tier] for tier in words.TIERS}
    groups = {tier: group for tier, group in groups.items() if group}
    bars = sum(len(group) for group in groups.values())
    titles = (0.72 if narrow else 0.55) * max(1, len(groups))
    figure = style.figure(style.width(narrow), 0.7 + titles + 0.36 * bars)
    if not groups:
        style.empty(figure.subplots(), "nothing was sent")
        return figure
    longest = max(1, *(item.bytes for group in groups.values() for item in group))
    heights = [len(group) + 0.4 for group in groups.values()]
    rows = figure.subplots(len(groups), 1, squeeze=False, sharex=True, height_ratios=heights)
    power = words.size_power(longest)
    for axes, (tier, group) in zip(rows[:, 0], groups.items(), strict=True):
        _bars(axes, tier, group, 1000.0**power)
        messages, size = by_tier(ledger)[tier]
        blank = "\n" if narrow else " "
        title = f"{words.TIERS[tier]}: {words.size(size)}{blank}in {messages:,} messages"
        axes.set_title(title, loc="left", fontsize=style.TEXT, fontweight="bold")
    rows[-1, 0].set_xlim(0, ROOM[narrow] * longest / 1000.0**power)
    rows[-1, 0].set_xlabel(f"{words.size_unit(power)} over the whole run", fontsize=style.TEXT)
    return figure


def _bars(axes: Any, tier: str, group: Sequence[Item], unit: float) -> None:
    names = [style.plain(f"{item.kind} ({item.direction})") for item in group]
    places = range(len(group))
    made = axes.barh(
        places,
        [item.bytes / unit for item in group],
        height=0.7,
        color=style.TIER_COLOURS[tier],
        hatch=HATCHES[tier],
        edgecolor="white",
    )
    axes.bar_label(
        made, [words.size(item.bytes) for item in group], padding=4, fontsize=style.SMALL
    )
    axes.set_yticks(places, names)
    axes.set_ylim(len(group) - 0.4, -0.6)
    style.tidy(axes, grid=False)
    axes.tick_params(axis="y", length=0)


def by_part(ledgers: Mapping[str, Mapping[str, Any]], narrow: bool = False) -> Figure:
    """One bar for each part, by the names they are to have: inside silos and between hubs."""
    figure = style.figure(style.width(narrow), 1.3 + 0.5 * max(1, len(ledgers)))
    axes = figure.subplots()
    totals = {name: by_tier(ledger) for name, ledger in ledgers.items()}
    longest = max((sum(size for _, size in t.values()) for t in totals.values()), default=0)
    if not longest:
        style.empty(axes, "nothing was sent")
        return figure
    power = words.size_power(longest)
    unit, starts = 1000.0**power, [0.0] * len(totals)
    for tier, name in words.TIERS.items():
        sizes = [t[tier][1] / unit for t in totals.values()]
        bar: dict[str, Any] = {
            "color": style.TIER_COLOURS[tier],
            "hatch": HATCHES[tier],
            "edgecolor": "white",
        }
        axes.barh(range(len(totals)), sizes, left=starts, height=0.65, label=name, **bar)
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    for place, (end, tiers) in enumerate(zip(starts, totals.values(), strict=True)):
        text = words.size(sum(size for _, size in tiers.values()))
        axes.text(end + 0.008 * longest / unit, place, text, va="center", fontsize=style.SMALL)
    wide = 18 if narrow else 30
    names = ["\n".join(textwrap.wrap(style.plain(name), wide)) for name in totals]
    axes.set_yticks(range(len(totals)), names)
    axes.set_ylim(len(totals) - 0.4, -0.6)
    axes.set_xlim(0, ROOM[narrow] * longest / unit)
    axes.set_xlabel(f"{words.size_unit(power)} over the whole run", fontsize=style.TEXT)
    style.tidy(axes, grid=False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=style.SMALL)
    return figure
