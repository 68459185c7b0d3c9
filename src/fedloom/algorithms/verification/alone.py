"""The cost of the baseline without exchange, and what the battery plays it with."""

from __future__ import annotations

from typing import Any

from ..alone import Alone
from ..shared.tiered import MODEL, UPDATE
from ..tdcd import TDCD
from .battery_cases import Cases, Twin, cases
from .costs import Cost, Facts, cost, talking, total, update_bytes
from .optimized import COASTING, KEPT_MOMENTUM


@cost.register(Alone)
def alone_cost(algorithm: Alone, facts: Facts) -> Cost:
    clients = talking(algorithm, facts)
    k = sum(clients.values())
    return total(
        ("bottom", "down", MODEL, k, sum(clients[j] * facts.model[j] for j in clients)),
        ("bottom", "up", UPDATE, k, update_bytes(algorithm, facts)),
    )


@cases.register(Alone)
def alone_cases(kind: type[Alone]) -> Cases:
    examples = [
        kind(local_steps=3, lr=0.2, batch=12),
        kind(local_steps=2, lr=0.2, batch=9, minibatch="fresh", weighting="rows", l2=0.05),
        kind(local_steps=2, lr=0.2, batch=5, weighting="participants", combined=True),
    ]
    twins = [
        Twin("N = 1: TDCD", example, TDCD(**settings), 1, None)
        for example in examples
        if (settings := {name: v for name, v in vars(example).items() if name != "combined"})
    ]
    kept: dict[str, Any] = {
        "local_steps": 2,
        "lr": 0.05,
        "batch": 9,
        "optimizer": KEPT_MOMENTUM,
        "hub": COASTING,
    }
    twins.append(Twin("and with optimisers", kind(**kept), TDCD(**kept), 1, None))
    return Cases(examples, twins)
