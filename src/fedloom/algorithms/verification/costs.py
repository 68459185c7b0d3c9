"""What a round costs: closed formulas for its messages and bytes, registered beside the algorithms.

    @cost.register(TDCD)
    def tdcd_cost(algorithm: TDCD, facts: Facts) -> Cost:
        return total(("bottom", "down", MODEL, clients, bytes), ...)

The battery holds every ledger against them. A subclass has the formula of its parent until it
registers its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from ...core.errors import SettingError
from ...core.payload import RowWord
from ...fabric.kinds import Direction, Kind, Tier
from ...fabric.ledger import LedgerLine
from ...fabric.schedule import Turn
from ...models.task import Shapes, Theta
from ..contract import Algorithm
from ..shared.tiered import TieredSGD

Cost = dict[LedgerLine, tuple[int, int]]  # messages and bytes
Item = tuple[Tier, Direction, Kind, int, int]  # of a cost: ..., messages, bytes


@dataclass(frozen=True)
class Facts:
    """What a cost depends on, in a round where everyone is there. Of asynchronous algorithms also
    which round it is, and who visited the master in it (none: everyone in turn)."""

    clients: Mapping[str, int]
    holders: Mapping[str, int]  # clients with rows in the round's minibatches
    size: int  # common rows
    model: Mapping[str, int]  # bytes of theta_j, its replica of the head included
    head: int  # bytes of the head
    shapes: Shapes
    names: Mapping[str, tuple[str, ...]]  # the clients'
    theta: Mapping[str, Theta]  # theta_j at round 0
    middle: int = 0  # of which the middle's
    round: int = 1
    turns: tuple[Turn, ...] = ()

    def row(self, word: RowWord, silo: str) -> int:
        """Bytes of one row."""
        shape, dtype = self.shapes.row(word, silo)
        return int(np.prod(shape, dtype=int)) * dtype.itemsize


@singledispatch
def cost(algorithm: Algorithm, facts: Facts) -> Cost:
    """A round's messages and bytes, in closed form."""
    raise SettingError(
        f"no cost is registered for {type(algorithm).__name__}: @cost.register(...) its formula"
    )


def total(*items: Item) -> Cost:
    """Items as a cost; what is never sent is left out."""
    return {
        LedgerLine(tier, direction, kind.name): (messages, size)
        for tier, direction, kind, messages, size in items
        if messages
    }


# Where hubs average their clients' blocks


def talking(algorithm: TieredSGD, facts: Facts) -> dict[str, int]:
    """How many clients each hub speaks to in a round."""
    return dict(facts.holders if algorithm.weighting == "participants" else facts.clients)


def update_bytes(algorithm: TieredSGD, facts: Facts) -> int:
    """What clients send up after their local steps."""
    weight = 0 if algorithm.weighting == "uniform" else facts.shapes.dtype.itemsize
    return sum(k * (facts.model[j] + weight) for j, k in talking(algorithm, facts).items())
