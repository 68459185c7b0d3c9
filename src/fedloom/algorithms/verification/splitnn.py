"""The cost of SplitNN, and what the battery plays it with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..central import Central
from ..shared.optimizers import Adam
from ..shared.tiered import EMBEDDING, HUB_EMBEDDING, MODEL, UPDATE
from ..splitnn import (
    CUT,
    CUT_DERIVATIVE,
    CUT_GRADIENT,
    HUB_CUT_GRADIENT,
    TOP,
    TOP_UPDATE,
    SplitNN,
)
from .battery_cases import Cases, Twin, cases
from .costs import Cost, Facts, Item, cost, talking, total, update_bytes
from .optimized import HUB_ADAM, KEPT_MOMENTUM


@cost.register(SplitNN)
def splitnn_cost(algorithm: SplitNN, facts: Facts) -> Cost:
    clients, facts = talking(algorithm, facts), without_head(facts)
    n, k, s = len(clients), sum(clients.values()), algorithm.rows_of_round(facts.size)
    holder = algorithm.labels_at or next(iter(clients))
    row_bytes = {j: facts.row("embedding", j) for j in clients}
    others = s * sum(row_bytes[j] + 1 for j in clients if j != holder)
    joint, m = s * facts.row("joint", holder), clients[holder]
    return total(
        ("bottom", "down", MODEL, k, sum(clients[j] * facts.model[j] for j in clients)),
        ("bottom", "up", EMBEDDING, k, s * sum(row_bytes.values())),
        ("top", "up", HUB_EMBEDDING, n - 1, others),
        ("bottom", "down", CUT, m, joint + s),
        ("bottom", "up", CUT_DERIVATIVE, m, joint),
        ("top", "down", HUB_CUT_GRADIENT, n - 1, others),
        ("bottom", "down", CUT_GRADIENT, k, s * sum(width + 1 for width in row_bytes.values())),
        ("bottom", "up", UPDATE, k, update_bytes(algorithm, facts)),
        *top_items(algorithm, facts, m, facts.head),
    )


def without_head(facts: Facts) -> Facts:
    """The same facts, where the model that a hub sends to its clients is the block alone."""
    return replace(facts, model={j: size - facts.head for j, size in facts.model.items()})


def top_items(algorithm: SplitNN, facts: Facts, clients: int, size: int) -> list[Item]:
    """The top goes down to so many label clients, and comes back."""
    weight = 0 if algorithm.weighting == "uniform" else facts.shapes.dtype.itemsize
    clients = clients if size else 0
    return [
        ("bottom", "down", TOP, clients, clients * size),
        ("bottom", "up", TOP_UPDATE, clients, clients * (size + weight)),
    ]


@cases.register(SplitNN)
def splitnn_cases(kind: type[SplitNN]) -> Cases:
    examples = [
        kind(lr=0.2, batch=12, labels_at="birch"),
        kind(local_steps=2, lr=0.2, batch=9, minibatch="fresh", weighting="rows", l2=0.05),
        kind(local_steps=3, lr=0.1, batch=5, weighting="participants"),
        kind(local_steps=2, lr=0.05, batch=12, optimizer=KEPT_MOMENTUM, hub=HUB_ADAM),
    ]
    plain: dict[str, Any] = {"lr": 0.2, "batch": 9, "l2": 0.1}
    rows: dict[str, Any] = {"lr": 0.2, "batch": None}
    weighted = kind(**rows, weighting="rows")
    twins = [
        Twin("K = Q = 1: SGD on the joined network", kind(**plain), Central(**plain), 3, 1, True),
        Twin("without a top", kind(**plain), Central(**plain), 3, 1),
        Twin("one silo", kind(**plain), Central(**plain), 1, 1, True),
        Twin("Q = 1, full batch, by rows", weighted, Central(**rows), 3, None, True),
    ]
    kept = {**plain, "lr": 0.05, "optimizer": Adam(state="kept")}
    twins.append(Twin("and by Adam", kind(**kept), Central(**kept), 3, 1, True))
    return Cases(examples, twins)
