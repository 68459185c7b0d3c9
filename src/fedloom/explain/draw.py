"""An explanation as a PNG: a sequence diagram with a lane for each hub and each silo's clients."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ..core.files import SHARED, write_bytes
from ..core.topology import Client
from ..report import style
from .explanation import Explanation, LocalWork, MessageGroup
from .lanes import Lane, Repeat, arrows, counted, lanes_of, place_of, repeats, shortened

SILOS = 3  # that have lanes of their own
LANE, ROW, HEAD, FOOT = 1.75, 0.46, 0.75, 0.45  # inches
MARGIN = 0.95  # inches, on both sides
COLOURS = {"down": style.BLUE, "up": style.RED, "across": style.GREEN}
KIND = 22  # characters of a kind's name
PALE = "#F2F2F2"


def draw(explanation: Explanation, path: Path) -> None:
    """Write the diagram."""
    lanes = lanes_of(explanation, SILOS)
    parts = repeats(list(explanation.steps()))
    rows = sum(len(part.turns[0]) + (part.times > 1) for part in parts)
    width = 2 * MARGIN + (len(lanes) - 1) * LANE
    height = HEAD + (rows + 0.5) * ROW + FOOT
    figure = style.figure(width, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    sheet = _Sheet(axes, lanes, width, HEAD + (rows + 0.5) * ROW)
    sheet.heads()
    for part in parts:
        sheet.part(part)
    sheet.legend(explanation, height - FOOT / 2)
    written = BytesIO()
    figure.savefig(written, format="png")
    write_bytes(path, written.getvalue(), SHARED)


class _Sheet:
    """What is drawn, from the top down; inches, y grows downwards."""

    def __init__(self, axes: Any, lanes: Sequence[Lane], width: float, bottom: float):
        self.axes, self.lanes, self.width, self.bottom = axes, lanes, width, bottom
        self.x = [MARGIN + place * LANE for place in range(len(lanes))]
        self.y = HEAD

    def words(self, x: float, y: float, text: str, **options: Any) -> None:
        settings = {"ha": "center", "va": "center", "fontsize": 8.5, **options}
        self.axes.text(x, y, style.plain(text), **settings)

    def heads(self) -> None:
        for x, lane in zip(self.x, self.lanes, strict=True):
            self.words(x, HEAD / 2 - 0.13, lane.above, color=style.GREY)
            self.words(x, HEAD / 2 + 0.07, lane.name, weight="bold")
            dashes = (0, (1, 3)) if not lane.party else "-"
            self.axes.plot(
                [x, x], [HEAD - 0.12, self.bottom], color="#BBBBBB", linewidth=1, linestyle=dashes
            )

    def part(self, part: Repeat) -> None:
        """Some steps; those that repeat are framed."""
        if part.times > 1:
            self._frame(self.y + 0.5 * ROW, (len(part.turns[0]) + 0.6) * ROW)
            self.words(0.14, self.y + 0.85 * ROW, f"{part.times} times", ha="left", weight="bold")
            self.y += 0.6 * ROW
        for step in part.turns[0]:
            self.y += ROW
            if isinstance(step, LocalWork):
                self._work(step)
            else:
                self._move(step)
        if part.times > 1:
            self.y += 0.4 * ROW

    def _frame(self, top: float, height: float) -> None:
        from matplotlib.patches import Rectangle

        self.axes.add_patch(
            Rectangle(
                (0.06, top),
                self.width - 0.12,
                height,
                facecolor=PALE,
                edgecolor=style.GREY,
                linewidth=0.8,
                linestyle=(0, (4, 3)),
                zorder=0.5,
            )
        )

    def _work(self, work: LocalWork) -> None:
        label = "1 step" if work.steps == 1 else f"{work.steps:,} steps"
        box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": style.BLACK}
        for place in work.places:
            lane = place_of(self.lanes, Client(place, "") if work.at_clients else place)
            if lane is not None:
                self.words(self.x[lane], self.y - 0.06, label, bbox={**box, "linewidth": 0.8})

    def _move(self, step: Sequence[MessageGroup]) -> None:
        self.words(0.14, self.y, str(step[0].move), ha="left", color=style.GREY)
        for line in step:
            ends = arrows(self.lanes, line)
            if ends:
                self._line(line, ends)

    def _line(self, line: MessageGroup, ends: Sequence[tuple[int, int]]) -> None:
        """One group of messages: from lane to lane, and what they are."""
        colour = COLOURS[line.direction]
        involved = sorted({place for pair in ends for place in pair})
        for source, to in ends:
            near = [p for p in involved if min(source, to) <= p <= max(source, to) and p != to]
            start = max(near) if to > source else min(near)  # the next one on the way
            self.axes.annotate(
                "",
                xy=(self.x[to], self.y),
                xytext=(self.x[start], self.y),
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": colour,
                    "linewidth": 1.3,
                    "shrinkA": 0,
                    "shrinkB": 0,
                },
            )
        far = (involved[0], involved[-1])
        self.axes.plot([self.x[p] for p in far], [self.y, self.y], color=colour, linewidth=1.3)
        for place in {source for source, _ in ends}:
            self.axes.plot(self.x[place], self.y, "o", color=colour, markersize=3.5)
        middle = (self.x[involved[0]] + self.x[involved[1]]) / 2
        self.words(
            middle,
            self.y - 0.1,
            shortened(line.kind, KIND),
            color=colour,
            weight="bold",
            fontsize=8,
        )
        self.words(
            middle, self.y + 0.1, counted(line.messages, line.bytes), color=style.GREY, fontsize=7
        )

    def legend(self, explanation: Explanation, y: float) -> None:
        total = sum(message.bytes for message in explanation.sent)
        head = f"One round of {explanation.algorithm}: {counted(len(explanation.sent), total)}"
        self.words(0.14, y, head, ha="left")
