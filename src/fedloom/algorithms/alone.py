"""Baselines without exchange: every silo trains on its own columns only.

Inside a silo it is local SGD with averaging (FedAvg): TDCD's Algorithm 1 (line numbers below)
without lines 13-22. With `combined = False` a hub predicts with its own silo's block. With
`combined = True` the lone silos' scores are put together at prediction (logits added up,
regressions averaged): what a federation must beat to be worth its exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from ..core.placed import AtHubs, Batch, Rows
from ..core.registry import algorithms
from ..data.placement import Placement
from ..fabric.kinds import Kind
from ..fabric.local_work import in_shares
from ..fabric.verbs import Fabric
from ..models.task import Part, Task, Theta
from .contract import State, Step
from .shared import local
from .shared.checks import need_labels
from .shared.local import Descent
from .shared.minibatch import Draw
from .shared.tiered import EMBEDDING, MODEL, TieredSGD, counted

HUB_SCORES = Kind("hub-scores", "a lone silo's scores, at prediction only", "scores")


@algorithms.register("alone")
@dataclass(frozen=True)
class Alone(TieredSGD):
    """Baseline without exchange: every silo trains on its own columns, with its own clients."""

    combined: Annotated[bool, "predict by all lone silos together, not each by itself"] = False

    joint: ClassVar[bool] = False
    training_layers: ClassVar[bool] = True

    @property
    def predicts_alone(self) -> bool:
        return not self.combined

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        need_labels(placement, placement.topology.silos, "no silo can train alone without labels")

    def round(self, fed: Fabric, state: State, draw: Draw) -> State:
        theta_k = self.to_clients(fed, state.theta, draw)  # 11-12
        rest_k = fed.at_clients(local.nothing_from_others, fed.part, draw.batch_k)
        given = (theta_k, rest_k, draw.batch_k, draw.lr)
        trained_k = self.train(fed, self.local_sgd, state.kept, *given)  # 25-29
        return self.settle(fed, trained_k, state, fed.at_clients(counted, rest_k))  # 32

    def silos_at_once(self, fed: Fabric) -> int:
        """None corrects what another does, too."""
        return 1

    @in_shares
    def local_sgd(
        self,
        part: Part,
        theta: Theta,
        rest: Rows,
        batch: Batch,
        lr: Tensor,
        by: Descent | None = None,
    ) -> Any:
        """Q steps on the silo's own columns."""
        return local.local_sgd(part, theta, rest, batch, lr, self.l2, by=by)

    def predict(self, fed: Fabric, state: State, step: Step) -> AtHubs[Rows]:
        theta_k = fed.to_clients(MODEL, state.theta)
        phi_k = fed.at_clients(local.embed, fed.part, theta_k, step.batch_k)
        phi = fed.gather(EMBEDDING, phi_k, step.rows)
        scores = fed.at_hubs(own_scores, fed.part, state.theta, phi)
        if not self.combined:
            return scores
        return fed.at_hubs(combined_scores, fed.part, fed.exchange(HUB_SCORES, scores))


def own_scores(part: Part, theta: Theta, phi: Rows) -> Rows:
    """What a silo predicts from its own columns."""
    return Rows(part.scores(theta, part.place(phi.value)), phi.mask)


def combined_scores(part: Part, scores: dict[str, Rows]) -> Rows:
    value = part.loss.combine([rows.value for rows in scores.values()])
    return Rows(value, local.everywhere(scores))
