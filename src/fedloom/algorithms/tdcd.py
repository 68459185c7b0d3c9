"""TDCD, tiered decentralized coordinate descent.

Das, Castiglia, Wang, Patterson: Cross-Silo Federated Learning for Multi-Tier Networks with Vertical
and Horizontal Data Partitioning, Algorithm 1 (line numbers below); and its first form, Das &
Patterson, ICASSP 2021.

Readings of the papers:
- One minibatch reused for the Q steps of a round is the journal's form, Q fresh ones are ICASSP's.
- Line 32 prints theta^t where theta^{t+1} is meant: average after the Q-th step.
- Eqn. 4 divides by the client's own rows in the minibatch; a client without any takes no step and
  is still counted in the mean ("uniform"). "participants" counts clients with rows only, and speaks
  only to them; "rows" weighs clients by their rows.
- Every party derives the minibatch ids from a common stream; line 11 sends the model alone.
- A head shared by all silos is a replica in every hub's block: clients train it with their block,
  hubs average the replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from ..core import tree
from ..core.placed import AtHubs, Batch, Noise, Rows
from ..core.registry import algorithms
from ..data.placement import Placement
from ..fabric.kinds import Kind
from ..fabric.local_work import in_shares
from ..fabric.releases import times
from ..fabric.verbs import Fabric
from ..models.task import Part, Task, Theta
from ..privacy.settings import Privacy
from .contract import State, Step
from .shared import local
from .shared.checks import need_labels
from .shared.local import Descent
from .shared.minibatch import Draw
from .shared.releasing import Releasing
from .shared.tiered import EMBEDDING, HUB_EMBEDDING, TieredSGD, counted, predict_jointly

REST = Kind(
    "rest",
    "sum of the other silos' embeddings, of the client's own rows",
    "joint",
    reveals="with two silos, the other's embeddings of these rows",
)
HEAD = Kind("head", "a hub's replica of the shared head")


@algorithms.register("tdcd")
@dataclass(frozen=True)
class TDCD(Releasing, TieredSGD):
    """Tiered decentralized coordinate descent: labels at every client, embeddings at every hub."""

    privacy: Annotated[Privacy | None, "noise on embeddings that leave a client"] = None

    training_layers: ClassVar[bool] = True

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        self.protection.check(task, self.steps_by)
        need_labels(
            placement,
            placement.topology.silos,
            "TDCD takes labels at every client; with labels in one silo, use tdcd-private-labels",
        )

    def round(self, fed: Fabric, state: State, draw: Draw) -> State:
        """Lines 8-34, for Q iterations; `draw` is line 9."""
        part, batch_k, rows, guard = fed.part, draw.batch_k, draw.rows, self.protection
        theta_k = self.to_clients(fed, state.theta, draw)  # 11-12
        noise_k = guard.row_noise(fed, rows, draw.ids, theta_k)  # none without privacy
        phi_k = fed.at_clients(guard.release, part, theta_k, batch_k, noise_k)  # 13
        phi = fed.gather(EMBEDDING, phi_k, rows)  # 17
        phis = fed.exchange(HUB_EMBEDDING, phi)  # 18
        rest = fed.at_hubs(local.sum_of_others, part, phis)  # 19
        rest_k = fed.scatter(REST, rest, rows)  # 22
        normals_k = guard.step_noise(fed, draw.ids, self.steps_of_row)
        given = (theta_k, rest_k, batch_k, draw.lr, noise_k, normals_k)
        trained_k = self.train(fed, self.local_sgd, state.kept, *given)  # 25-29
        new = self.settle(fed, trained_k, state, fed.at_clients(counted, rest_k))  # 32
        return new._replace(theta=share_head(fed, guard.settled(fed, new.theta, state.theta)))

    @in_shares
    def local_sgd(
        self,
        part: Part,
        theta: Theta,
        rest: Rows,
        batch: Batch,
        lr: Tensor,
        noise: Noise | None = None,
        normals: Tensor | None = None,
        by: Descent | None = None,
    ) -> Any:
        """Lines 25-29: Q steps (Eqn. 5), the own embedding fresh, the others' as they came."""
        return self.protection.sgd(part, theta, rest, batch, lr, self.l2, noise, normals, by=by)

    @property
    def steps_of_row(self) -> int:
        return 1 if self.minibatch == "fresh" else self.local_steps

    def exposure(self, fed: Fabric, round: int) -> tuple[Tensor, Tensor]:
        again = times(self.ids(fed, round), fed.size)
        return again, again * self.steps_of_row

    def predict(self, fed: Fabric, state: State, step: Step) -> AtHubs[Rows]:
        return predict_jointly(fed, state, step)


def share_head(fed: Fabric, theta: AtHubs[Theta]) -> AtHubs[Theta]:
    """Hubs average their replicas of the head, in hub order, so that replicas stay equal."""
    if not fed.has_head:
        return theta
    heads = fed.exchange(HEAD, fed.at_hubs(_head_of, theta))
    return fed.at_hubs(_with_mean_head, theta, heads)


def _head_of(theta: Theta) -> dict[str, Tensor]:
    return theta.head


def _with_mean_head(theta: Theta, heads: dict[str, dict[str, Tensor]]) -> Theta:
    replicas = list(heads.values())
    mean = tree.map_tensors(lambda *tensors: torch.stack(tensors).sum(0) / len(tensors), *replicas)
    return theta._replace(head=mean)
