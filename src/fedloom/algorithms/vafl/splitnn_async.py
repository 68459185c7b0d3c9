"""Asynchronous split learning, as in the thesis (section 5.4.2).

A worker (our silo) sends its intermediate results of a batch; the master completes them with the
last ones it has of the other workers, computes loss and gradients, and answers that worker alone.
visiting.py is what happens at a visit.

Readings of the thesis:
- Before training, every worker sends intermediate results of all samples: always here (`prime`).
- With M workers the master makes M times as many steps as a synchronous one: its step size is
  divided by M. The workers' is not.
- Q local steps (its section 5.4.1): the derivatives at the cut stay as they came, those inside the
  worker's net are taken anew in every step. Labels are only at the master.
- A round is M visits, so that M rounds of visits compare with M synchronous rounds; the thesis
  averages the metrics of those visits, we evaluate after them.
- The master's layers are the task's head, on a concatenation in the thesis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...core.errors import SettingError
from ...core.registry import algorithms
from ...core.settings import Count
from ...data.placement import Placement
from ...models.task import Task
from ..shared.step_sizes import step_size
from .visiting import Visiting


@algorithms.register("splitnn-async")
@dataclass(frozen=True)
class SplitNNAsync(Visiting):
    """Asynchronous split learning: a worker's embeddings meet the others' last known ones."""

    local_steps: Annotated[Count, "Q, steps of a visit, with the derivatives frozen"] = 10
    prime: Annotated[bool, "every silo sends embeddings of all rows first: always"] = True

    def master_lr_of(self, turn: int, silos: int) -> float:
        return step_size(self.lr)(turn * self.local_steps) / silos

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        if not self.prime:
            raise SettingError("prime: splitnn-async starts from everyone's embeddings of all rows")
