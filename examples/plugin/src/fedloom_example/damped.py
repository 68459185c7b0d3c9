"""An algorithm: settings with one round over placed values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fedloom import TDCD
from fedloom.extend import Cases, Draw, Fabric, State, Theta, Twin, algorithms, cases, tree


@algorithms.register("damped-tdcd")
@dataclass(frozen=True)
class DampedTDCD(TDCD):
    """TDCD whose hubs move only part of the way to the mean of their clients."""

    pull: Annotated[float, "which part of the way; 1: TDCD"] = 0.5

    def round(self, fed: Fabric, state: State, draw: Draw) -> State:
        new = super().round(fed, state, draw)
        return new._replace(theta=fed.at_hubs(self.part_way, state.theta, new.theta))

    def part_way(self, old: Theta, new: Theta) -> Theta:
        return tree.map_tensors(lambda a, b: a + self.pull * (b - a), old, new)


@cases.register(DampedTDCD)
def damped_cases(kind: type[DampedTDCD]) -> Cases:
    """What the battery plays it with. A round costs what one of TDCD does."""
    damped, plain = kind(local_steps=2, lr=0.2, batch=12), TDCD(local_steps=2, lr=0.2, batch=12)
    twin = Twin("pull = 1: TDCD", replace(damped, pull=1.0), plain, 3, None)
    return Cases([damped], [twin])
