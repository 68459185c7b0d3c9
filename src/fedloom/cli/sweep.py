"""fedloom sweep: many runs from one run file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..config.runfile import RunFile
from ..core.errors import FedLoomError, SettingError
from ..core.extras import lacking
from ..report.compare import MOST, compare
from ..runs.sweeps.search import SAMPLERS, Search
from ..runs.sweeps.sweep import TRAIN_LOSS, Sweep, by_point, ranking
from . import common
from .compare import runs_in


def add(verbs: common.Verbs) -> None:
    verb = common.add_verb(
        verbs,
        "sweep",
        act,
        "a grid of runs over any keys, with several seeds",
        """
        Run a grid over any keys of a run file, each point with several seeds, in parallel
        processes. The same command again goes on with it: finished runs stay as they are.

          fedloom sweep digits.toml --grid 'algorithm.local_steps=[1,10,20]' --seeds 3
          fedloom sweep digits.toml --grid 'algorithm.lr=[0.01,0.1,1]' --set data.validation=0.15
          fedloom sweep digits.toml --search tpe --trials 30 --set data.validation=0.15 \\
            --grid 'algorithm.lr={low = 0.001, high = 1.0, log = true}'

        Each run has its own folder, its output is in files/NAME.log; compare.png shows up to 12
        settings in one figure.
        """,
    )
    common.add_run_file(verb)
    verb.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="SECTION.KEY=[V,...]",
        help="the values of a key (again for more keys: all combinations); with --search also a "
        "range, {low = 0.001, high = 1.0, log = true}",
    )
    verb.add_argument(
        "--search", choices=SAMPLERS, help="draw points, and stop poor runs (extra optuna)"
    )
    verb.add_argument("--trials", type=int, metavar="N", help="points that --search draws in all")
    verb.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds for each point")
    verb.add_argument("--out", type=Path, metavar="DIR", help="default: runs/NAME-sweep")
    verb.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: cores)")
    verb.add_argument(
        "--best",
        metavar="METRIC",
        help="sort by this, best first: of the validation rows, or train_loss",
    )
    verb.add_argument("--quiet", action="store_true", help="no progress")
    common.add_json(verb)


def act(chosen: argparse.Namespace) -> None:
    if chosen.jobs is not None and chosen.jobs < 1:
        raise SettingError(f"--jobs must be at least 1, not {chosen.jobs}")
    out = chosen.out or Path("runs") / f"{chosen.file.stem}-sweep"
    metric = ranking(RunFile.read(chosen.file, chosen.set), chosen.best)
    sweep = sweep_of(chosen, metric, out)
    total = sweep.trials if isinstance(sweep, Search) else len(sweep.points())
    jobs = min(chosen.jobs or os.cpu_count() or 1, total)
    bar = tqdm(total=total, desc="sweep", unit="run", disable=chosen.quiet or None)
    failed: list[str] = []

    def tell(name: str, code: int) -> None:
        bar.update(1)
        if code:
            failed.append(name)
            log = out / "files" / f"{name}.log"
            tqdm.write(f"{name}: failed with exit code {code} (see {log})", file=sys.stderr)

    sweep.go(jobs, tell)
    bar.close()
    results = sweep.results()
    best = by_point(results, metric)
    if not best and any(line["finished"] for line in results):
        raise SettingError(f"--best {metric}: no run has a number for it")
    why = lacking("report", "a figure of the sweep")
    if why is not None:
        print(f"note: left out: {why}; then: fedloom compare {out}", file=sys.stderr)
    elif 0 < len(best) <= MOST:
        names = {line["name"] for line in results}
        compare([folder for folder in runs_in([out]) if folder.name in names], out / "compare.png")
    if chosen.json:
        common.print_json({"runs": results, "best": best})
    else:
        show(best, metric)
        print(f"\nfolder: {out}")
        if (out / "compare.png").is_file():
            print(f"figure: {out / 'compare.png'}")
    if failed:
        raise FedLoomError(f"{len(failed)} of {total} runs failed: {', '.join(failed)}")


def sweep_of(chosen: argparse.Namespace, metric: str, out: Path) -> Sweep | Search:
    """The grid, or the search, that the arguments ask for."""
    if chosen.search is None:
        if chosen.trials is not None:
            raise SettingError("--trials is for --search: a grid runs all of its points")
        return Sweep.of(chosen.file, chosen.set, chosen.grid, chosen.seeds, out)
    if chosen.seeds != 1:
        raise SettingError("--search runs each point once: leave out --seeds")
    if chosen.trials is None:
        raise SettingError("--search needs --trials, how many points to try")
    given = (chosen.file, chosen.set, chosen.grid, chosen.search, chosen.trials, metric, out)
    return Search.of(*given)


def show(best: list[dict[str, Any]], metric: str) -> None:
    """The points of the grid, best first."""
    keys = list(best[0]["settings"]) if best else []
    tests = list(best[0]["test"]) if best else []
    title = metric if metric == TRAIN_LOSS else f"validation {metric}"
    common.print_table(
        (*keys, title, "lowest", "highest", "seeds", *(f"test {name}" for name in tests)),
        [
            (
                *point["settings"].values(),
                *(common.shown(point[word]) for word in ("mean", "lowest", "highest")),
                point["seeds"],
                *(common.shown(point["test"][name]) for name in tests),
            )
            for point in best
        ],
    )
