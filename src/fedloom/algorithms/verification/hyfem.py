"""The cost of HyFEM, and what the battery plays it with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...core import tree
from ...data.partition.views import small_set
from ...data.placement import Placement
from ...models.multiview import multiview
from ...models.task import Task
from ..hyfem.hyfem import OWN_MODEL, OWN_UPDATE, HyFEMAvg, HyFEMProx
from ..hyfem.parts import first_maps
from ..tdcd import TDCD
from .battery_cases import Cases, Twin, cases
from .costs import Cost, Facts, cost, total

SAMPLE_VIEWS = [[0, 1], [1, 2], [0, 2], [0, 1, 2]]


@cost.register(HyFEMAvg)
def hyfem_avg_cost(algorithm: HyFEMAvg, facts: Facts) -> Cost:
    ((silo, names),) = facts.names.items()
    theta = facts.theta[silo]
    maps = first_maps(theta, names, algorithm.widths or {})
    size = sum(tree.nbytes(model) for model in algorithm.distribute(theta, maps).values())
    return total(
        ("bottom", "down", OWN_MODEL, len(names), size),
        ("bottom", "up", OWN_UPDATE, len(names), size),
    )


def sample(silos: int, clients: int | None, head: bool) -> tuple[Task, Placement]:
    """Clients with some of three views."""
    rows = small_set(SAMPLE_VIEWS if clients is None else [[0, 1, 2]] * clients)
    make = multiview(3, [4], 3, view_width=3, hidden=[6])
    return Task(dict.fromkeys(rows.topology.silos, make), "cross-entropy"), rows


def renamed(algorithm: HyFEMAvg, names: Mapping[str, str]) -> HyFEMAvg:
    """The same settings where clients are called otherwise."""

    def other(lists: dict[str, list[int]] | None) -> dict[str, list[int]] | None:
        return lists and {names[name]: numbers for name, numbers in lists.items()}

    return replace(algorithm, views=other(algorithm.views), widths=other(algorithm.widths))


@cases.register(HyFEMAvg)
def hyfem_avg_cases(kind: type[HyFEMAvg]) -> Cases:
    views = {str(k): numbers for k, numbers in enumerate(SAMPLE_VIEWS)}
    examples = [
        kind(local_steps=2, lr=0.2, batch=24, views=views, widths={"1": [4], "3": [5]}, sweeps=2),
        kind(local_steps=3, lr=0.2, batch=24, minibatch="reused", l2=0.01, sweeps=0),
    ]
    fresh = {"local_steps": 2, "lr": 0.2, "batch": 12, "minibatch": "fresh"}
    reused = {"local_steps": 3, "lr": 0.2, "batch": 12, "minibatch": "reused", "l2": 0.05}
    adam: dict[str, Any] = {"local_steps": 2, "lr": 0.05, "batch": 12, "optimizer": "adam"}
    adam["minibatch"] = "fresh"
    twins = [
        Twin("all views, Pi fixed: FedAvg", kind(**s, sweeps=0), TDCD(**s), 1, None)
        for s in (fresh, reused, adam)
    ]
    return Cases(examples, twins, sample, renamed)


@cases.register(HyFEMProx)
def hyfem_prox_cases(kind: type[HyFEMProx]) -> Cases:
    base = hyfem_avg_cases(kind)
    twins = [
        Twin("mu = 0: HyFEM-Avg", kind(**settings, mu=0.0), HyFEMAvg(**settings), 1, None)
        for example in base.examples
        if (settings := {name: v for name, v in vars(example).items() if name != "mu"})
    ]
    return replace(base, twins=twins)
