"""FedAvg and FedProx: one silo whose clients hold different rows of the same columns.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS
2017, Algorithm 1 (comments below); Li et al., Federated Optimization in Heterogeneous Networks,
MLSys 2020, Algorithm 2.

Readings of the papers:
- A client's local epochs are Q steps on its own rows of Q minibatches, drawn from all rows of the
  silo by a common stream; a client without a row in a minibatch takes no step on it.
- Clients are weighted by their rows that were drawn, on average n_k / n. "uniform" and
  "participants" are there as in TDCD.
- The fraction C of clients in a round is the schedule's business (`Drawn`).
- FedProx's local problem is solved by those Q steps, not to a given inexactness; its mu is the
  weight of |theta - theta_global|^2 / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from ..core.errors import SettingError
from ..core.placed import AtHubs, Batch, Rows
from ..core.registry import algorithms
from ..core.settings import NotNegative
from ..data.placement import Placement
from ..fabric.local_work import in_shares
from ..fabric.verbs import Fabric
from ..models.task import Part, Task, Theta
from .contract import State, Step
from .shared import local
from .shared.checks import need_labels
from .shared.local import Descent
from .shared.minibatch import Draw
from .shared.tiered import TieredSGD, Weighting, counted, predict_jointly


@algorithms.register("fedavg")
@dataclass(frozen=True)
class FedAvg(TieredSGD):
    """FedAvg, for one silo: clients take Q steps on their own rows, the hub averages."""

    minibatch: Annotated[
        Literal["reused", "fresh"], "one minibatch for the Q steps of a round, or Q of them"
    ] = "fresh"
    weighting: Annotated[
        Weighting,
        "of clients in the mean: all alike, all that had rows in the minibatch, or by their rows",
    ] = "rows"

    one_silo: ClassVar[bool] = True
    training_layers: ClassVar[bool] = True

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        silos = placement.topology.silos
        if len(silos) > 1:
            raise SettingError(
                f"it is for the clients of one silo, and there are {len(silos)}: use alone (every "
                "silo by itself) or tdcd (all together)"
            )
        need_labels(placement, silos, "clients train on their own labels")

    def round(self, fed: Fabric, state: State, draw: Draw) -> State:
        theta_k = self.to_clients(fed, state.theta, draw)  # w_t to the clients S_t
        rest_k = fed.at_clients(local.nothing_from_others, fed.part, draw.batch_k)
        given = (theta_k, rest_k, draw.batch_k, draw.lr)
        trained_k = self.train(fed, self.local_sgd, state.kept, *given)  # ClientUpdate(k, w_t)
        rows_k = fed.at_clients(counted, rest_k)
        return self.settle(fed, trained_k, state, rows_k)  # w_{t+1} = sum_k n_k / n w_k

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
        """ClientUpdate: Q steps on the client's own rows."""
        return local.local_sgd(part, theta, rest, batch, lr, self.l2, by=by)

    def predict(self, fed: Fabric, state: State, step: Step) -> AtHubs[Rows]:
        return predict_jointly(fed, state, step)


@algorithms.register("fedprox")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx, for one silo: FedAvg whose clients are held near the hub's model."""

    mu: Annotated[NotNegative, "weight of |theta - theta_global|^2 / 2 in the local steps"] = 0.1

    def local_sgd(
        self,
        part: Part,
        theta: Theta,
        rest: Rows,
        batch: Batch,
        lr: Tensor,
        by: Descent | None = None,
    ) -> Any:
        return local.local_sgd(part, theta, rest, batch, lr, self.l2, prox=self.mu, by=by)
