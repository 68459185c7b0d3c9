"""fedloom run: train what a run file describes."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from ..config.runfile import RunFile
from ..core.errors import DivergedError, SettingError
from ..core.extras import lacking
from ..engines.multiprocess.ranks import WAIT, Ranks, joined, restarted
from ..privacy.spending import in_words
from ..records.record import GREW, grew, result_of
from ..report.folder import read_run
from ..report.page import write_report
from ..report.verdict import verdict
from ..runs.follower import Follower
from ..runs.job import Job
from ..runs.pooled.baseline import Pooled
from ..runs.run import Run
from . import common
from .progress import watcher


def add(verbs: common.Verbs) -> None:
    verb = common.add_verb(
        verbs,
        "run",
        act,
        "train what a run file describes, and write a report",
        """
        Train what a run file describes, beside the baselines it names, and write records,
        checkpoints, the model and a report into a folder.

          fedloom run digits.toml
          fedloom run digits.toml --set algorithm.lr=0.05 --set engine.seed=3 --out runs/slow
          fedloom run --resume runs/slow      after Ctrl-C, a crash or a full disk
          fedloom run digits.toml --more 50   a finished run, for 50 rounds more

        torchrun --nproc-per-node 2 -m fedloom run digits.toml
                                              the same in two processes, which share the work

        Ctrl-C stops after the round that is going on and saves what was done (exit code 130).
        """,
    )
    common.add_run_file(verb, nargs="?")
    verb.add_argument("--out", type=Path, metavar="DIR", help="the folder to write to")
    verb.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in a folder")
    verb.add_argument(
        "--more", type=int, metavar="ROUNDS", help="go on with a finished run for so many rounds"
    )
    verb.add_argument("--quiet", action="store_true", help="no progress, no summary")
    verb.add_argument(
        "--wait",
        type=float,
        default=WAIT,
        metavar="SECONDS",
        help=f"with torchrun: how long processes wait for each other (default {WAIT:g})",
    )


def act(chosen: argparse.Namespace) -> None:
    if not chosen.wait > 0:
        raise SettingError(f"--wait must be above 0 seconds, not {chosen.wait:g}")
    with joined(chosen.wait) as ranks:
        job = job_of(chosen, ranks)
        try:
            parts = job.go()
        except DivergedError:
            if (ranks is None or ranks.rank == 0) and job.file.output.report:
                report_of(job)  # of what was done
            raise
        if ranks is None or ranks.rank == 0:
            tell(chosen, job, parts)


def job_of(chosen: argparse.Namespace, ranks: Ranks | None) -> Job:
    """The job that the arguments ask for, in this process. Where torchrun restarts all processes,
    the arguments are the same, and the run goes on."""
    file, folder, watch = None, chosen.resume, watcher(chosen.quiet)
    if folder is not None:
        if chosen.file is not None or chosen.out is not None or chosen.set or chosen.more:
            raise SettingError(
                "--resume goes on with a run as it is: no run file, --set, --out or --more"
            )
    elif chosen.file is None:
        raise SettingError("a run file is needed, or --resume DIR")
    else:
        file = RunFile.read(chosen.file, chosen.set)
        folder = chosen.out or Path(file.output.folder or Path("runs") / chosen.file.stem)
        file = file.replaced("output", folder=str(folder))
        if chosen.more is not None:
            if chosen.more < 1:
                raise SettingError(f"--more must be at least 1, not {chosen.more}")
            if ranks is not None:
                raise SettingError("--more goes on in one process: start it without torchrun")
            return Job.more(file, folder, chosen.more, watch)
        if restarted() and (folder / "run.toml").is_file():
            file = None
    if ranks is not None and ranks.rank:
        return Follower(file or RunFile.read(folder / "run.toml"), folder, ranks=ranks)
    if file is None:
        return Job.resume(folder, watch, ranks)
    return Job.new(file, folder, watch, ranks)


def tell(chosen: argparse.Namespace, job: Job, parts: Mapping[str, Run | Pooled]) -> None:
    """Write the report, print the results."""
    page = report_of(job) if job.file.output.report else None
    for name, run in parts.items():
        if run.halted is not None:
            print(f"note: {name}: {run.halted}", file=sys.stderr)
        if grew(run.records):
            print(f"warning: {name}: {GREW}", file=sys.stderr)
    if not chosen.quiet:
        summary(parts)
        print(f"\n{textwrap.fill(verdict(read_run(job.folder)), 100)}")
        spent = next(iter(parts.values())).records[-1].privacy
        if spent is not None:
            print(f"\n{in_words(spent)}")
        print(f"\nfolder: {job.folder}")
        if page is not None:
            print(f"report: {page}")


def report_of(job: Job) -> Path | None:
    """The page; warns where the extra for it is not installed."""
    if (why := lacking("report", "a report")) is not None:
        print(f"note: left out: {why}; then: fedloom report {job.folder}", file=sys.stderr)
        return None
    return write_report(job.folder)


def summary(parts: Mapping[str, Run | Pooled]) -> None:
    """The results of each part."""
    metric = next(iter(parts.values())).headline
    rows = []
    for name, run in parts.items():
        last, result = run.records[-1], result_of(run.records)
        value = result.metrics.get(metric) if metric else None
        ends = (result.intervals or {}).get(metric) if metric else None
        interval = "-" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"
        pooled = isinstance(run, Pooled)
        sent = "-" if pooled else common.human_bytes(sum(last.bytes.values()))
        time = "-" if last.time is None else f"{last.time:g}"
        numbers = (f"{result.train_loss:.4f}", sent, time, f"{last.wall:.1f} s")
        rounds = "-" if pooled else last.round
        rows.append((name, rounds, common.shown(value), interval, *numbers))
    print()
    names = (f"test {metric}" if metric else "test", "95 % interval")
    head = (*names, "train loss", "sent", "time units", "seconds")
    common.print_table(("", "rounds", *head), rows)
