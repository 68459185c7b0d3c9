"""`python -m fedloom.reproduce.book`: the book of results, made from the stored ones.

python -m fedloom.reproduce.book --take runs/reproduce   store the results of that folder
python -m fedloom.reproduce.book                         write docs/results.md anew
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.errors import ExistsError
from ..core.files import SHARED, write_json
from .conduct import Conduct, check
from .experiment import Experiment, names
from .figure import figure
from .results import Result, duration, how, in_short, judged

STORED = Path(__file__).parent / "stored"
DOCS = Path(__file__).parents[3] / "docs"

HEAD = """\
# Results: the papers, reproduced

After this page you know which claims of the papers hold here, and which do not.

It has every figure and table that `fedloom reproduce` knows: what the paper says, what was found
here, and whether that is the same. Verdicts are computed from the curves, over seeds, with a margin
that each line states. A difference counts if it also exceeds twice its standard error. "Not
reproduced" is a result, too; the likely reason stands beside it.

Default sizes are far smaller than the papers', so that each run finishes in minutes on two cores.
Each result says what is smaller. `--full` is the paper's setting. Where other data stand in for a
paper's own, scores are not the paper's. Times are those of the training rounds, on a busy machine.

`python -m fedloom.reproduce.book` makes this page from stored results.
"""


def page() -> str:
    """The whole book."""
    results = list(_stored())
    lines = [HEAD, "| name | what | verdicts | with `--full` |", "|---|---|---|---|"]
    for name in names():
        by_size = {r["full"]: in_short(r) for r in results if r["name"] == name}
        word = f"[`{name}`](#{name})" if by_size else f"`{name}`"
        cells = (by_size.get(False, "not run"), by_size.get(True, "not run"))
        lines.append(f"| {word} | {Experiment.read(name).title} | {' | '.join(cells)} |")
    for name in names():
        own_results = [r for r in results if r["name"] == name]
        if own_results:
            lines += ["", f"## {name}", "", *_chapter(name, own_results)]
    return "\n".join(lines) + "\n"


def _stored() -> Iterator[Result]:
    for name in names():
        for called in (name, f"{name}-full"):
            if (path := STORED / f"{called}.json").is_file():
                yield json.loads(path.read_text(encoding="utf-8"))


def _chapter(name: str, results: list[Result]) -> Iterator[str]:
    description = Experiment.read(name).description
    yield f"**{Experiment.read(name).title}.** The paper: {description['claim']}"
    if "stand_in" in description:
        yield f"\nData: {description['stand_in']}"
    for result in results:
        yield from _result(Experiment.read(name, result["full"]), result)


def _result(experiment: Experiment, result: Result) -> Iterator[str]:
    text = how(experiment)
    text = text[0].upper() + text[1:]
    if result["iterations"]:
        text += f"; {result['iterations']:,} iterations"
    for axis, place in result["only"].items():
        text += f"; only {axis} = {place}"
    yield f"\n{text}. Seeds: {result['seeds']}. {result['device']}, {duration(result['seconds'])}."
    if not result["finished"]:
        yield "**Not finished**: what follows is how far the runs were."
    if result["full"] and result["rows_per_second"]:
        yield f"Rows a second: {_pairs(result['rows_per_second'])}."
    yield f"\n![{experiment.title}](results/{_called(result)}.png)\n"
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
    """The training losses in the search for a step size, beside the paper's choice."""
    if not result["search"]:
        return
    paper = experiment.description["search"].get("paper", "not said")
    yield f"\nTraining loss in the search for a step size (the paper's: {paper}); picked in bold:\n"
    values = list(dict.fromkeys(trial["value"] for trial in result["search"]))
    yield f"| | {' | '.join(f'{value:g}' for value in values)} |"
    yield f"|---{'|---' * len(values)}|"
    for name in dict.fromkeys(trial["setting"] for trial in result["search"]):
        trials = {trial["value"]: trial for trial in result["search"] if trial["setting"] == name}
        cells = [_number(trials[v]["train_loss"]) or "diverged" for v in values]
        bold = [
            f"**{c}**" if trials[v]["picked"] else c for c, v in zip(cells, values, strict=True)
        ]
        yield f"| {name} | {' | '.join(bold)} |"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value:,}" for name, value in values.items())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def take(root: Path) -> dict[str, str]:
    """Store the results of a folder: JSON in the package, figures in the docs. Returns for each
    whether it was stored, or why not."""
    STORED.mkdir(exist_ok=True)
    (DOCS / "results").mkdir(exist_ok=True)
    taken = {}
    for path in sorted(root.glob("*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        try:
            taken[path.parent.name] = _not_better(result) or _take(result, path)
        except ExistsError:
            taken[path.parent.name] = "of another description"
    return taken


def _not_better(result: Result) -> str:
    """Why a result should not take the place of the stored one; nothing if it should."""
    path = STORED / f"{_called(result)}.json"
    if not result["finished"] and not result["full"]:
        return "not finished"
    if not path.is_file():
        return ""
    known = json.loads(path.read_text(encoding="utf-8"))
    if known["finished"] and not result["finished"]:
        return "not finished, the stored one is"
    if known["seeds"] > result["seeds"]:
        return "the stored one has more seeds"
    if (known["iterations"] or math.inf) > (result["iterations"] or math.inf):
        return "the stored one has more iterations"
    return "the stored one has all curves" if result["only"] and not known["only"] else ""


def _take(result: Result, path: Path) -> str:
    """Judge and draw again by the present description, where the runs still exist."""
    called, folder = _called(result), path.parent
    experiment = Experiment.read(result["name"], result["full"], result["only"])
    conduct = Conduct(experiment, folder.parent, result["seeds"], None, result["iterations"])
    check([*conduct.trials, *conduct.runs])
    lines, figure_path = conduct.lines(), DOCS / "results" / f"{called}.png"
    if len(lines) == len(experiment.settings):
        facts = {key: result[key] for key in ("device", "created", "commit")}
        write_json(
            STORED / f"{called}.json", judged(conduct, lines, result["finished"]) | facts, SHARED
        )
        figure(experiment, lines, figure_path)
    else:
        shutil.copy(path, STORED / f"{called}.json")
        shutil.copy(folder / "figure.png", figure_path)
    return "stored"


def _called(result: Result) -> str:
    return f"{result['name']}-full" if result["full"] else str(result["name"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--take", type=Path, metavar="DIR", help="store the results of a folder")
    given = parser.parse_args()
    if given.take is not None:
        for name, outcome in take(given.take).items():
            print(f"{name}: {outcome}")
    (DOCS / "results.md").write_text(page(), encoding="utf-8")
    print(DOCS / "results.md")


if __name__ == "__main__":
    main()
