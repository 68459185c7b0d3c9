"""The cost of TDCD, and what the battery plays it with."""

from __future__ import annotations

from typing import Any

from ..alone import Alone
from ..central import Central
from ..shared.hub_steps import Relaxed
from ..shared.optimizers import Adam
from ..shared.protection import SHIELDED
from ..shared.tiered import EMBEDDING, HUB_EMBEDDING, MODEL, UPDATE
from ..tdcd import HEAD, REST, TDCD
from .battery_cases import Cases, Twin, cases
from .costs import Cost, Facts, cost, talking, total, update_bytes
from .optimized import CLIPPED, COASTING, HUB_ADAM, KEPT_ADAM


@cost.register(TDCD)
def tdcd_cost(algorithm: TDCD, facts: Facts) -> Cost:
    clients = talking(algorithm, facts)
    n, k, s = len(clients), sum(clients.values()), algorithm.rows_of_round(facts.size)
    embeddings = s * sum(facts.row("embedding", j) for j in clients)
    rest = s * sum(facts.row("joint", j) + 1 for j in clients)
    return total(
        ("bottom", "down", MODEL, k, sum(clients[j] * facts.model[j] for j in clients)),
        ("bottom", "up", EMBEDDING, k, embeddings),
        ("top", "across", HUB_EMBEDDING, n * (n - 1), (n - 1) * (embeddings + n * s)),
        ("bottom", "down", REST, k, rest),
        ("bottom", "up", UPDATE, k, update_bytes(algorithm, facts)),
        ("top", "across", HEAD, n * (n - 1) if facts.head else 0, n * (n - 1) * facts.head),
    )


@cases.register(TDCD)
def tdcd_cases(kind: type[TDCD]) -> Cases:
    examples = [
        kind(local_steps=3, lr=0.2, batch=12),
        kind(local_steps=2, lr=0.2, batch=12, privacy=SHIELDED),
        kind(local_steps=2, lr=0.2, batch=9, minibatch="fresh", weighting="rows", l2=0.05),
        kind(local_steps=2, lr=0.2, batch=5, weighting="participants"),
        kind(local_steps=1, lr=0.2, batch=None, l2=0.1),
        kind(local_steps=2, lr=0.05, batch=12, optimizer=KEPT_ADAM, hub=COASTING),
        kind(local_steps=1, lr=0.2, batch=12, optimizer=CLIPPED, hub=HUB_ADAM),
    ]
    one_step = kind(local_steps=1, lr=0.2, batch=9)
    rows = kind(local_steps=1, lr=0.2, batch=None, weighting="rows", l2=0.1)
    many = kind(local_steps=4, lr=0.2, batch=9)
    fresh = kind(local_steps=3, lr=0.2, batch=9, minibatch="fresh")
    twins = [
        Twin("K = Q = 1: SGD", one_step, Central(local_steps=1, lr=0.2, batch=9), 3, 1),
        Twin("with a head", one_step, Central(local_steps=1, lr=0.2, batch=9), 3, 1, head=True),
        Twin(
            "Q = 1, full batch, clients weighted by rows: gradient descent on the pooled model",
            rows,
            Central(local_steps=1, lr=0.2, batch=None, l2=0.1),
            3,
            None,
        ),
        Twin("N = 1: local SGD", many, Alone(local_steps=4, lr=0.2, batch=9), 1, None),
        Twin(
            "N = 1, fresh: local SGD",
            fresh,
            Alone(local_steps=3, lr=0.2, batch=9, minibatch="fresh"),
            1,
            None,
        ),
    ]
    return Cases(examples, [*twins, *optimizer_twins(kind)])


def optimizer_twins(kind: type[TDCD]) -> list[Twin]:
    """Relaxation scales one step; with Q = 1 and lr = 1, theta - mean is the pooled gradient."""
    one_step: dict[str, Any] = {"local_steps": 1, "batch": 9}
    whole: dict[str, Any] = {"local_steps": 1, "batch": None, "lr": 1.0}
    rows = {**whole, "weighting": "rows"}
    pooled = Central(**{**whole, "lr": 0.05}, optimizer=Adam(state="kept", betas=(0.9, 0.99)))
    kept = kind(**one_step, lr=0.05, optimizer=KEPT_ADAM)
    short = kind(**one_step, lr=0.2, hub=Relaxed(0.5))
    long = kind(**one_step, lr=0.05, hub=Relaxed(2.0))
    pooled_kept = Central(**one_step, lr=0.05, optimizer=Adam(state="kept"))
    kept_alone = kind(**one_step, lr=0.05, optimizer=Adam(state="kept"))
    return [
        Twin("Q = 1: lr times relaxation counts", short, long, 3, None, head=True),
        Twin("hub Adam on all rows: pooled", kind(**rows, hub=HUB_ADAM), pooled, 3, None),
        Twin("K = Q = 1, kept Adam: pooled Adam", kept_alone, pooled_kept, 3, 1),
        Twin("N = 1, kept", kept, Alone(**one_step, lr=0.05, optimizer=KEPT_ADAM), 1, None),
    ]
