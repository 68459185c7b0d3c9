"""The first run on tables, as a file without [model] and [algorithm] gets it, beside what can be
had from the pooled rows: python -m benchmarks.defaults [--sets adult,ames] [--seeds 5]

Three silos of four clients each hold the columns in their order. A seed draws who holds which
rows, the initial weights and the minibatches; the test rows are always the same. Figures are means
over seeds. `to linear`: how much better the run is than logistic or ridge regression on pooled
rows, with the widest of the seeds' 95 % bootstrap intervals (paired, over test rows); `to network`:
than the same network trained on pooled rows to convergence.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.config.runfile import RunFile
from fedloom.core.errors import DataError
from fedloom.runs.build import build_data
from fedloom.runs.parts import all_parts

SETS = {
    "adult": "logistic",
    "credit-default": "logistic",
    "superconductivity": "ridge",
    "ames": "ridge",
    "sqoe4": "logistic",
    "parkinson": "logistic",
    "mfeat": "logistic",
}
TEXT = """
[data]
name = "{name}"
[partition]
silos = 3
clients = 4
seed = {seed}
[engine]
seed = {seed}
threads = 1
[evaluation]
every = 1000
baselines = ["best-pooled", "{linear}", "boosting"]
"""


def measure(name: str, seed: int) -> dict[str, Any]:
    """One seed of one set: values, and differences with their intervals."""
    linear = SETS[name]
    file = RunFile.parse(TEXT.format(name=name, seed=seed, linear=linear))
    data = build_data(file)
    parts, began = all_parts(file, data), time.process_time()
    run = parts.main.fit(file.rounds)
    seconds = time.process_time() - began
    metric = run.headline
    assert metric is not None
    judged = {"default": run.predictions()}
    judged |= {part: baseline.fit().predictions() for part, baseline in parts.pooled.items()}
    drawn = {part: found.resampled([metric])[metric] for part, found in judged.items() if found}
    own = drawn["default"]
    return {
        "metric": metric,
        "values": {part: one.value for part, one in drawn.items()},
        "to_linear": own.minus(drawn[linear]),
        "to_network": own.minus(drawn["best-pooled"]),
        "epochs": file.epochs_of(data.train.size),
        "cpu_seconds": seconds,
    }


def shown(name: str, seeds: list[dict[str, Any]]) -> str:
    """A row of the table."""
    linear = SETS[name]

    def mean(part: str) -> str:
        values = [one["values"][part] for one in seeds]
        return f"{np.mean(values):.3f} ({np.std(values):.3f})"

    def difference(key: str) -> str:
        ends = np.array([one[key][1] for one in seeds])
        gain = np.mean([one[key][0] for one in seeds])
        return f"{gain:+.3f} ({ends[:, 0].min():+.3f} to {ends[:, 1].max():+.3f})"

    columns = [
        f"{name}, {seeds[0]['metric']}",
        *map(mean, ("default", linear, "best-pooled", "boosting")),
        *map(difference, ("to_linear", "to_network")),
        f"{seeds[0]['epochs']:.0f}",
        f"{np.mean([one['cpu_seconds'] for one in seeds]):.0f}",
    ]
    return "| " + " | ".join(columns) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, list[dict[str, Any]]] = {}
    print(
        "| set | default | linear | best network | boosting | to linear | to network | epochs | s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in chosen.sets.split(","):
        try:
            found[name] = [measure(name, seed) for seed in range(chosen.seeds)]
        except DataError as problem:
            print(f"{name}: {problem}")
            continue
        print(shown(name, found[name]), flush=True)
        if chosen.out is not None:
            chosen.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
