"""fedloom reproduce: a figure or table of a paper, and whether it says what the paper says."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ..core.errors import SettingError
from ..core.extras import need
from ..reproduce.conduct import Conduct, One
from ..reproduce.experiment import Experiment, names
from ..reproduce.results import Result, conclude, how, in_short, latest, told_time
from ..reproduce.verdicts import Verdict
from . import common

ROOT = Path("runs/reproduce")
PAUSE = 15.0  # seconds between two lines of progress


def add(verbs: common.Verbs) -> None:
    one = common.add_verb(
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
    one.add_argument("name", nargs="?", metavar="NAME", help="of a figure or table: see --list")
    one.add_argument("--list", action="store_true", help="all of them, with the last verdicts")
    one.add_argument("--full", action="store_true", help="the paper's setting, not a smaller one")
    one.add_argument("--seeds", type=int, metavar="N", help="in place of the description's")
    one.add_argument("--iterations", type=int, metavar="N", help="local steps of every run")
    one.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="AXIS=PLACE",
        help="leave out curves that are elsewhere, as in --only 'K=fewer clients'",
    )
    one.add_argument("--out", type=Path, default=ROOT, metavar="DIR", help=f"default: {ROOT}")
    one.add_argument("--device", metavar="NAME", help="cpu (default), cuda, cuda:0, ...")
    one.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help="stop after so many seconds (0: judge what is there)",
    )
    one.add_argument("--quiet", action="store_true", help="no progress")
    common.add_json(one)


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
        print(f"{experiment.title}\nthe paper: {experiment.told['claim']}", file=sys.stderr)
        print(how(experiment), file=sys.stderr)
    conduct = Conduct(
        experiment,
        chosen.out,
        chosen.seeds or experiment.seeds,
        chosen.device,
        chosen.iterations,
        chosen.time_limit,
        Progress(chosen.quiet),
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
    if "stand_in" in experiment.told:
        print(f"data: {experiment.told['stand_in']}")
    for one in (one for one in result["search"] if one["picked"]):
        print(f"step size found for {one['setting'] or 'all'}: {one['value']}")
    for told in result["verdicts"]:
        print(Verdict(**told))
    if not result["finished"]:
        print("\nnot finished: the same command again goes on")
    print(f"\n{in_short(result)}; {told_time(result['seconds'])} of training")
    print(f"figure: {folder / 'figure.png'}\ncurves: {folder / 'curves.csv'}")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def show_list(chosen: argparse.Namespace) -> None:
    rows, told = [], []
    for name in names():
        experiment, line = Experiment.read(name), {"name": name}
        line["title"] = experiment.title
        for full in (False, True):
            found = latest(name, full, chosen.out)
            line["full" if full else "default"] = (
                "-" if found is None else f"{in_short(found[0])}, {found[1]}"
            )
        told.append(line)
        rows.append(tuple(line.values()))
    if chosen.json:
        common.print_json(told)
    else:
        common.print_table(("name", "what", "verdicts", "with --full"), rows)


class Progress:
    """A line now and then, and one for every run that ends."""

    def __init__(self, quiet: bool):
        self._quiet, self._last = quiet, time.monotonic()

    def __call__(self, done: int, count: int, one: One, said: str) -> None:
        ended = not said.startswith("round")
        if self._quiet or not (ended or time.monotonic() - self._last > PAUSE):
            return
        self._last = time.monotonic()
        where = f"[{done + ended}/{count}] {one.folder.parent.name} {one.folder.name}"
        print(f"{where}: {said}", file=sys.stderr, flush=True)
