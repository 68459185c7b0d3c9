"""The cases that are measured: synthetic rows of the papers' shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedloom import TDCD, Placement, Run, Task, cnn, linear, lstm, mlp, partition, resnet18


@dataclass(frozen=True)
class Case:
    """One line of the table. `shape`: of one row's features in a silo; `block`: a silo's model;
    `compile`: `engine.compile`, as a long run of it would have."""

    name: str
    silos: int
    clients: int
    batch: int
    shape: tuple[int, ...]
    block: Any
    loss: str
    classes: int = 1
    head: Any = None
    combine: str = "sum"
    rows: int = 20_000
    steps: int = 10
    lr: float = 0.01
    weighting: str = "uniform"
    device: str = "cpu"
    compile: bool = False
    wanted: str = ""
    wanted_loop: str = ""

    def data(self) -> tuple[dict[str, Tensor], Tensor]:
        """Features by silo, and labels."""
        draw = torch.Generator().manual_seed(0)
        names = [f"silo{j}" for j in range(self.silos)]
        x = {name: torch.randn(self.rows, *self.shape, generator=draw) for name in names}
        if self.loss == "squared":
            return x, torch.randn(self.rows, generator=draw)
        labels = torch.randint(max(2, self.classes), (self.rows,), generator=draw)
        return x, labels.float() if self.loss == "binary-cross-entropy" else labels

    def placement(self) -> Placement:
        x, y = self.data()
        return partition(x, y, dict.fromkeys(x, self.clients))

    def task(self) -> Task:
        blocks = {f"silo{j}": self.block for j in range(self.silos)}
        return Task(blocks, self.loss, head=self.head, combine=self.combine)

    def run(self, placement: Placement | None = None, **options: Any) -> Run:
        """A run of TDCD on these rows. Local work is traced early: what is measured is how a run
        goes on, not how it begins."""
        rule = TDCD(local_steps=self.steps, lr=self.lr, batch=self.batch, weighting=self.weighting)
        return Run(
            rule,
            self.task(),
            placement or self.placement(),
            device=self.device,
            **{"replay": 1, "compile": self.compile, **options},
        )

    def with_(self, **changes: Any) -> Case:
        return replace(self, **changes)


RIDGE = Case(
    "ridge", 4, 50, 1000, (20,), linear(20), "squared", compile=True, wanted="2.0",
    wanted_loop="10",
)  # fmt: skip
MLP = Case(
    "MLP 20-32-10", 4, 50, 2000, (20,), mlp(20, [32], 10), "cross-entropy", 10,
    compile=True, wanted="1.6", wanted_loop="8",
)  # fmt: skip
CNN = Case(
    "ICASSP CNN, MNIST halves", 2, 50, 640, (1, 28, 14), cnn(1, (28, 14)), "cross-entropy", 10,
    head=linear(512, 10), combine="concat", rows=6000, wanted="1.4", wanted_loop="2",
)  # fmt: skip
LSTM = Case(
    "LSTM 48 x 19 -> 16", 4, 20, 2000, (48, 19), lstm(19, 16, 1), "binary-cross-entropy",
    rows=6000, wanted="1.4", wanted_loop="1.3",
)  # fmt: skip
RESNET = Case(
    "ResNet18, CIFAR halves", 2, 50, 2000, (3, 32, 16), resnet18(3, 10), "cross-entropy", 10,
    rows=10_000, wanted="1.8", wanted_loop="15",
)  # fmt: skip
VIEWS = Case(
    "ResNet18, 12 views of 32 x 32", 12, 20, 320, (1, 32, 32), resnet18(1, 10), "cross-entropy",
    10, rows=4000, wanted="2.0", wanted_loop="10",
)  # fmt: skip
TINY = Case("ridge, tiny", 4, 5, 100, (20,), linear(20), "squared", rows=2000, compile=True)

ON_CPU = (RIDGE, MLP, CNN, LSTM)
