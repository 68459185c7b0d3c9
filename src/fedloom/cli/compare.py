"""fedloom compare: several runs in one figure."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..report.compare import compare, compare_table
from . import common


def add(verbs: common.Verbs) -> None:
    verb = common.add_verb(
        verbs,
        "compare",
        act,
        "several runs in one figure",
        """
        Draw several runs in one figure, named by the settings they differ in; runs that differ
        only in their seed are averaged. A sweep's folder stands for all its runs. Beside the
        figure, the final values are written as HTML, CSV and JSON; --json only prints them.

          fedloom compare runs/q1 runs/q10 --metric accuracy --axis time --out q.png
        """,
    )
    verb.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="runs' folders")
    verb.add_argument("--metric", help="which metric, or train_loss (default: by the data's goal)")
    verb.add_argument(
        "--axis", choices=["round", "iteration", "time", "bytes"], default="round", help="across"
    )
    verb.add_argument("--out", type=Path, default=Path("compare.png"), metavar="FILE.png")
    common.add_json(verb)


def act(chosen: argparse.Namespace) -> None:
    folders = list(runs_in(chosen.folders))
    if chosen.json:
        common.print_json(compare_table(folders, chosen.metric))
        return
    path = compare(folders, chosen.out, chosen.metric, chosen.axis)
    for suffix in (".png", ".html", ".csv", ".json"):
        print(path.with_suffix(suffix))


def runs_in(folders: list[Path]) -> list[Path]:
    """The folders, with a sweep's replaced by those of its runs."""
    runs: list[Path] = []
    for folder in folders:
        sweep = (folder / "sweep.json").is_file()
        inside = sorted(path.parent for path in folder.glob("*/manifest.json")) if sweep else []
        runs += inside or [folder]
    return runs
