"""The cost of FedBCD, and what the battery plays it with."""

from __future__ import annotations

from typing import Any

from ...fabric.kinds import Direction
from ..central import Central
from ..fedbcd import FedBCD
from ..shared.protection import SHIELDED
from ..shared.tiered import EMBEDDING, HUB_EMBEDDING, MODEL, UPDATE
from ..splitnn import CUT, CUT_DERIVATIVE, CUT_GRADIENT, HUB_CUT_GRADIENT, SplitNN
from ..tdcd import HEAD, REST, TDCD
from .battery_cases import Cases, Twin, cases
from .costs import Cost, Facts, Item, cost, talking, total, update_bytes
from .optimized import CLIPPED, COASTING, HUB_ADAM, KEPT_ADAM


@cost.register(FedBCD)
def fedbcd_cost(algorithm: FedBCD, facts: Facts) -> Cost:
    clients = talking(algorithm, facts)
    s, silos = algorithm.rows_of_round(facts.size), list(clients)
    twice = silos if algorithm.order == "parallel" else silos + silos[:-1]  # who embeds, and again
    k, k_twice = sum(clients.values()), sum(clients[j] for j in twice)
    embedding_bytes = {j: s * facts.row("embedding", j) for j in silos}
    moves = (
        fresh_own_items(algorithm, facts, embedding_bytes)
        if algorithm.takes_head
        else frozen_gradient_items(algorithm, facts, embedding_bytes, twice)
    )
    return total(
        ("bottom", "down", MODEL, k_twice, sum(clients[j] * facts.model[j] for j in twice)),
        ("bottom", "up", EMBEDDING, k_twice, sum(embedding_bytes[j] for j in twice)),
        *moves,
        ("bottom", "up", UPDATE, k, update_bytes(algorithm, facts)),
    )


def fresh_own_items(algorithm: FedBCD, facts: Facts, embedding_bytes: dict[str, int]) -> list[Item]:
    """In either order every silo's embeddings go to every other one, once."""
    clients, s, n = (
        talking(algorithm, facts),
        algorithm.rows_of_round(facts.size),
        len(embedding_bytes),
    )
    rest = s * sum(facts.row("joint", j) + 1 for j in embedding_bytes)
    pairs, embeddings = n * (n - 1), (n - 1) * sum(size + s for size in embedding_bytes.values())
    way: Direction = "across" if algorithm.order == "parallel" else "up"
    return [
        ("top", way, HUB_EMBEDDING, pairs, embeddings),
        ("bottom", "down", REST, sum(clients.values()), rest),
        ("top", "across", HEAD, pairs if facts.head else 0, pairs * facts.head),
    ]


def frozen_gradient_items(
    algorithm: FedBCD, facts: Facts, embedding_bytes: dict[str, int], twice: list[str]
) -> list[Item]:
    """In sequential order the label silo differentiates once for every turn."""
    clients, s = talking(algorithm, facts), algorithm.rows_of_round(facts.size)
    holder = algorithm.labels_at or next(iter(embedding_bytes))
    turns = 1 if algorithm.order == "parallel" else len(embedding_bytes)
    joint, m = s * facts.row("joint", holder), clients[holder]
    up, down = ([j for j in silos if j != holder] for silos in (twice, embedding_bytes))
    return [
        ("top", "up", HUB_EMBEDDING, len(up), sum(embedding_bytes[j] + s for j in up)),
        ("bottom", "down", CUT, turns * m, turns * (joint + s)),
        ("bottom", "up", CUT_DERIVATIVE, turns * m, turns * joint),
        ("top", "down", HUB_CUT_GRADIENT, len(down), sum(embedding_bytes[j] + s for j in down)),
        (
            "bottom",
            "down",
            CUT_GRADIENT,
            sum(clients.values()),
            sum(embedding_bytes[j] + s for j in embedding_bytes),
        ),
    ]


@cases.register(FedBCD)
def fedbcd_cases(kind: type[FedBCD]) -> Cases:
    frozen: dict[str, Any] = {"updates": "frozen-gradient"}
    examples = [
        kind(local_steps=3, lr=0.2, batch=12, prox=0.5),
        kind(local_steps=2, lr=0.2, batch=12, order="sequential", privacy=SHIELDED, **frozen),
        kind(local_steps=2, lr=0.2, batch=9, order="sequential", weighting="rows", l2=0.05),
        kind(
            local_steps=2,
            lr=0.2,
            batch=5,
            minibatch="fresh",
            weighting="participants",
            **frozen,
        ),
        kind(
            local_steps=3,
            lr=0.2,
            batch=12,
            order="sequential",
            labels_at="birch",
            prox=0.5,
            **frozen,
        ),
        kind(local_steps=2, lr=0.05, batch=9, order="sequential", optimizer=CLIPPED, hub=COASTING),
    ]
    many: dict[str, Any] = {"local_steps": 4, "lr": 0.2, "batch": 9}
    single_step: dict[str, Any] = {**many, "local_steps": 1}
    fresh = {**many, "minibatch": "fresh", "weighting": "rows"}
    kept = {**many, "lr": 0.05, "optimizer": KEPT_ADAM, "hub": HUB_ADAM}
    in_turn = {**single_step, "order": "sequential"}
    twins = [
        Twin("parallel, fresh-own, K = 1: TDCD, K = 1", kind(**many), TDCD(**many), 3, 1),
        Twin("and with unequal clients and a head", kind(**fresh), TDCD(**fresh), 3, None, True),
        Twin("and with optimisers", kind(**kept), TDCD(**kept), 3, None, True),
        Twin("frozen, with optimisers", kind(**kept, **frozen), SplitNN(**kept), 3, None),
        Twin("frozen: SplitNN", kind(**fresh, **frozen), SplitNN(**fresh), 3, None),
        Twin("frozen, K = Q = 1: SGD", kind(**single_step, **frozen), Central(**single_step), 3, 1),
        Twin("Q = 1, in turn: alike", kind(**in_turn, **frozen), kind(**in_turn), 3, None),
    ]
    return Cases(examples, twins)
