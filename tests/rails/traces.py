"""What runs come to, in few numbers: of every battery example, and of every run file of examples/.

Stored in `stored.json` and compared by `test_traces.py`, so that no change of the code changes what
algorithms compute, send or record. Ledgers, and who answered, are equal exactly; weights and
records up to last digits, which differ between processors. To see that a change of the code left
every bit as it was, compare two states of it on one machine:

    python tests/rails/traces.py --exact before.json    # at the state before
    python tests/rails/traces.py --exact after.json     # at the state after
    cmp before.json after.json

    python tests/rails/traces.py --write                # what a named change of behaviour comes to
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fedloom import Drawn, Run
from fedloom.config.runfile import RunFile
from fedloom.core import tree
from fedloom.core.registry import algorithms
from fedloom.runs.build import build_data, build_parts
from fedloom.testing import sample_of
from fedloom.testing.samples import examples_of

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).with_name("stored.json")
ENGINES = ("stacked", "reference")
ROUNDS = 3  # of an example of the battery
SHORT = {"rounds": 5}  # of a run file

Trace = dict[str, Any]


def battery_cases() -> Iterator[tuple[str, Callable[[], list[Run]]]]:
    for name in algorithms:
        for number, example in enumerate(examples_of(algorithms[name])):
            for engine in ENGINES:

                def play(example: Any = example, engine: Any = engine) -> list[Run]:
                    options = {"schedule": Drawn(0.7, seed=5), "precision": "float64", "seed": 3}
                    run = Run(example, *sample_of(example), engine=engine, **options)
                    return [run.fit(ROUNDS, every=1, progress=False)]

                yield f"{name} {number}, {engine}", play


def run_file_cases() -> Iterator[tuple[str, Callable[[], list[Run]]]]:
    for path in sorted((ROOT / "examples").glob("*.toml")):

        def play(path: Path = path) -> list[Run]:
            file = RunFile.read(path)
            return [
                run.fit(SHORT["rounds"], every=1, progress=False)
                for run in build_parts(file, build_data(file)).values()
            ]

        yield path.name, play


def cases() -> dict[str, Callable[[], list[Run]]]:
    return {**dict(battery_cases()), **dict(run_file_cases())}


def digest(of: Any) -> str:
    """Of anything JSON can hold."""
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]


def weights(run: Run) -> list[torch.Tensor]:
    """All tensors of the state, in the order of their parties and names."""
    fields = run.state._asdict()
    found = {name: run.fed.read(fields[name]) for name in sorted(fields)}
    by_party = [held[party] for held in found.values() for party in sorted(held, key=str)]
    return [a.detach().double().flatten() for value in by_party for a in tree.tensors(value)]


def trace(run: Run, exact: bool) -> Trace:
    every = torch.cat([torch.zeros(0, dtype=torch.float64), *weights(run)])
    along = torch.linspace(0.5, 1.5, len(every), dtype=torch.float64)
    records = [[record.train_loss, *record.metrics.values()] for record in run.records]
    found = {
        "ledger": digest([list(entry) for entry in run.ledger]),
        "answered": digest(run.record.to_json()),
        "numbers": len(every),
    }
    if exact:
        return found | {
            "weights": hashlib.sha256(every.numpy().tobytes()).hexdigest(),
            "records": digest(records),
        }
    summary = [every.norm().item(), every.sum().item(), (every * along).sum().item()]
    return found | {"weights": summary, "records": records}


def traces(play: Callable[[], list[Run]], exact: bool = False) -> list[Trace]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [trace(run, exact) for run in play()]


def main() -> int:
    parser = argparse.ArgumentParser(description="What runs come to, in few numbers.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help=f"store {STORED.name}")
    what.add_argument("--exact", type=Path, help="write digests of every bit to this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: traces(play, exact=given.exact is not None) for name, play in cases().items()}
    path = given.exact or STORED
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name])}" for name in found)
    path.write_text(f"{{\n{lines}\n}}\n")
    print(f"{len(found)} cases: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
