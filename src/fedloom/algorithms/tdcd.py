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
from typing import Annotated, Literal, Self

import torch
from torch import Tensor

from ..core import tree
from ..core.placed import AtClients, AtHubs, Batch, Rows
from ..core.registry import algorithms
from ..data.placement import Placement
from ..fabric.kinds import Kind
from ..fabric.local_work import in_shares
from ..fabric.releases import times
from ..fabric.verbs import Fabric
from ..models.task import Part, Task, Theta
from ..privacy.settings import Privacy
from . import local
from .contract import Bill, Draw, Facts, MinibatchSGD, State, Step, Twin, need_labels, tally
from .releasing import SHIELDED, Releasing

MODEL = Kind("model", "the hub's block of the model, to its own clients")
EMBEDDING = Kind(
    "embedding",
    "a client's embeddings of its rows in the minibatch",
    "embedding",
    reveals="features: the hub has the block, and computes the rows themselves where an embedding "
    "has as many numbers as a row",
)
HUB_EMBEDDING = Kind(
    "hub-embedding",
    "a silo's embeddings of the minibatch",
    "embedding",
    reveals="features: who knows some hundred rows learns to guess the others, who knows the block "
    "computes them as its own hub does",
)
REST = Kind(
    "rest",
    "sum of the other silos' embeddings, of the client's own rows",
    "joint",
    reveals="with two silos, the other's embeddings of these rows",
)
UPDATE = Kind(
    "update",
    "a client's block after its local steps",
    reveals="the gradient of its rows: of a client with one row in the minibatch, that row",
)
HEAD = Kind("head", "a hub's replica of the shared head")

Weighting = Literal["uniform", "participants", "rows"]


@dataclass(frozen=True)
class TieredSGD(MinibatchSGD):
    """What algorithms share whose hubs average their clients' blocks."""

    weighting: Annotated[
        Weighting,
        "of clients in the mean: all alike, all that had rows in the minibatch, or by their rows",
    ] = "uniform"

    def start(self, fed: Fabric) -> State:
        return State(fed.at_hubs(local.initial, fed.part, fed.known(fed.streams)))

    def to_clients(self, fed: Fabric, theta: AtHubs[Theta], draw: Draw) -> AtClients[Theta]:
        """Lines 11-12."""
        holding = draw.rows if self.weighting == "participants" else None
        return fed.to_clients(MODEL, theta, holding)

    def average(
        self, fed: Fabric, theta_k: AtClients[Theta], state: State, rows_k: AtClients[Tensor]
    ) -> AtHubs[Theta]:
        """Line 32. `rows_k`: how many of each client's rows counted."""
        weight_k = None
        if self.weighting != "uniform":
            weight_k = fed.at_clients(self.weigh, fed.part, rows_k)
        return fed.mean(UPDATE, theta_k, otherwise=state.theta, weight=weight_k)

    def weigh(self, part: Part, rows: Tensor) -> Tensor:
        return (rows if self.weighting == "rows" else rows > 0).to(part.shapes.dtype)

    @in_shares
    def local_sgd(self, part: Part, theta: Theta, rest: Rows, batch: Batch, lr: Tensor) -> Theta:
        return local.local_sgd(part, theta, rest, batch, lr, self.l2)

    def blocks(self, fed: Fabric, state: State) -> dict[str, Theta]:
        return fed.read(state.theta)

    def talking(self, facts: Facts) -> dict[str, int]:
        """How many clients each hub speaks to in a round."""
        return dict(facts.holders if self.weighting == "participants" else facts.clients)

    def update_bytes(self, facts: Facts) -> int:
        weight = 0 if self.weighting == "uniform" else facts.shapes.dtype.itemsize
        return sum(k * (facts.model[silo] + weight) for silo, k in self.talking(facts).items())


@algorithms.register("tdcd")
@dataclass(frozen=True)
class TDCD(Releasing, TieredSGD):
    """Tiered decentralized coordinate descent: labels at every client, embeddings at every hub."""

    privacy: Annotated[Privacy | None, "noise on embeddings that leave a client"] = None

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        self.check_privacy(task)
        need_labels(
            placement,
            placement.topology.silos,
            "TDCD takes labels at every client; with labels in one silo, use tdcd-private-labels",
        )

    def round(self, fed: Fabric, state: State, draw: Draw) -> State:
        part, batch_k, rows = fed.part, draw.batch_k, draw.rows
        theta_k = self.to_clients(fed, state.theta, draw)  # 11-12
        noise_k = self.row_noise(fed, rows, draw.ids, theta_k)
        phi_k = fed.at_clients(self.release, part, theta_k, batch_k, noise_k)  # 13
        phi = fed.gather(EMBEDDING, phi_k, rows)  # 17
        phis = fed.exchange(HUB_EMBEDDING, phi)  # 18
        rest = fed.at_hubs(local.sum_of_others, part, phis)  # 19
        rest_k = fed.scatter(REST, rest, rows)  # 22
        theta_k = self.stepped(fed, theta_k, rest_k, draw, draw.lr, noise_k, draw.ids)  # 25-29
        theta = self.average(fed, theta_k, state, fed.at_clients(counted, rest_k))  # 32
        return State(share_head(fed, self.settled(fed, theta, state.theta)))

    @property
    def steps_of_row(self) -> int:
        return 1 if self.minibatch == "fresh" else self.local_steps

    def exposure(self, fed: Fabric, round: int) -> tuple[Tensor, Tensor]:
        again = times(self.ids(fed, round), fed.size)
        return again, again * self.steps_of_row

    def predict(self, fed: Fabric, state: State, step: Step) -> AtHubs[Rows]:
        return predict_jointly(fed, state, step)

    def bill(self, facts: Facts) -> Bill:
        talking = self.talking(facts)
        n, k, s = len(talking), sum(talking.values()), self.rows_of_round(facts.size)
        embeddings = s * sum(facts.row("embedding", j) for j in talking)
        rest = s * sum(facts.row("joint", j) + 1 for j in talking)
        return tally(
            ("bottom", "down", MODEL, k, sum(talking[j] * facts.model[j] for j in talking)),
            ("bottom", "up", EMBEDDING, k, embeddings),
            ("top", "across", HUB_EMBEDDING, n * (n - 1), (n - 1) * (embeddings + n * s)),
            ("bottom", "down", REST, k, rest),
            ("bottom", "up", UPDATE, k, self.update_bytes(facts)),
            ("top", "across", HEAD, n * (n - 1) if facts.head else 0, n * (n - 1) * facts.head),
        )

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(local_steps=3, lr=0.2, batch=12),
            cls(local_steps=2, lr=0.2, batch=12, privacy=SHIELDED),
            cls(local_steps=2, lr=0.2, batch=9, minibatch="fresh", weighting="rows", l2=0.05),
            cls(local_steps=2, lr=0.2, batch=5, weighting="participants"),
            cls(local_steps=1, lr=0.2, batch=None, l2=0.1),
        ]

    @classmethod
    def twins(cls) -> list[Twin]:
        from .alone import Alone
        from .central import Central

        one_step = cls(local_steps=1, lr=0.2, batch=9)
        rows = cls(local_steps=1, lr=0.2, batch=None, weighting="rows", l2=0.1)
        many = cls(local_steps=4, lr=0.2, batch=9)
        fresh = cls(local_steps=3, lr=0.2, batch=9, minibatch="fresh")
        return [
            Twin("K = Q = 1: SGD", one_step, Central(local_steps=1, lr=0.2, batch=9), 3, 1),
            Twin("with a head", one_step, Central(local_steps=1, lr=0.2, batch=9), 3, 1, head=True),
            Twin(
                "Q = 1, full batch, clients weighted by rows: gradient descent on the pooled model",
                rows,
                Central(local_steps=1, lr=0.2, batch=None, l2=0.1),
                3,
                None,
            ),
            Twin("N = 1: local SGD", many, Alone(local_steps=4, lr=0.2, batch=9), 1, None),
            Twin(
                "N = 1, fresh: local SGD",
                fresh,
                Alone(local_steps=3, lr=0.2, batch=9, minibatch="fresh"),
                1,
                None,
            ),
        ]


def counted(rest: Rows) -> Tensor:
    """How many of the client's rows counted in this round."""
    return rest.mask.sum()


def predict_jointly(fed: Fabric, state: State, step: Step) -> AtHubs[Rows]:
    """Clients embed, hubs exchange and add up: the joint prediction at every hub."""
    theta_k = fed.to_clients(MODEL, state.theta)
    phi_k = fed.at_clients(local.embed, fed.part, theta_k, step.batch_k)
    phis = fed.exchange(HUB_EMBEDDING, fed.gather(EMBEDDING, phi_k, step.rows))
    return fed.at_hubs(local.joint_scores, fed.part, state.theta, phis)


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
    mean = tree.map_tensors(lambda *each: torch.stack(each).sum(0) / len(each), *replicas)
    return theta._replace(head=mean)
