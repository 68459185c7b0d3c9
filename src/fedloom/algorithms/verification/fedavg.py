"""The cost of FedAvg and FedProx, and what the battery plays it with."""

from __future__ import annotations

from typing import Any

from ..alone import Alone
from ..central import Central
from ..fedavg import FedAvg, FedProx
from ..fedbcd import FedBCD
from ..shared.tiered import MODEL, UPDATE
from ..tdcd import TDCD
from .battery_cases import Cases, Twin, cases
from .costs import Cost, Facts, cost, talking, total, update_bytes
from .optimized import COASTING, KEPT_ADAM


@cost.register(FedAvg)
def fedavg_cost(algorithm: FedAvg, facts: Facts) -> Cost:
    ((silo, k),) = talking(algorithm, facts).items()
    return total(
        ("bottom", "down", MODEL, k, k * facts.model[silo]),
        ("bottom", "up", UPDATE, k, update_bytes(algorithm, facts)),
    )


@cases.register(FedAvg)
def fedavg_cases(kind: type[FedAvg]) -> Cases:
    examples = [
        kind(local_steps=3, lr=0.2, batch=12),
        kind(local_steps=2, lr=0.2, batch=9, minibatch="reused", weighting="uniform", l2=0.05),
    ]
    first, second = examples
    kept: dict[str, Any] = {
        "local_steps": 2,
        "lr": 0.05,
        "batch": 9,
        "optimizer": KEPT_ADAM,
        "hub": COASTING,
    }
    pooled = Central(local_steps=3, lr=0.2, batch=12, minibatch="fresh")
    twins = [
        Twin("a silo alone", first, Alone(**vars(first)), 1, None),
        Twin("N = 1: TDCD", second, TDCD(**vars(second)), 1, None),
        Twin("with a head", second, TDCD(**vars(second)), 1, None, head=True),
        Twin(
            "with optimisers",
            kind(**kept, weighting="rows"),
            TDCD(**kept, minibatch="fresh", weighting="rows"),
            1,
            None,
        ),
        Twin("one client: SGD", first, pooled, 1, 1),
    ]
    return Cases(examples, twins)


@cases.register(FedProx)
def fedprox_cases(kind: type[FedProx]) -> Cases:
    examples = [
        kind(local_steps=3, lr=0.2, batch=12, mu=0.5),
        kind(local_steps=2, lr=0.2, batch=9, minibatch="reused", weighting="participants"),
    ]
    many: dict[str, Any] = {"local_steps": 4, "lr": 0.2, "batch": 9}
    single_step: dict[str, Any] = {**many, "local_steps": 1}
    same = {**many, "minibatch": "fresh", "weighting": "rows"}
    twins = [
        Twin("mu = 0: FedAvg", kind(**many, mu=0.0), FedAvg(**many), 1, None),
        Twin("Q = 1: FedAvg", kind(**single_step), FedAvg(**single_step), 1, None),
        Twin("N = 1: FedBCD", kind(**many, mu=0.7), FedBCD(**same, prox=0.7), 1, None),
    ]
    return Cases(examples, twins)
