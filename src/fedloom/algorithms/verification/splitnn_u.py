"""The cost of the U-shaped SplitNN, and what the battery plays it with."""

from __future__ import annotations

from typing import Any

from ..central import Central
from ..shared.optimizers import Adam
from ..shared.tiered import EMBEDDING, HUB_EMBEDDING, MODEL, UPDATE
from ..splitnn import CUT_GRADIENT, HUB_CUT_GRADIENT, SplitNN
from ..splitnn_u import HUB_MIDDLE, HUB_MIDDLE_DERIVATIVE, MIDDLE, MIDDLE_DERIVATIVE, SplitNNU
from .battery_cases import Cases, Twin, cases
from .costs import Cost, Facts, cost, talking, total, update_bytes
from .optimized import COASTING, KEPT_MOMENTUM
from .splitnn import top_items, without_head


@cost.register(SplitNNU)
def splitnn_u_cost(algorithm: SplitNNU, facts: Facts) -> Cost:
    clients, facts = talking(algorithm, facts), without_head(facts)
    n, k, s = len(clients), sum(clients.values()), algorithm.rows_of_round(facts.size)
    holder = algorithm.labels_at or next(iter(clients))
    embedding_bytes = {j: s * facts.row("embedding", j) for j in clients}
    masked = sum(embedding_bytes.values()) + n * s
    middle, m = s * facts.row("middle", holder), clients[holder]
    return total(
        ("bottom", "down", MODEL, k, sum(clients[j] * facts.model[j] for j in clients)),
        ("bottom", "up", EMBEDDING, k, sum(embedding_bytes.values())),
        ("top", "up", HUB_EMBEDDING, n, masked),
        ("top", "down", HUB_MIDDLE, 1, middle + s),
        ("bottom", "down", MIDDLE, m, middle + s),
        ("bottom", "up", MIDDLE_DERIVATIVE, m, middle),
        ("top", "up", HUB_MIDDLE_DERIVATIVE, 1, middle + s),
        ("top", "down", HUB_CUT_GRADIENT, n, masked),
        ("bottom", "down", CUT_GRADIENT, k, masked),
        ("bottom", "up", UPDATE, k, update_bytes(algorithm, facts)),
        *top_items(algorithm, facts, m, facts.head - facts.middle),
    )


@cases.register(SplitNNU)
def splitnn_u_cases(kind: type[SplitNNU]) -> Cases:
    examples = [
        kind(lr=0.2, batch=12, labels_at="birch", weighting="participants"),
        kind(local_steps=2, lr=0.2, batch=9, minibatch="fresh", weighting="rows", l2=0.005),
        kind(local_steps=2, lr=0.05, batch=12, optimizer=KEPT_MOMENTUM, hub=COASTING),
    ]
    plain: dict[str, Any] = {"lr": 0.2, "batch": 9, "l2": 0.1}
    rows: dict[str, Any] = {**plain, "local_steps": 3, "weighting": "rows"}
    twins = [
        Twin("K = Q = 1: SGD on the joined network", kind(**plain), Central(**plain), 3, 1),
        Twin("by rows: the middle anywhere is alike", kind(**rows), SplitNN(**rows), 3, None),
    ]
    kept = {**plain, "lr": 0.05, "optimizer": Adam(state="kept")}
    twins.append(Twin("and by Adam", kind(**kept), Central(**kept), 3, 1))
    return Cases(examples, twins)
