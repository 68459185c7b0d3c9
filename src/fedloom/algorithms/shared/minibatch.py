"""SGD on minibatches that every party draws alike: what most algorithms share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from ...core.errors import SettingError
from ...core.placed import AtClients, Batch, Known, RowMap
from ...core.rng import Streams
from ...core.settings import Count, NotNegative, above, at_least
from ...data.placement import Placement
from ...fabric.verbs import Fabric
from ...models.task import Part, Task
from ..contract import Algorithm, Step
from . import local
from .checks import check_batch
from .optimizers import Optimizer, OptimizerName, optimizer_of
from .step_sizes import StepSize, step_size


class Draw(NamedTuple):
    """What chance decides in a round: `ids`, the rows of its minibatches, one a line; `batch_k` and
    `rows` span them all."""

    batch_k: AtClients[Batch]
    rows: RowMap
    ids: Tensor
    lr: Known[Tensor]

    def step(self, fed: Fabric, q: int) -> Step:
        """The minibatch of one local step."""
        if len(self.ids) == 1:
            return Step(self.batch_k, self.rows)
        return Step(*fed.minibatch(self.ids[q]))


@dataclass(frozen=True)
class MinibatchSGD(Algorithm):
    """Q local steps of SGD a round; the journal reuses one minibatch for them (Algorithm 1), ICASSP
    draws Q fresh ones."""

    local_steps: Annotated[Count, "Q, the local steps of a round"] = 10
    lr: Annotated[float | StepSize, above(0), "the step size, or a rule for it"] = 0.1
    batch: Annotated[int | None, at_least(1), "B, the rows of a minibatch; none: all"] = 100
    minibatch: Annotated[
        Literal["reused", "fresh"], "one minibatch for the Q steps of a round, or Q of them"
    ] = "reused"
    l2: Annotated[NotNegative, "weight of |theta|^2 / 2"] = 0.0
    optimizer: Annotated[
        OptimizerName | Optimizer, "of the local steps: a name, or a table with settings"
    ] = "sgd"

    @cached_property
    def steps_by(self) -> Optimizer | None:
        """The optimiser of the local steps; None: plain SGD. Made once: engines know work that they
        saw before by the objects that it is given."""
        return optimizer_of(self.optimizer)

    @property
    def keeps(self) -> bool:
        """Whether the optimiser's memory goes on from round to round."""
        return self.steps_by is not None and self.steps_by.keeps

    def check(self, task: Task, placement: Placement) -> None:
        check_batch(self.batch, placement)

    def warm_up(self, part: Part, streams: Streams) -> None:
        theta, batch = part.initial(streams), local.made_up_rows(part)
        rest = local.nothing_from_others(part, batch)
        local.local_sgd(part, theta, rest, batch, torch.ones(1, device=part.device), self.l2)

    def rows_of_step(self, size: int) -> int:
        """Rows of one minibatch."""
        return size if self.batch is None else self.batch

    def rows_of_round(self, size: int) -> int:
        """Rows of all minibatches of a round."""
        return self.rows_of_step(size) * (self.local_steps if self.minibatch == "fresh" else 1)

    def ids(self, fed: Fabric, round: int) -> Tensor:
        """The rows of a round's minibatches, one a line."""
        count = self.local_steps if self.minibatch == "fresh" else 1
        return fed.sample(self.rows_of_step(fed.size), count, round)

    def draw(self, fed: Fabric) -> Draw:
        """zeta: minibatch ids that every party derives alike (line 9)."""
        ids = self.ids(fed, fed.round)
        batch_k, rows = fed.minibatch(ids if len(ids) > 1 else ids[0], self.local_steps)
        rule = step_size(self.lr)
        first = fed.round * self.local_steps
        lr = [rule(first + step) for step in range(self.local_steps)]
        if not all(math.isfinite(eta) and eta >= 0 for eta in lr):
            raise SettingError(f"round {fed.round}: lr gives {lr}; step sizes cannot be negative")
        return Draw(batch_k, rows, ids, fed.known(torch.tensor(lr, dtype=fed.dtype)))
