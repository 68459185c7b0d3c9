"""Drawings in Mermaid as SVG: a hook of mkdocs, since a page that fetches Mermaid needs a network.

Understood is what tools/graph.py writes: `flowchart TD` and arrows `a --> b` without a circle. Each
node is a row below all that point to it. A long arrow has a place in each row that it passes, so
that it crosses no node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

WIDTH, HEIGHT, GAP = 108, 30, 26  # of a node; between rows
ARROW = re.compile(r"^ *(\w+) --> (\w+)$", re.MULTILINE)

Arrow = tuple[str, str]
Path = list[str]  # of an arrow: its ends, and a place in each row between them


def on_config(config: Any) -> None:
    """Called by mkdocs: blocks of `mermaid` are drawn here."""
    fence = {"name": "mermaid", "class": "drawing", "format": _fence}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]


def _fence(source: str, *_: Any, **__: Any) -> str:
    return svg(ARROW.findall(source))


def svg(arrows: list[Arrow]) -> str:
    rows, paths = laid_out(arrows)
    middle = max(map(len, rows)) * (WIDTH + GAP) / 2
    places = {
        name: (middle + (k - (len(row) - 1) / 2) * (WIDTH + GAP), level * (HEIGHT + GAP))
        for level, row in enumerate(rows)
        for k, name in enumerate(row)
    }
    wide, high = 2 * middle, len(rows) * (HEIGHT + GAP)
    head = '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    lines = [
        f'<svg class="drawing" width="{wide:g}" viewBox="0 0 {wide:g} {high:g}" role="img">',
        f'<defs>{head}orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
        *(_line(path, places) for path in paths),
        *(_node(name, *places[name]) for name in dict.fromkeys(sum(arrows, ()))),
        "</svg>",
    ]
    return "\n".join(lines)


def laid_out(arrows: list[Arrow]) -> tuple[list[list[str]], list[Path]]:
    """The rows, and the way of each arrow."""
    level = _levels(arrows)
    paths = []
    for source, to in arrows:
        between = [f"{source}>{to}:{k}" for k in range(level[source] + 1, level[to])]
        level.update({place: level[source] + 1 + k for k, place in enumerate(between)})
        paths.append([source, *between, to])
    rows: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
    for name, k in level.items():
        rows[k].append(name)
    above: dict[str, list[str]] = {name: [] for name in level}
    for path in paths:
        for upper, lower in pairwise(path):
            above[lower].append(upper)
    for k in range(1, len(rows)):  # each under the middle of those above it
        order = {name: i - len(rows[k - 1]) / 2 for i, name in enumerate(rows[k - 1])}
        middle = {
            name: sum(map(order.__getitem__, above[name])) / len(above[name]) for name in rows[k]
        }
        rows[k].sort(key=middle.__getitem__)
    return rows, paths


def _levels(arrows: list[Arrow]) -> dict[str, int]:
    """The longest way to each node from one that nothing points to."""
    level = dict.fromkeys(sum(arrows, ()), 0)
    for _ in level:
        for source, to in arrows:
            level[to] = max(level[to], level[source] + 1)
    if any(level[to] <= level[source] for source, to in arrows):
        raise ValueError("the arrows go round in a circle")
    return level


def _line(path: Path, places: Mapping[str, tuple[float, float]]) -> str:
    x, y = places[path[0]]
    points = [f"M{x:g} {y + HEIGHT:g}"]
    for name in path[1:]:
        x, y = places[name]
        points.append(f"L{x:g} {y:g}")
        if name != path[-1]:
            points.append(f"L{x:g} {y + HEIGHT:g}")
    return f'<path d="{" ".join(points)}" marker-end="url(#tip)"/>'


def _node(name: str, x: float, y: float) -> str:
    return (
        f'<rect x="{x - WIDTH / 2:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
        f'<text x="{x:g}" y="{y + HEIGHT / 2 + 5:g}">{name}</text>'
    )
