"""`python -m benchmarks.kills`: rehearsals on real data whose parties are killed again and again.

Three organisations that know different things of 442 patients, each with a hub and two clients:
nine processes over mutual TLS (algorithms for one silo: fewer). One party, two, or a whole
organisation are killed by SIGKILL and started again, at once or late: after a random pause when
rounds are made again, at times before that, and at named lines of code (storms.py). With
`--restores`, some hubs come back from a backup of their folder. Prints a row of a table for each.

    python -m benchmarks.kills --case tdcd-private-labels --missing skip --kills 25 --rounds 700
    python -m benchmarks.kills --case all --missing skip --runs 3
    python -m benchmarks.kills --case tdcd --restores --rounds 300
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path

from fedloom.config.runfile import RunFile
from fedloom.core.errors import FedLoomError
from fedloom.deployment.rehearsal import Rehearsal

from .storms import SKIP, WAIT, Storm

PATIENTS = """\
[data]
name = "diabetes"

[partition]
vertical = "columns"
clients = 2

[partition.columns]
practice = ["age", "sex", "bmi", "bp"]
lab = ["s1", "s2", "s3"]
clinic = ["s4", "s5", "s6"]

[model]
name = "mlp"
hidden = [16]
"""
ONE_SILO = """\
[data]
name = "diabetes"

[partition]
silos = 1
clients = 4

[model]
name = "mlp"
hidden = [16]
"""
VIEWS = """\
[data]
name = "digits"
take = 400

[partition]
silos = ["upper-left", "upper-right", "lower-left", "lower-right"]
grid = [2, 2]
views = {ash = [0, 1, 2], birch = [1, 2, 3], cedar = [0, 2, 3], doum = [0, 1, 3]}

[partition.classes]
ash = [0, 1, 2, 3, 4, 5, 6]
birch = [3, 4, 5, 6, 7, 8, 9]
cedar = [0, 1, 2, 6, 7, 8, 9]
doum = [0, 1, 2, 3, 4, 5, 9]

[model]
name = "multiview"
extractor = {name = "linear"}
view_width = 8
hidden = [8]
"""
HEAD = 'embedding = 8\nhead = {name = "linear"}\n'
MIDDLE = 'embedding = 8\nmiddle = {name = "linear"}\nhead = {name = "linear"}\n'
ARRIVAL = '\n[engine]\norder = "arrival"\n'
Q5 = "local_steps = 5\n"
HEAD_OF_TABLE = ("algorithm", "kills", "hubs", "at points", "absences", "restored", "went back")
HEAD_OF_TABLE += ("rounds", "seconds", "model", "ledger")
CASES: Mapping[str, tuple[str, str]] = {  # the text before [algorithm], and in it
    "tdcd": (PATIENTS, 'name = "tdcd"\n' + Q5),
    "tdcd with a head": (PATIENTS + HEAD, 'name = "tdcd"\n' + Q5),
    "tdcd-private-labels": (PATIENTS, 'name = "tdcd-private-labels"\nlocal_steps = 3\n'),
    "fedbcd": (PATIENTS, 'name = "fedbcd"\n' + Q5),
    "fedbcd in turn": (PATIENTS + HEAD, 'name = "fedbcd"\norder = "sequential"\n' + Q5),
    "fedbcd frozen in turn": (
        PATIENTS,
        'name = "fedbcd"\norder = "sequential"\nupdates = "frozen-gradient"\n' + Q5,
    ),
    "splitnn": (PATIENTS + HEAD, 'name = "splitnn"\nlocal_steps = 2\n'),
    "splitnn-u": (PATIENTS + MIDDLE, 'name = "splitnn-u"\n'),
    "vafl": (PATIENTS + HEAD, 'name = "vafl"\nvisits = 5\nmax_delay = 3\n'),
    "vafl by arrival": (PATIENTS + HEAD + ARRIVAL, 'name = "vafl"\nvisits = 6\ngroup = 2\n'),
    "splitnn-async": (PATIENTS + HEAD, 'name = "splitnn-async"\nlocal_steps = 2\nvisits = 5\n'),
    "splitnn-async by arrival": (
        PATIENTS + HEAD + ARRIVAL,
        'name = "splitnn-async"\nlocal_steps = 2\nvisits = 6\n',
    ),
    "central": (PATIENTS, 'name = "central"\n'),
    "alone": (PATIENTS, 'name = "alone"\n' + Q5),
    "fedavg": (ONE_SILO, 'name = "fedavg"\n' + Q5),
    "fedprox": (ONE_SILO, 'name = "fedprox"\n' + Q5),
    "hyfem-avg": (VIEWS, 'name = "hyfem-avg"\nlocal_steps = 2\nsweeps = 1\n'),
    "hyfem-prox": (VIEWS, 'name = "hyfem-prox"\nlocal_steps = 2\nsweeps = 1\n'),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="tdcd", help=f"all, or of: {', '.join(CASES)}")
    parser.add_argument("--missing", choices=["wait", "skip"], default="wait")
    parser.add_argument("--kills", type=int, default=25, help="of one run, at least")
    parser.add_argument("--restores", action="store_true", help="some hubs come from a backup")
    parser.add_argument("--rounds", type=int, default=700, help="of one run")
    parser.add_argument("--runs", type=int, default=1, help="of each case")
    parser.add_argument("--seed", type=int, default=0, help="of the first run's kills")
    parser.add_argument("--within", type=float, default=1800.0, help="seconds, for one run")
    parser.add_argument("--keep", type=Path, help="a folder for what does not come out exactly")
    args = parser.parse_args()
    cases = list(CASES) if args.case == "all" else [args.case]
    print(f"| {' | '.join(HEAD_OF_TABLE)} |\n|{'---|' * len(HEAD_OF_TABLE)}", flush=True)
    exact = [
        play(case, seed, args) for seed in range(args.seed, args.seed + args.runs) for case in cases
    ]
    print(f"{sum(exact)} of {len(exact)} exact")
    return 0 if all(exact) else 1


def run_file(case: str, rounds: int) -> RunFile:
    before, inside = CASES[case]
    shared = f"lr = 0.01\nbatch = 100\nrounds = {rounds}\n"
    head, _, engine = before.partition("\n[engine]")
    return RunFile.parse(
        f"{head}\n[algorithm]\n{inside}{shared}" + (f"\n[engine]{engine}" if engine else "")
    )


def play(case: str, seed: int, args: argparse.Namespace) -> bool:
    """Run one storm and print its row; returns whether it was exact."""
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    waits = SKIP if args.missing == "skip" else WAIT
    rehearsal = Rehearsal(run_file(case, args.rounds), folder / "rehearsal", waits)
    say = lambda line: print(f"{case}, seed {seed}: {line}", file=sys.stderr, flush=True)  # noqa: E731
    is_exact = False
    try:
        outcome = Storm(
            rehearsal, args.kills, random.Random(seed), args.restores, args.within, say
        ).blow()
        is_exact = outcome.is_exact
        model = "exact" if outcome.difference == 0 else f"DIFFERS by {outcome.difference:.1e}"
        ledger = "equal" if outcome.same_ledger else "DIFFERENT"
        numbers = (outcome.kills, outcome.hubs, outcome.at_points, outcome.absences)
        numbers += (outcome.restored, outcome.went_back, outcome.rounds)
        cells = " | ".join(map(str, numbers)) + f" | {outcome.seconds:.0f} | {model} | {ledger} |"
        print(f"| {case}, seed {seed} | {cells}", flush=True)
    except FedLoomError as problem:
        traceback.print_exc()
        print(f"| {case}, seed {seed} | did not end: {problem} |", flush=True)
    finally:
        if args.keep is not None and not is_exact:
            shutil.move(folder, args.keep / f"{case.replace(' ', '-')}-{seed}")
        else:
            shutil.rmtree(folder)
    return is_exact


if __name__ == "__main__":
    sys.exit(main())
