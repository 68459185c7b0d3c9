"""An algorithm of your own in one class: TDCD whose hubs keep a moving average of their weights.

    python examples/own_algorithm.py

docs/writing-an-algorithm.md goes on from here: costs, degenerate cases, and the battery of tests.
"""

from dataclasses import dataclass
from typing import Annotated

from fedloom import TDCD, Drawn, Partition, Run, Task, load_dataset
from fedloom.extend import Draw, Fabric, Share, State, Theta, algorithms, tree


@algorithms.register("slow-tdcd")
@dataclass(frozen=True)
class SlowTDCD(TDCD):
    """TDCD whose hubs move only part of the way to their clients' mean."""

    pull: Annotated[Share, "which part of the way; 1: TDCD"] = 0.5

    def round(self, fed: Fabric, state: State, draw: Draw) -> State:
        new = super().round(fed, state, draw)
        return new._replace(theta=fed.at_hubs(self.part_way, state.theta, new.theta))

    def part_way(self, old: Theta, new: Theta) -> Theta:
        """Local work: a pure function of what lives at one hub."""
        return tree.map_tensors(lambda a, b: a + self.pull * (b - a), old, new)


def main() -> None:
    data = Partition(silos=["left", "right"], clients=[4, 6]).place(load_dataset("digits"))
    task = Task.of(data, "mlp", hidden=[16])
    away = Drawn(0.6, seed=3)  # in each round, a client is there with probability 0.6
    settings = {"local_steps": 10, "lr": 0.2, "batch": 200}
    for pull in (1.0, 0.5):
        run = Run(SlowTDCD(**settings, pull=pull), task, data, seed=1, schedule=away).fit(30)
        print(f"pull {pull}: loss {run.loss():.3f}, accuracy {run.evaluate()['accuracy']:.3f}")


if __name__ == "__main__":
    main()
