"""SplitNN: each silo holds the first layers of a network, the label silo also its top.

Thesis, section 4.1 (steps 1-7, numbers below) and 5.4.1; after Vepakomma et al., Split learning for
health, 2018. With Q = 1 it is SGD on the joined network. With Q > 1 the derivative that came back
to the cut layer is frozen, and each silo pulls it through its own layers Q times.

Readings of the thesis:
- The master is the hub of the label silo. Its top model is the task's head, held and trained in
  that silo only; without one, the sum of the embeddings is the score.
- A silo with several clients trains as in TDCD: the hub averages its clients. Labels stay with the
  clients of the label silo, so each of them trains a replica of the top on its own rows, and the
  hub averages the replicas. With one client this is the thesis' master.
- The top takes one step on every minibatch of a round ("updates its own model", step 5), with the
  step size of that minibatch's first local step: one in the reused form, Q in the fresh one. All
  derivatives are those of the top at the start of the round.
- Nothing is encrypted here.

It keeps labels where they are, it does not hide them. Without a top, with cross-entropy, the
negative entry of the derivative that a silo gets back is the row's label; and with any top, rows of
different classes can be told apart by the derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.gradients import grad
from ..core.placed import AtClients, AtHubs, Batch, Placed, Rows
from ..core.registry import algorithms
from ..core.rng import Streams
from ..core.settings import Count
from ..data.placement import Placement
from ..fabric.kinds import Kind
from ..fabric.verbs import Fabric
from ..models.block import Params
from ..models.task import Part, Task, Theta
from .central import to_all
from .contract import NOWHERE, State, Step
from .shared import local
from .shared.checks import label_silo
from .shared.local import Descent
from .shared.minibatch import Draw
from .shared.optimizers import Memory, Trained, theta_of
from .shared.tiered import EMBEDDING, HUB_EMBEDDING, MODEL, TieredSGD, counted

CUT = Kind(
    "cut-layer",
    "the silos' joint embedding of a label client's own rows, to that client",
    "joint",
    reveals="with two silos, the other's embeddings of these rows",
)
CUT_DERIVATIVE = Kind(
    "cut-derivative",
    "derivatives of the loss by the joint embedding, to the label silo's hub",
    "joint",
    reveals="labels: without a top model the negative entry of a row IS its label, with one rows "
    "can still be sorted by label",
)
HUB_CUT_GRADIENT = Kind(
    "hub-cut-gradient",
    "a silo's share of the derivatives, to its hub",
    "embedding",
    reveals="labels: without a top model the negative entry of a row IS its label, with one rows "
    "can still be sorted by label",
)
CUT_GRADIENT = Kind(
    "cut-gradient",
    "the derivatives of a client's own rows, to that client",
    "embedding",
    reveals="labels, as they do to its hub",
)
TOP = Kind("top", "the top model, to the label silo's clients only")
TOP_UPDATE = Kind(
    "top-update",
    "a label client's top model after its step, to its own hub",
    reveals="the gradient of its rows: of a client with one row in the minibatch, its label",
)
TOP_SCORES = Kind(
    "top-scores", "the top model's scores, to every hub, at prediction only", "scores"
)


class SplitState(NamedTuple):
    """Each hub's block (no head in it), and the top at the label silo's hub. Of both, what hubs and
    optimisers remember (see State)."""

    theta: AtHubs[Theta]
    top: AtHubs[Params]
    hub_top: AtHubs[Any] = NOWHERE
    kept_top: AtClients[Any] | AtHubs[Any] = NOWHERE
    hub: AtHubs[Any] = NOWHERE
    kept: AtClients[Any] | AtHubs[Any] = NOWHERE


@algorithms.register("splitnn")
@dataclass(frozen=True)
class SplitNN(TieredSGD):
    """Split neural network: a top model over the silos' embeddings, where the labels are."""

    local_steps: Annotated[Count, "Q, the local steps of a round, with one frozen derivative"] = 1
    labels_at: Annotated[str | None, "the silo with labels and top model; none: the first"] = None

    State: ClassVar[type[Any]] = SplitState
    training_layers: ClassVar[bool] = True

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        label_silo(self.labels_at, placement)

    def holder(self, fed: Fabric) -> str:
        return self.labels_at or fed.silos[0]

    def start(self, fed: Fabric) -> Any:
        top = fed.at(self.holder(fed), initial_top, fed.part, fed.known(fed.streams))
        theta, hub, kept = super().start(fed)
        return SplitState(theta, top, *self.memories_of_top(fed, top, top_only), hub, kept)

    def first(self, part: Part, streams: Streams) -> Theta:
        return initial_block(part, streams)

    def round(self, fed: Fabric, state: Any, draw: Draw) -> Any:
        part, rows, batch_k = fed.part, draw.rows, draw.batch_k
        holder = self.holder(fed)
        label = fed.within(holder)
        theta_k = self.to_clients(fed, state.theta, draw)
        top_k = self.top_to_clients(label, state.top)
        phi_k = fed.at_clients(local.embed_in_training, part, theta_k, batch_k)  # 1
        phi = fed.gather(EMBEDDING, phi_k, rows)
        joint = fed.at(holder, joined, part, fed.collect(HUB_EMBEDDING, phi, to=holder))  # 2
        joint_k = label.scatter(CUT, joint, rows)
        gradient_k = label.at_clients(derivative, part, top_k, joint_k, batch_k)  # 3-4
        gradient = label.gather(CUT_DERIVATIVE, gradient_k, rows)
        gradients = fed.at(holder, shares, part, joint, gradient)
        top_k = self.train_tops(label, state, top_k, joint_k, draw)  # 5
        theta, hub, kept = self.pull(fed, holder, theta_k, gradients, state, draw)  # 5-6
        rows_k = label.at_clients(counted, joint_k)
        return SplitState(theta, *self.settle_top(label, top_k, state, rows_k), hub, kept)

    def pull(
        self,
        fed: Fabric,
        frm: str,
        theta_k: AtClients[Theta],
        gradients: AtHubs[Mapping[str, Rows]],
        state: Any,
        draw: Draw,
    ) -> Any:
        """Steps 5-6: every silo gets its share of the derivatives and pulls it back Q times."""
        share = fed.spread(HUB_CUT_GRADIENT, gradients, frm=frm)
        gradient_k = fed.scatter(CUT_GRADIENT, share, draw.rows)
        given = (theta_k, gradient_k, draw.batch_k, draw.lr)
        trained_k = self.train(fed, self.frozen_gradient_sgd, state.kept, *given)
        before = State(state.theta, state.hub, state.kept)
        return self.settle(fed, trained_k, before, fed.at_clients(counted, gradient_k))

    def frozen_gradient_sgd(
        self,
        part: Part,
        theta: Theta,
        gradient: Rows,
        batch: Batch,
        lr: Tensor,
        by: Descent | None = None,
    ) -> Any:
        return local.frozen_gradient_sgd(part, theta, gradient, batch, lr, self.l2, by=by)

    # The top model: only in the label silo, and only where the task has a head

    @property
    def top_steps(self) -> int:
        """One on every minibatch."""
        return self.local_steps if self.minibatch == "fresh" else 1

    def top_to_clients(self, label: Fabric, top: AtHubs[Params]) -> Placed:
        return label.to_clients(TOP, top) if label.has_head else label.known({})

    def train_tops(
        self, label: Fabric, state: Any, top_k: Placed, joint_k: AtClients[Rows], draw: Draw
    ) -> Any:
        """The top's steps at the label clients, where there is one."""
        if not label.has_head:
            return top_k
        given = (top_k, joint_k, draw.batch_k, draw.lr)
        return self.train(label, self.train_top, state.kept_top, *given, steps=self.top_steps)

    def train_top(
        self,
        part: Part,
        top: Params,
        joint: Rows,
        batch: Batch,
        lr: Tensor,
        by: Descent | None = None,
    ) -> Any:
        lr = lr[: self.top_steps]
        trained = local.sgd(top_loss, part, Theta({}, top), joint, batch, lr, self.l2, by=by)
        if isinstance(trained, Trained):
            return trained._replace(theta=trained.theta.head)
        return trained.head

    def average_tops(
        self, label: Fabric, top_k: AtClients[Params], before: AtHubs[Params], rows_k: Placed
    ) -> AtHubs[Params]:
        weight_k = None
        if self.weighting != "uniform":
            weight_k = label.at_clients(self.weigh, label.part, rows_k)
        return label.mean(TOP_UPDATE, top_k, otherwise=before, weight=weight_k)

    def settle_top(
        self, label: Fabric, trained_k: AtClients[Any], state: Any, rows_k: AtClients[Tensor]
    ) -> tuple[AtHubs[Params], AtHubs[Memory], Any]:
        """The tops' mean, the hub's step, and what the label clients keep."""
        if not label.has_head:
            return state.top, state.hub_top, state.kept_top
        top_k = label.at_clients(theta_of, trained_k) if self.keeps else trained_k
        mean = self.average_tops(label, top_k, state.top, rows_k)
        kept = self.keep(label, trained_k, state.kept_top)
        if self.hub_step is None:
            return mean, state.hub_top, kept
        old, new = (label.at_hubs(as_theta, top) for top in (state.top, mean))
        theta, hub = self.towards(label, old, new, state.hub_top)
        return label.at_hubs(head_of, theta), hub, kept

    def memories_of_top(
        self, fed: Fabric, top: AtHubs[Params], first: Callable[[Part, Streams], Theta]
    ) -> tuple[Any, Any]:
        """What hub and clients remember of a top before the first step."""
        if not fed.has_head:
            return NOWHERE, NOWHERE
        label = fed.within(self.holder(fed))
        hub = self.hubs_memory(label, label.at_hubs(as_theta, top))
        return hub, self.clients_memory(label, first)

    # Prediction and export

    def predict(self, fed: Fabric, state: Any, step: Step) -> AtHubs[Rows]:
        holder = self.holder(fed)
        theta_k = fed.to_clients(MODEL, state.theta)
        phi_k = fed.at_clients(local.embed, fed.part, theta_k, step.batch_k)
        phis = fed.collect(HUB_EMBEDDING, fed.gather(EMBEDDING, phi_k, step.rows), to=holder)
        scores = fed.at(
            holder, top_scores, fed.part, state.top, fed.at(holder, joined, fed.part, phis)
        )
        everyone = fed.at(holder, to_all, fed.known(fed.silos), scores)
        return fed.spread(TOP_SCORES, everyone, frm=holder)

    def blocks(self, fed: Fabric, state: Any) -> dict[str, Theta]:
        """Where the label silo's hub is hosted, with its top as everyone's head."""
        top = fed.read(state.top).get(self.holder(fed), {})
        return {silo: Theta(theta.block, top) for silo, theta in fed.read(state.theta).items()}


def initial_block(part: Part, streams: Streams) -> Theta:
    return part.initial(streams)._replace(head={})


def as_theta(params: Params) -> Theta:
    """A top alone, for what works on blocks with heads."""
    return Theta({}, params)


def head_of(theta: Theta) -> Params:
    return theta.head


def top_only(part: Part, streams: Streams) -> Theta:
    return as_theta(initial_top(part, streams))


def initial_top(part: Part, streams: Streams) -> Params:
    return part.initial(streams).head


def joined(part: Part, phis: dict[str, Rows]) -> Rows:
    """The cut layer: where embeddings meet. A row counts where every silo has it."""
    mask = local.everywhere(phis)
    value = reduce(torch.add, [part.place(phi.value, silo) for silo, phi in phis.items()])
    return Rows(torch.where(mask[:, None], value, 0.0), mask)


def row_losses(part: Part, top: Params, joint: Tensor, batch: Batch) -> Tensor:
    """The loss of every row, through the top; rows of several minibatches are one after another."""
    assert batch.y is not None
    last = batch.mask.ndim - 1
    scores = part.scores(Theta({}, top), joint.flatten(0, last))
    return part.loss.rows(scores, batch.y.flatten(0, last)).unflatten(0, batch.mask.shape)


def derivative(part: Part, top: Params, joint: Rows, batch: Batch) -> Tensor:
    """dl/dz of every row, by the cut layer z."""
    return grad(_total)(joint.value, part, top, batch)


def _total(joint: Tensor, part: Part, top: Params, batch: Batch) -> Tensor:
    return row_losses(part, top, joint, batch).sum()


def top_loss(theta: Theta, part: Part, joint: Rows, batch: Batch) -> local.Loss:
    return local.mean_over(joint.mask, row_losses(part, theta.head, joint.value, batch)), {}


def shares(part: Part, joint: Rows, gradient: Rows) -> dict[str, Rows]:
    """Each silo's own columns of the derivatives; a row counts where it has a derivative too."""
    mask = joint.mask & gradient.mask
    return {silo: Rows(part.share(gradient.value, silo), mask) for silo in part.shapes.width}


def top_scores(part: Part, top: Params, joint: Rows) -> Rows:
    return Rows(part.scores(Theta({}, top), joint.value), joint.mask)
