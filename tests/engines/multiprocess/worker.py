"""Run by torchrun: algorithms on all ranks together and on each alone. Arguments: the file for the
results, a word in the name of the case, and words of which the name has one."""

import json
import sys
from pathlib import Path

import torch

from fedloom import Run
from fedloom.algorithms import TDCD
from fedloom.core import tree
from fedloom.core.registry import algorithms
from fedloom.engines.multiprocess.parcels import packed
from fedloom.engines.multiprocess.ranks import joined
from fedloom.fabric.schedule import Drawn, Everyone
from fedloom.testing.samples import alike, examples_of, sample_of
from tests.helpers.personal import Personal

ROUNDS = 3
torch.set_num_threads(1)


def cases():
    for name in algorithms:
        for number, algorithm in enumerate(examples_of(algorithms[name])):
            for schedule in (Everyone(), Drawn(0.6, seed=1)):
                yield f"{name} {number} {schedule}", algorithm, sample_of(algorithm), schedule
    for weighting in ("uniform", "rows", "participants"):
        own_state = TDCD(local_steps=2, lr=0.1, batch=20, weighting=weighting)
        yield f"silos alike, {weighting}, Drawn", own_state, alike(), Drawn(0.6, seed=1)
        yield f"silos alike, {weighting}, Drawn, compiled", own_state, alike(), Drawn(0.6, seed=1)
    for own_state in examples_of(Personal):
        yield "held at clients, Drawn", own_state, sample_of(own_state), Drawn(0.6, seed=1)


def state(run):
    return {name: run.fed.read(value) for name, value in run.state._asdict().items()}


def compared(ranks, name, algorithm, sample, schedule):
    """The differences between all ranks together, one alone, and each other."""
    options = {"seed": 3, "precision": "float64", "schedule": schedule}
    alone = Run(algorithm, *sample, **options).fit(ROUNDS)
    options["compile"] = "compiled" in name
    run = Run(algorithm, *sample, **options, ranks=ranks).fit(2)
    run = Run(algorithm, *sample, **options, ranks=ranks).restore(run.snapshot()).fit(ROUNDS)
    own = {
        field: {str(party): v for party, v in each.items()} for field, each in state(run).items()
    }
    copies = ranks.exchange(f"{name}: end", packed(own))
    return {
        "name": name,
        "state": tree.largest_difference(state(run), state(alone)),
        "loss": abs(run.loss() - alone.loss()),
        "bits": len(set(copies)) == 1,
        "books": list(run.ledger) == list(alone.ledger) and run.record == alone.record,
        "clients": int(run.fed.own_clients.sum()),
    }


def wanted(name):
    _, _, word, *words = sys.argv
    return word in name and any(one in name for one in words)


def main():
    with joined(60) as ranks:
        results = [compared(ranks, *case) for case in cases() if wanted(case[0])]
        if ranks.rank == 0:
            Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
