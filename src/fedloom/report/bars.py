"""Counts as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def histogram(counts: Sequence[int], what: str, narrow: bool = False) -> Figure:
    """How many there were of 0, 1, 2, ...; shares of all."""
    from matplotlib.ticker import MaxNLocator

    figure = style.figure(style.width(narrow), 3.0)
    axes = figure.add_subplot()
    style.tidy(axes)
    total = sum(counts)
    axes.bar(range(len(counts)), [count / total for count in counts], color=style.COLOURS[0])
    axes.set_xlabel(what, fontsize=style.TEXT)
    axes.set_ylabel("share", fontsize=style.TEXT)
    axes.set_xlim(-0.6, len(counts) - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
