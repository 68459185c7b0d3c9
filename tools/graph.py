"""Draws which package imports which into ARCHITECTURE.md, as Mermaid.

    python tools/graph.py            draw it
    python tools/graph.py --check    say whether the drawing is of this code

An arrow that follows from others is left out: cli imports runs, runs imports core, so cli may
import core, too. An arrow that does not go down the layers of pyproject.toml is an error.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- imports: drawn by make graph -->\n", "<!-- end of imports -->\n"

Graph = dict[str, set[str]]  # package -> packages that it imports


def layers() -> list[list[str]]:
    """The layers of packages, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return [layer.split(" | ") for layer in settings["contracts"][0]["layers"]]


def imports(packages: list[str]) -> Graph:
    modules = grimp.build_graph("fedloom", cache_dir=None)
    found: Graph = {package: set() for package in packages}
    for module in modules.modules:
        package = package_of(module)
        if package in found:
            names = map(package_of, modules.find_modules_directly_imported_by(module))
            found[package] |= {name for name in names if name in found and name != package}
    return found


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def upward(graph: Graph, ranks: dict[str, int]) -> list[str]:
    """Imports that do not go down."""
    return [
        f"{package} imports {other}"
        for package, others in graph.items()
        for other in sorted(others)
        if ranks[other] <= ranks[package]
    ]


def reduced(graph: Graph) -> Graph:
    """The graph without arrows that follow from others. It must have no cycles."""

    def below(package: str) -> set[str]:
        return graph[package].union(*map(below, graph[package]))

    return {package: others - set().union(*map(below, others)) for package, others in graph.items()}


def drawing(graph: Graph) -> str:
    arrows = [f"  {package} --> {other}" for package in graph for other in sorted(graph[package])]
    return "\n".join(["```mermaid", "flowchart TD", *arrows, "```", ""])


def page() -> str:
    """ARCHITECTURE.md with the drawing of this code."""
    rows = layers()
    graph = imports([package for row in rows for package in row])
    ranks = {package: rank for rank, row in enumerate(rows) for package in row}
    if problems := upward(graph, ranks):
        sys.exit("not down the layers: " + "; ".join(problems))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + drawing(reduced(graph)) + END + after


def main() -> None:
    asked = argparse.ArgumentParser(description="Draws packages' imports into ARCHITECTURE.md.")
    asked.add_argument("--check", action="store_true", help="change nothing")
    if asked.parse_args().check:
        if page() != PAGE.read_text():
            sys.exit("ARCHITECTURE.md shows other imports than there are: make graph")
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
