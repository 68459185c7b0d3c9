"""What algorithms share whose hubs average their clients' blocks (the two tiers of TDCD).

Line numbers are those of Algorithm 1 in Das, Castiglia, Wang, Patterson (see tdcd.py);
`start` is line 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from ...core.placed import AtClients, AtHubs, Rows
from ...fabric.kinds import Kind
from ...fabric.verbs import Fabric
from ...models.task import Part, Theta
from ..contract import State, Step
from . import local
from .minibatch import Draw, MinibatchSGD

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
UPDATE = Kind(
    "update",
    "a client's block after its local steps",
    reveals="the gradient of its rows: of a client with one row in the minibatch, that row",
)

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


def counted(rest: Rows) -> Tensor:
    """How many of the client's rows counted in this round."""
    return rest.mask.sum()


def predict_jointly(fed: Fabric, state: State, step: Step) -> AtHubs[Rows]:
    """Clients embed, hubs exchange and add up: the joint prediction at every hub."""
    theta_k = fed.to_clients(MODEL, state.theta)
    phi_k = fed.at_clients(local.embed, fed.part, theta_k, step.batch_k)
    phis = fed.exchange(HUB_EMBEDDING, fed.gather(EMBEDDING, phi_k, step.rows))
    return fed.at_hubs(local.joint_scores, fed.part, state.theta, phis)
