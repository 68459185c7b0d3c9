"""`python -m fedloom.reproduce.book`: the book of results, made from the stored ones.

python -m fedloom.reproduce.book --take runs/reproduce   store what was run there, in the checkout
python -m fedloom.reproduce.book                         write docs/results.md anew
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .experiment import Experiment, names
from .results import Result, how, in_short, told_time

STORED = Path(__file__).parent / "stored"
DOCS = Path(__file__).parents[3] / "docs"

HEAD = """\
# Results: the papers, reproduced

Every figure and table of the papers that `fedloom reproduce` knows: what the paper says, what was
found here, and whether that is the same. Verdicts are computed from the curves, over seeds, with a
margin that each line states; a difference counts if it also exceeds twice its standard error.
"Not reproduced" is a result, too: the likely reason stands beside it.

Default sizes are far smaller than the papers' so that each finishes in minutes on two cores; what
is smaller is said each time. `--full` is the paper's setting. Scores on data that stand in for a
paper's own are not the paper's scores. Times are those of the training rounds, on a busy machine.

This page is made from stored results by `python -m fedloom.reproduce.book`.
"""


def page() -> str:
    """The whole book."""
    found = list(_stored())
    lines = [HEAD, "| | | verdicts | with `--full` |", "|---|---|---|---|"]
    for name in names():
        mine = {r["full"]: in_short(r) for r in found if r["name"] == name}
        word = f"[`{name}`](#{name})" if mine else f"`{name}`"
        cells = (mine.get(False, "not run"), mine.get(True, "not run"))
        lines.append(f"| {word} | {Experiment.read(name).title} | {' | '.join(cells)} |")
    for name in names():
        mine_all = [r for r in found if r["name"] == name]
        if mine_all:
            lines += ["", f"## {name}", "", *_chapter(name, mine_all)]
    return "\n".join(lines) + "\n"


def _stored() -> Iterator[Result]:
    for name in names():
        for called in (name, f"{name}-full"):
            if (path := STORED / f"{called}.json").is_file():
                yield json.loads(path.read_text(encoding="utf-8"))


def _chapter(name: str, results: list[Result]) -> Iterator[str]:
    told = Experiment.read(name).told
    yield f"**{Experiment.read(name).title}.** The paper: {told['claim']}"
    if "stand_in" in told:
        yield f"\nData: {told['stand_in']}"
    for result in results:
        yield from _result(Experiment.read(name, result["full"]), result)


def _result(experiment: Experiment, result: Result) -> Iterator[str]:
    called = f"{result['name']}-full" if result["full"] else result["name"]
    told = how(experiment)
    told = told[0].upper() + told[1:]
    if result["iterations"]:
        told += f"; {result['iterations']:,} iterations"
    for axis, place in result["only"].items():
        told += f"; only {axis} = {place}"
    yield f"\n{told}. Seeds: {result['seeds']}. {result['device']}, {told_time(result['seconds'])}."
    if not result["finished"]:
        yield "**Not finished**: what follows is how far the runs were."
    if result["full"] and result["rows_per_second"]:
        yield f"Rows a second: {_pairs(result['rows_per_second'])}."
    yield f"\n![{experiment.title}](results/{called}.png)\n"
    yield "| | | at | mean | sd | paper |"
    yield "|---|---|---|---|---|---|"
    for n in result["numbers"]:
        paper = "" if n["paper"] is None else f"{n['paper']:g}"
        yield (
            f"| {n['setting']} | {n['y']} | {n['at']} | {_number(n['mean'])} | {_number(n['sd'])} "
            f"| {paper} |"
        )
    yield from _search(experiment, result)
    yield ""
    for verdict in result["verdicts"]:
        word = "Reproduced" if verdict["held"] else "Not reproduced"
        why = "" if verdict["held"] or not verdict["reason"] else f" Likely: {verdict['reason']}."
        yield f"- **{word}**: {verdict['claim']}. {verdict['detail']}.{why}"


def _search(experiment: Experiment, result: Result) -> Iterator[str]:
    """What the search for a step size saw, beside what the paper's found."""
    if not result["search"]:
        return
    paper = experiment.told["search"].get("paper", "not said")
    yield f"\nTraining loss in the search for a step size (the paper's: {paper}); picked in bold:\n"
    values = list(dict.fromkeys(one["value"] for one in result["search"]))
    yield f"| | {' | '.join(f'{value:g}' for value in values)} |"
    yield f"|---{'|---' * len(values)}|"
    for name in dict.fromkeys(one["setting"] for one in result["search"]):
        mine = {one["value"]: one for one in result["search"] if one["setting"] == name}
        cells = [_number(mine[v]["train_loss"]) or "diverged" for v in values]
        bold = [f"**{c}**" if mine[v]["picked"] else c for c, v in zip(cells, values, strict=True)]
        yield f"| {name} | {' | '.join(bold)} |"


def _pairs(told: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value:,}" for name, value in told.items())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def take(root: Path) -> list[str]:
    """Store the results of a folder: JSON in the package, figures in the docs."""
    found = []
    for result in sorted(root.glob("*/result.json")):
        called = result.parent.name
        STORED.mkdir(exist_ok=True)
        (DOCS / "results").mkdir(exist_ok=True)
        shutil.copy(result, STORED / f"{called}.json")
        shutil.copy(result.parent / "figure.png", DOCS / "results" / f"{called}.png")
        found.append(called)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--take", type=Path, metavar="DIR", help="store the results of a folder")
    given = parser.parse_args()
    if given.take is not None:
        print("stored:", ", ".join(take(given.take)))
    (DOCS / "results.md").write_text(page(), encoding="utf-8")
    print(DOCS / "results.md")


if __name__ == "__main__":
    main()
