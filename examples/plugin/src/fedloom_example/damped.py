"""An algorithm: settings with one round over placed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from fedloom import TDCD
from fedloom.extend import Draw, Fabric, State, Theta, Twin, algorithms, tree


@algorithms.register("damped-tdcd")
@dataclass(frozen=True)
class DampedTDCD(TDCD):
    """TDCD whose hubs move only part of the way to the mean of their clients."""

    pull: Annotated[float, "which part of the way; 1: TDCD"] = 0.5

    def round(self, fed: Fabric, state: State, draw: Draw) -> State:
        new = super().round(fed, state, draw)
        return State(fed.at_hubs(self.part_way, state.theta, new.theta))

    def part_way(self, old: Theta, new: Theta) -> Theta:
        return tree.map_tensors(lambda a, b: a + self.pull * (b - a), old, new)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(local_steps=2, lr=0.2, batch=12)]

    @classmethod
    def twins(cls) -> list[Twin]:
        settings = {"local_steps": 2, "lr": 0.2, "batch": 12}
        return [Twin("pull = 1: TDCD", cls(**settings, pull=1.0), TDCD(**settings), 3, None)]
