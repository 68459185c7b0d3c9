"""The cost of the pooled baseline, and what the battery plays it with."""

from __future__ import annotations

from dataclasses import replace

from ..central import FEATURES, HUB_FEATURES, LABELS, Central
from ..shared.step_sizes import InverseSqrt
from ..tdcd import TDCD
from .battery_cases import Cases, Twin, cases
from .costs import Cost, Facts, cost, total
from .optimized import KEPT_ADAM


@cost.register(Central)
def central_cost(algorithm: Central, facts: Facts) -> Cost:
    silos = list(facts.clients)
    pool = algorithm.labels_at or silos[0]
    row_bytes = {j: facts.row("features", j) for j in silos}
    k, s = sum(facts.clients.values()), algorithm.rows_of_round(facts.size)
    across = s * sum(row_bytes[j] + 1 for j in silos if j != pool)
    return total(
        ("bottom", "up", FEATURES, k, s * sum(row_bytes.values())),
        ("top", "up", HUB_FEATURES, len(silos) - 1, across),
        ("bottom", "up", LABELS, facts.clients[pool], s * facts.row("label", pool)),
    )


@cases.register(Central)
def central_cases(kind: type[Central]) -> Cases:
    examples = [
        kind(local_steps=2, lr=0.2, batch=12),
        kind(local_steps=3, lr=InverseSqrt(0.3), batch=9, minibatch="fresh", l2=0.05),
        kind(lr=0.2, batch=None, labels_at="birch"),
        kind(local_steps=2, lr=0.05, batch=9, optimizer=KEPT_ADAM),
    ]
    plain = [replace(example, labels_at=None) for example in examples]
    same = [{k: v for k, v in vars(example).items() if k != "labels_at"} for example in plain]
    twins = [
        Twin("N = K = 1: TDCD", example, TDCD(**settings), 1, 1)
        for example, settings in zip(plain, same, strict=True)
    ]
    return Cases(examples, twins)
