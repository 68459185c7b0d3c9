"""HyFEM, hybrid federated matched averaging: clients with any of the rows and any of the views.

Zhang, Yin, Hong, Chen: Hybrid Federated Learning: Algorithms and Implementation, Algorithm 1 (it
has no line numbers; its comments stand at the statements below).

One silo, whose hub is the server. Client m trains an extractor for each view d that it holds (D_m)
and a perceptron w_m of a width of its own. The hub averages extractors view by view, over those who
hold the view, and matches the perceptrons neuron by neuron into theta_0 (models/matching.py); each
client goes on with its part of it, w_m = Pi_m theta_0. Nobody needs rows in common with anybody.

Readings of the paper:
- HyFEM-Prox takes Q steps on the client's mean loss + mu (|w_m - Pi_m theta_0|^2 + sum_d
  |theta_{m,d} - theta_d|^2): `dist` is the squared norm and has a gradient. Eqn. 5 prints no mu
  before the extractors' term; with mu before both, Remark 2 holds: it is FedProx (whose mu is 2 of
  ours). HyFEM-Avg leaves the regulariser out.
- A sweep visits every client once, the worst fitting first, instead of P random picks: chance and
  names then change nothing. Before the sweeps everyone is matched with theta_0 as it stands. With
  `sweeps = 0` Pi stays as it is.
- Dummy neurons have zero weights and enter no mean; numbers that nobody holds are zero in theta_0.
- Neuron i of every client starts as neuron i of theta_0.
- The batch is one draw from all rows; a client steps on its own rows in it, and without any takes
  no step. All clients count alike in the means.
- A local model is what the client gets for the next round, and is judged on all test rows by its
  own views. The hub keeps everyone's Pi; of an absent client nothing changes.

Rows are [views, ...], and a view that a client lacks is zeros (data/partition/views.py cuts so).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ...core import tree
from ...core.errors import DataError, ModelError, SettingError
from ...core.gradients import grad
from ...core.placed import AtHubs, Batch, Rows
from ...core.registry import algorithms
from ...core.rng import Streams
from ...core.settings import NotNegative, at_least
from ...data.partition.views import check_views
from ...data.placement import Placement
from ...fabric.kinds import Kind
from ...fabric.verbs import Fabric
from ...models.multiview import ViewNet, hidden_widths, views_of
from ...models.task import Part, Task, Theta
from ..contract import Step
from ..shared import local
from ..shared.checks import need_labels
from ..shared.minibatch import Draw, MinibatchSGD
from ..shared.optimizers import trained_part
from .parts import (
    Lists,
    Maps,
    Server,
    check_widths,
    check_zeros,
    first_maps,
    maps_of,
    merge,
    own_model,
    theta_of,
    without_views,
)

OWN_MODEL = Kind("own-model", "a client's part of the model: its views' extractors, Pi_m theta_0")
OWN_UPDATE = Kind(
    "own-update",
    "a client's extractors and perceptron after its local steps",
    reveals="the gradients of its rows: of a client with few rows, much of them",
)
WHOLE_MODEL = Kind("whole-model", "the model of all views, at prediction only")
VIEW_SCORES = Kind("view-scores", "scores of a client's rows, at prediction only", "scores")


class HyFEMState(NamedTuple):
    """The global model (extractors and theta_0), and everyone's place in it."""

    theta: AtHubs[Theta]
    maps: AtHubs[Maps]


@algorithms.register("hyfem-avg")
@dataclass(frozen=True)
class HyFEMAvg(MinibatchSGD):
    """Hybrid federated matched averaging: clients hold some rows and some views of them."""

    minibatch: Annotated[
        Literal["reused", "fresh"], "one minibatch for the Q steps of a round, or Q of them"
    ] = "fresh"
    views: Annotated[
        dict[str, list[int]] | None,
        "client -> the views that it holds, by number; none: all hold all",
    ] = None
    widths: Annotated[
        dict[str, list[int]] | None,
        "client -> its perceptron's hidden widths; whoever is not named has the global ones",
    ] = None
    sweeps: Annotated[
        int, at_least(0), "P, sweeps of matching over the clients; 0: Pi stays as it is"
    ] = 4
    price: Annotated[
        NotNegative,
        "of a neuron matched with dummies only, in mean squared lengths of a neuron",
    ] = 0.5

    State: ClassVar[type[Any]] = HyFEMState
    personal: ClassVar[bool] = True

    @property
    def takes_head(self) -> bool:
        return False

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        if self.keeps:
            raise SettingError(
                "HyFEM matches clients' neurons anew in every round, and what an optimiser "
                'remembers would be of others: use optimizer.state = "fresh"'
            )
        topology = placement.topology
        if len(topology.silos) != 1:
            raise DataError(
                f"HyFEM has one silo, whose clients hold different views; here are "
                f"{len(topology.silos)}: stack their features as views, [rows, views, ...]"
            )
        (silo,), (clients,) = topology.silos, topology.clients.values()
        net = task.blocks[silo].module
        if not isinstance(net, ViewNet) or task.head is not None:
            raise ModelError("HyFEM needs the model 'multiview' (a ViewNet) and no head")
        need_labels(placement, topology.silos, "HyFEM takes labels at every client")
        if self.views is not None:
            check_views(self.views, clients, len(net.extractors))
            check_zeros(placement, self.views, len(net.extractors))
        check_widths(self.widths or {}, clients, hidden_widths(dict(net.named_parameters())))

    def fitting(self, rows: Placement) -> Placement:
        """Without the views that a client lacks."""
        return rows if self.views is None else without_views(rows, self.views)

    # The round

    def start(self, fed: Fabric) -> HyFEMState:
        server = fed.at_hubs(self.begin, fed.part, fed.known(fed.streams), fed.names)
        return HyFEMState(fed.at_hubs(theta_of, server), fed.at_hubs(maps_of, server))

    def round(self, fed: Fabric, state: HyFEMState, draw: Draw) -> HyFEMState:
        own = fed.at_hubs(self.distribute, state.theta, state.maps)
        start_k = fed.spread(OWN_MODEL, own)  # Distribute the aggregated models
        theta_k = fed.at_clients(  # Local Updates
            self.local_sgd, fed.part, start_k, draw.batch_k, draw.lr, steps=self.local_steps
        )
        updates = fed.collect(OWN_UPDATE, theta_k)
        server = fed.at_hubs(self.merge, state.theta, state.maps, updates)  # Aggregation, Matching
        return HyFEMState(fed.at_hubs(theta_of, server), fed.at_hubs(maps_of, server))

    # At clients

    def local_sgd(self, part: Part, start: Theta, batch: Batch, lr: Tensor) -> Theta:
        """Q steps on f_m (Eqns. 6 and 9)."""
        theta, by = start, self.steps_by
        memory = None if by is None else by.init(trained_part(start))
        for q, eta in enumerate(lr):
            rows = local.of_step(batch, q)
            gradient = grad(self.objective)(theta, start, part, rows)
            if by is None:
                theta = local.descend(theta, gradient, rows.mask, eta, self.l2)
            else:
                given = (gradient, memory, rows.mask, eta, self.l2)
                theta, memory = local.advance(by, theta, *given)
        return theta

    def objective(self, theta: Theta, start: Theta, part: Part, batch: Batch) -> Tensor:
        """The mean loss of the client's rows, from its own views."""
        assert batch.y is not None
        return local.mean_over(batch.mask, part.loss.rows(scores(part, theta, batch), batch.y))

    # At the hub

    def begin(self, part: Part, streams: Streams, names: tuple[str, ...]) -> Server:
        theta = part.initial(streams)
        return self.merge(theta, first_maps(theta, names, self.widths or {}), {})

    def distribute(self, theta: Theta, maps: Maps) -> dict[str, Theta]:
        return {name: self.own_model(theta, maps, name) for name in maps}

    def own_model(self, theta: Theta, maps: Maps, name: str) -> Theta:
        return own_model(theta, self.views_of_clients(theta, maps)[name], maps[name])

    def merge(self, theta: Theta, maps: Maps, updates: dict[str, Theta]) -> Server:
        views = self.views_of_clients(theta, maps)
        return merge(Server(theta, maps), updates, views, self.sweeps, self.price)

    def views_of_clients(self, theta: Theta, maps: Maps) -> Lists:
        """D_m of every client."""
        return self.views or dict.fromkeys(maps, views_of(theta.block))

    # Beside the round

    def predict(self, fed: Fabric, state: HyFEMState, step: Step) -> AtHubs[Rows]:
        """By the global model, from the views that each row has."""
        theta_k = fed.to_clients(WHOLE_MODEL, state.theta)
        return fed.gather(
            VIEW_SCORES, fed.at_clients(scores, fed.part, theta_k, step.batch_k), step.rows
        )

    def predict_as(self, fed: Fabric, state: HyFEMState, step: Step, client: str) -> AtHubs[Rows]:
        own = fed.at_hubs(self.own_model, state.theta, state.maps, fed.known(client))
        return self.predict(fed, HyFEMState(own, state.maps), step)

    def blocks(self, fed: Fabric, state: HyFEMState) -> dict[str, Theta]:
        return fed.read(state.theta)


@algorithms.register("hyfem-prox")
@dataclass(frozen=True)
class HyFEMProx(HyFEMAvg):
    """HyFEM whose clients are held near the global model: mu |theta_m - Pi_m theta|^2."""

    mu: Annotated[
        NotNegative, "weight of the squared distance from the model of the round's start"
    ] = 0.1

    def objective(self, theta: Theta, start: Theta, part: Part, batch: Batch) -> Tensor:
        far = [
            (a - b).square().sum() for a, b in zip(*map(tree.tensors, (theta, start)), strict=True)
        ]
        return super().objective(theta, start, part, batch) + self.mu * torch.stack(far).sum()


def scores(part: Part, theta: Theta, batch: Batch) -> Tensor:
    """By the views whose extractors are there."""
    x = batch.x.flatten(0, batch.mask.ndim - 1)
    return part.block(theta.block, x, views_of(theta.block)).unflatten(0, batch.mask.shape)
