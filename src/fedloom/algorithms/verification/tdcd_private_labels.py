"""The cost of TDCD with private labels, and what the battery plays it with."""

from __future__ import annotations

from ..shared.tiered import EMBEDDING, HUB_EMBEDDING, MODEL, UPDATE
from ..tdcd import TDCD
from ..tdcd_private_labels import (
    DERIVATIVE,
    GRADIENT,
    HUB_DERIVATIVE,
    SCORES,
    TDCDPrivateLabels,
)
from .battery_cases import Cases, Twin, cases
from .costs import Cost, Facts, cost, talking, total, update_bytes
from .optimized import HUB_ADAM, KEPT_ADAM


@cost.register(TDCDPrivateLabels)
def private_labels_cost(algorithm: TDCDPrivateLabels, facts: Facts) -> Cost:
    clients = talking(algorithm, facts)
    n, k, q = len(clients), sum(clients.values()), algorithm.local_steps
    holder = algorithm.labels_at or next(iter(clients))
    steps = q * algorithm.rows_of_step(facts.size)
    rows = (
        algorithm.rows_of_round(facts.size) + steps - algorithm.rows_of_step(facts.size)
    )  # embedded
    row_bytes = {j: facts.row("embedding", j) for j in clients}
    others = sum(row_bytes[j] + 1 for j in clients if j != holder)
    views, joint = facts.row("views", holder), facts.row("joint", holder)
    return total(
        ("bottom", "down", MODEL, k, sum(clients[j] * facts.model[j] for j in clients)),
        ("bottom", "up", EMBEDDING, q * k, rows * sum(row_bytes.values())),
        ("top", "up", HUB_EMBEDDING, q * (n - 1), rows * others),
        ("bottom", "down", SCORES, q * clients[holder], steps * (views + 1)),
        ("bottom", "up", DERIVATIVE, q * clients[holder], steps * views),
        ("top", "down", HUB_DERIVATIVE, q * (n - 1), steps * (n - 1) * (joint + 1)),
        ("bottom", "down", GRADIENT, q * k, steps * n * (joint + 1)),
        ("bottom", "up", UPDATE, k, update_bytes(algorithm, facts)),
    )


@cases.register(TDCDPrivateLabels)
def private_labels_cases(kind: type[TDCDPrivateLabels]) -> Cases:
    examples = [
        kind(local_steps=3, lr=0.2, batch=12),
        kind(local_steps=2, lr=0.2, batch=9, minibatch="fresh", weighting="rows", l2=0.05),
        kind(local_steps=2, lr=0.2, batch=5, weighting="participants"),
        kind(local_steps=2, lr=0.05, batch=9, optimizer=KEPT_ADAM, hub=HUB_ADAM),
    ]
    twins = [
        Twin("shared labels: TDCD", example, TDCD(**shared), 3, None)
        for example in examples
        if (shared := {name: v for name, v in vars(example).items() if name != "labels_at"})
    ]
    return Cases(examples, twins)
