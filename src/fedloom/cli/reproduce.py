"""fedloom reproduce: a figure or table of a paper, with verdicts on the paper's claims."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ..core.errors import SettingError
from ..core.extras import need
from ..reproduce.conduct import Conduct, PlannedRun
from ..reproduce.experiment import Experiment, names
from ..reproduce.results import Result, conclude, duration, how, in_short, latest
from ..reproduce.verdicts import Verdict
from . import common

ROOT = Path("runs/reproduce")
PAUSE = 15.0  # seconds between two lines of progress


def add(verbs: common.Verbs) -> None:
    verb = common.add_verb(
        verbs,
        "reproduce",
        act,
        "a figure or table of a paper, with a verdict",
        """
        Run what a figure or table of a paper shows, draw it with the paper's axes, and judge from
        the curves, over several seeds, whether each of the paper's claims holds here.

          fedloom reproduce --list
          fedloom reproduce icassp-fig2a                     minutes on two cores
          fedloom reproduce tdcd-fig3 --full --device cuda   the paper's setting
          fedloom reproduce tdcd-fig3 --full --device cuda --time-limit 500   a piece of it

        The same command again goes on: finished runs stay, others are resumed.
        """,
    )
    verb.add_argument("name", nargs="?", metavar="NAME", help="of a figure or table: see --list")
    verb.add_argument("--list", action="store_true", help="all of them, with the last verdicts")
    verb.add_argument("--full", action="store_true", help="the paper's setting, not a smaller one")
    verb.add_argument("--seeds", type=int, metavar="N", help="in place of the description's")
    verb.add_argument("--iterations", type=int, metavar="N", help="local steps of every run")
    verb.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="AXIS=PLACE",
        help="leave out curves that are elsewhere, as in --only 'K=fewer clients'",
    )
    verb.add_argument("--out", type=Path, default=ROOT, metavar="DIR", help=f"default: {ROOT}")
    verb.add_argument("--device", metavar="NAME", help="cpu (default), cuda, cuda:0, ...")
    verb.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help="stop after so many seconds (0: judge what is there)",
    )
    verb.add_argument("--quiet", action="store_true", help="no progress")
    common.add_json(verb)


def act(chosen: argparse.Namespace) -> None:
    if chosen.list or chosen.name is None:
        return show_list(chosen)
    only = dict(part.partition("=")[::2] for part in chosen.only)
    experiment = Experiment.read(chosen.name, chosen.full, only)
    for option, least in (("seeds", 1), ("iterations", 1), ("time_limit", 0)):
        if (value := getattr(chosen, option)) is not None and value < least:
            word = option.replace("_", "-")
            raise SettingError(f"--{word} must be at least {least}, not {value}")
    need("report", "a figure of a paper")  # which is drawn at the end
    if not chosen.quiet:
        print(f"{experiment.title}\nthe paper: {experiment.description['claim']}", file=sys.stderr)
        print(how(experiment), file=sys.stderr)
    conduct = Conduct(
        experiment,
        chosen.out,
        chosen.seeds or experiment.seeds,
        chosen.device,
        chosen.iterations,
        chosen.time_limit,
        ProgressLines(chosen.quiet),
    )
    finished = conduct.go()
    result = conclude(conduct, finished)
    if result is None:
        print("not every curve has begun: the same command again goes on")
    elif chosen.json:
        common.print_json(result)
    else:
        show(experiment, result, conduct.folder)


def show(experiment: Experiment, result: Result, folder: Path) -> None:
    """Numbers, verdicts, and where the rest is."""
    common.print_table(
        ("", "what", "at", "mean", "sd", "paper"),
        [
            (
                *(n["setting"], n["y"], n["at"], _short(n["mean"]), _short(n["sd"])),
                "-" if n["paper"] is None else n["paper"],
            )
            for n in result["numbers"]
        ],
    )
    print()
    if "stand_in" in experiment.description:
        print(f"data: {experiment.description['stand_in']}")
    for trial in (trial for trial in result["search"] if trial["picked"]):
        print(f"step size found for {trial['setting'] or 'all'}: {trial['value']}")
    for verdict in result["verdicts"]:
        print(Verdict(**verdict))
    if not result["finished"]:
        print("\nnot finished: the same command again goes on")
    print(f"\n{in_short(result)}; {duration(result['seconds'])} of training")
    print(f"figure: {folder / 'figure.png'}\ncurves: {folder / 'curves.csv'}")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def show_list(chosen: argparse.Namespace) -> None:
    rows, table = [], []
    for name in names():
        experiment, line = Experiment.read(name), {"name": name}
        line["title"] = experiment.title
        for full in (False, True):
            result = latest(name, full, chosen.out)
            line["full" if full else "default"] = (
                "-" if result is None else f"{in_short(result[0])}, {result[1]}"
            )
        table.append(line)
        rows.append(tuple(line.values()))
    if chosen.json:
        common.print_json(table)
    else:
        common.print_table(("name", "what", "verdicts", "with --full"), rows)


class ProgressLines:
    """A line now and then, and one for every run that ends."""

    def __init__(self, quiet: bool):
        self._quiet, self._last = quiet, time.monotonic()

    def __call__(self, done: int, count: int, run: PlannedRun, message: str) -> None:
        ended = not message.startswith("round")
        if self._quiet or not (ended or time.monotonic() - self._last > PAUSE):
            return
        self._last = time.monotonic()
        where = f"[{done + ended}/{count}] {run.folder.parent.name} {run.folder.name}"
        print(f"{where}: {message}", file=sys.stderr, flush=True)
