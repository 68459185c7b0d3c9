"""Which optimiser to use: three tables, three silos of four clients, three seeds.

    FEDLOOM_DATA=... python -m benchmarks.optimisers            # a table in Markdown
    FEDLOOM_DATA=... python -m benchmarks.optimisers --quick    # one seed

Every way gets the same data, model, minibatches and rounds. Of each, the step size with the lowest
mean training loss over the seeds is shown, with that loss, the test metric, and how many of the
step sizes that were tried come within 5 % of it. `diverged`: step sizes with which the loss ended
above its start, in some seed.
"""

from __future__ import annotations

import argparse
import math
import statistics
from functools import lru_cache
from typing import Any

import torch

from fedloom import SGD, TDCD, Adam, HubAdam, Partition, Relaxed, Run, Task, load_dataset
from fedloom.core.errors import NotFiniteError
from fedloom.data.federated import Federated

TABLES = ("credit-default", "superconductivity", "mfeat")
ROUNDS, STEPS, BATCH = 80, 5, 200
SGD_RATES = (0.01, 0.03, 0.1, 0.3)
ADAM_RATES = (0.001, 0.003, 0.01, 0.03)
KEPT = Adam(state="kept")
WAYS = {  # the settings at a step size
    "the mean (the papers')": (SGD_RATES, lambda r: {"lr": r}),
    'relaxation = "auto"': (SGD_RATES, lambda r: {"lr": r, "hub": Relaxed("auto")}),
    "hub adam, lr .1": (ADAM_RATES, lambda r: {"lr": 0.1, "hub": HubAdam(r)}),
    "momentum .9, kept": (
        SGD_RATES,
        lambda r: {"lr": r, "optimizer": SGD(momentum=0.9, state="kept")},
    ),
    "adam, fresh": (ADAM_RATES, lambda r: {"lr": r, "optimizer": "adam"}),
    "adam, kept": (ADAM_RATES, lambda r: {"lr": r, "optimizer": KEPT}),
}


@lru_cache
def divided(table: str, seed: int) -> Federated:
    return Partition(silos=3, clients=4, seed=seed).place(load_dataset(table))


def play(table: str, seed: int, settings: dict[str, Any]) -> tuple[float, float]:
    """Training loss and test metric at the end; infinite where training diverged."""
    data = divided(table, seed)
    task = Task.of(data, "mlp", hidden=[16])
    algorithm = TDCD(local_steps=STEPS, batch=BATCH, minibatch="fresh", **settings)
    run = Run(algorithm, task, data, seed=seed)
    start = run.loss()
    try:
        run.fit(ROUNDS)
    except NotFiniteError:
        return math.inf, math.nan
    loss = run.loss()
    if loss > start:
        return math.inf, math.nan
    return loss, run.evaluate()[run.headline]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed")
    seeds = range(1 if parser.parse_args().quick else 3)
    torch.set_num_threads(1)
    for table in TABLES:
        print(f"\n| {table} | rate | training loss | test | within 5 % | diverged |")
        print("|---|---|---|---|---|---|", flush=True)
        for way, (rates, settings) in WAYS.items():
            tried = {r: [play(table, seed, settings(r)) for seed in seeds] for r in rates}
            means = {r: statistics.fmean(loss for loss, _ in ends) for r, ends in tried.items()}
            best = min(means, key=lambda r: means[r])
            losses, tests = zip(*tried[best], strict=True)
            near = sum(mean <= 1.05 * means[best] for mean in means.values())
            bad = sum(math.isinf(mean) for mean in means.values())
            span = f"{min(losses):.4f} to {max(losses):.4f}"
            test = f"{statistics.fmean(tests):.3f} ({min(tests):.3f} to {max(tests):.3f})"
            row = (way, f"{best:g}", f"{means[best]:.4f} ({span})", test)
            print(f"| {' | '.join(row)} | {near} of {len(rates)} | {bad} |", flush=True)


if __name__ == "__main__":
    main()
