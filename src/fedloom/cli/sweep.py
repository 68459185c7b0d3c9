"""fedloom sweep: many runs from one run file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..core.errors import FedLoomError, SettingError, nearest
from ..core.extras import lacking
from ..report.compare import MOST, compare
from ..runs.sweep import Sweep, by_point
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
          fedloom sweep digits.toml --grid 'algorithm.lr=[0.01,0.1,1]' --best train_loss

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
        help="the values of a key (again for more keys: all combinations)",
    )
    verb.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds for each point")
    verb.add_argument("--out", type=Path, metavar="DIR", help="default: runs/NAME-sweep")
    verb.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: cores)")
    verb.add_argument(
        "--best", default="train_loss", metavar="METRIC", help="sort by this, best first"
    )
    verb.add_argument("--quiet", action="store_true", help="no progress")
    common.add_json(verb)


def act(chosen: argparse.Namespace) -> None:
    if chosen.jobs is not None and chosen.jobs < 1:
        raise SettingError(f"--jobs must be at least 1, not {chosen.jobs}")
    out = chosen.out or Path("runs") / f"{chosen.file.stem}-sweep"
    sweep = Sweep.of(chosen.file, chosen.set, chosen.grid, chosen.seeds, out)
    points = sweep.points()
    jobs = min(chosen.jobs or os.cpu_count() or 1, len(points))
    bar = tqdm(total=len(points), desc="sweep", unit="run", disable=chosen.quiet or None)

    def tell(name: str, code: int) -> None:
        bar.update(1)
        if code:
            log = out / "files" / f"{name}.log"
            tqdm.write(f"{name}: failed with exit code {code} (see {log})", file=sys.stderr)

    codes = sweep.go(jobs, tell)
    bar.close()
    results = sweep.results()
    best = by_point(results, chosen.best)
    if not best and any(line["finished"] for line in results):
        known = ["train_loss", *next(line["last"] for line in results if line["last"])["metrics"]]
        raise SettingError(f"--best {chosen.best}{nearest(chosen.best, known)}")
    why = lacking("report", "a figure of the sweep")
    if why is not None:
        print(f"note: left out: {why}; then: fedloom compare {out}", file=sys.stderr)
    elif 0 < len(best) <= MOST:
        compare([folder for folder in runs_in([out]) if folder.name in points], out / "compare.png")
    if chosen.json:
        common.print_json({"runs": results, "best": best})
    else:
        show(best, chosen.best)
        print(f"\nfolder: {out}")
        if (out / "compare.png").is_file():
            print(f"figure: {out / 'compare.png'}")
    failed = [name for name, code in codes.items() if code]
    if failed:
        raise FedLoomError(f"{len(failed)} of {len(points)} runs failed: {', '.join(failed)}")


def show(best: list[dict[str, Any]], metric: str) -> None:
    """The points of the grid, best first."""
    keys = list(best[0]["settings"]) if best else []
    tests = [name for name in (best[0]["test"] if best else {}) if name != metric]
    common.print_table(
        (*keys, metric, "lowest", "highest", "seeds", *(f"test {name}" for name in tests)),
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
