"""Run by torchrun: a failure of one rank is raised at all ranks, and they can continue."""

import dataclasses
import json
import sys
from pathlib import Path

import torch

from fedloom import Run
from fedloom.algorithms import TDCD
from fedloom.core.errors import FedLoomError
from fedloom.engines.multiprocess.ranks import joined
from fedloom.testing.samples import sample_of

torch.set_num_threads(1)


def raised(work):
    try:
        work()
    except FedLoomError as problem:
        return f"{type(problem).__name__}: {problem}"
    return "nothing"


def broken(tdcd, client, **options):
    """A run in which a row of one client is not finite."""
    task, rows = sample_of(tdcd)
    x = {silo: values.clone() for silo, values in rows.x.items()}
    x["ash"][int((rows.owner["ash"] == client).nonzero()[-1])] = float("inf")
    return Run(tdcd, task, dataclasses.replace(rows, x=x), precision="float64", **options)


def only_here(ranks):
    if ranks.rank == 1:
        ranks.tell(ValueError("only here"))
        return
    ranks.numbers("somewhere")


def main():
    tdcd, errors = TDCD(local_steps=2, lr=0.1, batch=36), {}
    with joined(60) as ranks:
        for client in (0, 3):
            errors[f"alone {client}"] = raised(lambda c=client: broken(tdcd, c).fit(1))
            errors[f"client {client}"] = raised(
                lambda c=client: broken(tdcd, c, ranks=ranks).fit(1)
            )
        errors["places"] = raised(lambda: ranks.numbers(f"place {ranks.rank}"))
        errors["one"] = raised(lambda: only_here(ranks))
        errors["engine"] = raised(
            lambda: Run(tdcd, *sample_of(tdcd), engine="reference", ranks=ranks)
        )
        errors["after"] = ranks.numbers("after", ranks.rank)
    Path(sys.argv[1], f"{ranks.rank}.json").write_text(json.dumps(errors))


if __name__ == "__main__":
    main()
