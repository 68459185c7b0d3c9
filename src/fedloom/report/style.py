"""How figures look: colours that colour-blind people tell apart, line styles, text that is plain.

Figures are made with matplotlib's objects, never with pyplot, so nothing global is touched.
matplotlib, of the extra `report`, is imported when a figure is made, not before.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.extras import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, the strongest on white first; their yellow is too pale for lines.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PINK, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#000000", "#666666"
COLOURS = (BLUE, ORANGE, GREEN, PINK, RED, SKY, BLACK)
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (6, 2, 1.5, 2)), (0, (1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
TIER_COLOURS = {"bottom": ORANGE, "top": BLUE}

TEXT, SMALL, TITLE = 10.0, 9.0, 12.0  # points
DPI, SMALLER = 150, 120
WIDE, NARROW = 9.5, 4.8  # inches: of figures on a wide page, and on a telephone's


class Line(NamedTuple):
    """How one curve is drawn. Colour, dashes and marker each tell it apart."""

    color: str
    linestyle: Any
    marker: str


def line(index: int) -> Line:
    """The style of the curve with this number. No two of the first 14 have colour and dashes, or
    colour and marker, in common."""
    turn, place = divmod(index, len(COLOURS))
    return Line(
        COLOURS[place],
        DASHES[(place + 2 * turn) % len(DASHES)],
        MARKERS[(place + 3 * turn) % len(MARKERS)],
    )


def plain(text: str) -> str:
    """Text from outside, so that matplotlib takes no dollar for mathematics."""
    text = " ".join(text.split()).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


class Image(NamedTuple):
    """A figure in a page: as data URIs, for wide pages and narrow ones, and how wide it is there in
    CSS pixels, a hundred to an inch."""

    wide: str
    narrow: str
    widths: tuple[int, int]


def width(narrow: bool) -> float:
    return NARROW if narrow else WIDE


def figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that keeps its texts apart."""
    need("report", "a figure")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def tidy(axes: Any, grid: bool = True) -> None:
    """Light axes: no box, and a faint grid behind the data where that helps."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if grid:
        axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL)


def empty(axes: Any, text: str) -> None:
    """An axes with nothing to draw says so."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=TEXT, color=GREY)


def png(figure: Figure, dpi: int = DPI) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def save(draw: Callable[[bool], Figure | None], path: Path) -> Image | None:
    """Draw a figure, `draw(whether it is for a narrow page)`, and write the wide one as PNG; None
    where there is nothing to draw. The images are for a page that needs no other file."""
    wide, narrow = draw(False), draw(True)
    if wide is None or narrow is None:
        return None
    contents = [png(wide), png(narrow, SMALLER)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents[0])
    uris = [
        "data:image/png;base64," + base64.b64encode(content).decode("ascii") for content in contents
    ]
    sizes = [round(100 * content.get_figwidth()) for content in (wide, narrow)]
    return Image(uris[0], uris[1], (sizes[0], sizes[1]))
