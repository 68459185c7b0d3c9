"""Parser, dispatch and exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..core.errors import (
    AbortedError,
    DataError,
    DivergedError,
    ExistsError,
    FedLoomError,
    InterruptedRun,
    LostError,
    ModelError,
    NoCommonRoundError,
    ProtocolError,
    RefusedError,
    SettingError,
    WriteError,
)
from ..engines.multiprocess.ranks import several, speaks
from ..records.manifest import version_of
from . import (
    check,
    compare,
    data,
    example,
    explain,
    keys,
    listing,
    party,
    predict,
    report,
    reproduce,
    run,
    sweep,
)

CODES: dict[type[BaseException], tuple[int, str]] = {
    SettingError: (2, "a run file, a setting or an option is wrong"),
    ModelError: (2, "a model does not fit"),
    DataError: (3, "data are missing, damaged or do not fit"),
    DivergedError: (4, "training diverged; what was done is saved"),
    ExistsError: (5, "the output folder already holds something"),
    WriteError: (6, "a file cannot be written (disk full, no permission)"),
    OSError: (6, "a file cannot be written or read"),
    LostError: (10, "a party was lost, and the run ended for everyone"),
    AbortedError: (10, "another party ended the run"),
    ProtocolError: (11, "protocol violation"),
    RefusedError: (12, "refused by another party: certificate, or run"),
    NoCommonRoundError: (13, "hubs have no round in common: restore what the line says"),
    InterruptedRun: (130, "interrupted; what was done is saved"),
    KeyboardInterrupt: (130, "interrupted"),
}

ABOUT = """\
Federated learning on data that is cut both ways: across silos (organisations with different
features of the same people) and across the clients inside each silo."""

FIRST = """\
a first run:
  fedloom example diabetes                a run file to begin with
  fedloom run diabetes.toml               train, compare with baselines, write a report
  fedloom list                            algorithms, models, data sets and their settings
  fedloom explain tdcd                    who would send what to whom

exit codes: 0 done, 1 unexpected error, 2 run file or option wrong, 3 data wrong,
  4 training diverged, 5 output folder in use, 6 cannot write, 10 a party was lost,
  11 protocol violation, 12 refused by another party, 13 hubs have no round in common to go on
  from: restore one, 130 interrupted (state saved)"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="fedloom",
        description=ABOUT,
        epilog=FIRST,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"fedloom {version_of('fedloom') or '(not installed)'}"
    top.add_argument("--version", action="version", version=version)
    top.add_argument("--debug", action="store_true", help="show where an error came from")
    verbs = top.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    simulated = (run, example, sweep, compare, report, reproduce, listing, explain, data, check)
    for verb in (*simulated, keys, party, predict):
        verb.add(verbs)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words:
        parser().print_help()
        return 2
    chosen = parser().parse_args(words)
    try:
        if chosen.verb != "run" and several():
            raise SettingError(
                f"torchrun is for `fedloom run`; start `fedloom {chosen.verb}` alone"
            )
        chosen.action(chosen)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone: `fedloom list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (FedLoomError, KeyboardInterrupt, OSError) as problem:
        if chosen.debug:
            raise
        message = str(problem) or "interrupted"
        if isinstance(problem, OSError) and not isinstance(problem, FedLoomError):
            message = f"{problem.filename or 'a file'}: {problem.strerror or problem}"
        if speaks() or isinstance(problem, LostError):
            print(f"fedloom: {message}", file=sys.stderr)
        return code_of(problem)
    return 0


def code_of(problem: BaseException) -> int:
    """The exit code of an error."""
    return next((code for kind, (code, _) in CODES.items() if isinstance(problem, kind)), 1)
