"""U-shaped SplitNN: a server without data or labels holds the middle of the network.

Thesis, section 4.1 (its steps 1-6 below; after Vepakomma et al., 2018): silos send their embeddings
to a server, which applies the middle to them. Its output goes to the label silo, which keeps the
last layers and takes the loss; derivatives travel back the same way. With Q = 1 it is SGD on the
joined network.

Readings, beyond those of splitnn.py:
- The task's `middle` is the server's, its `head` the last layers of the label silo; every client
  there trains a replica of them on its own rows, and the hub averages. The server, which sees all
  rows of the minibatch, needs no replicas.
- With Q > 1 all derivatives are frozen at the start of the round, and the middle takes one step on
  every minibatch, as the top does.

The server learns embeddings and derivatives of all silos, and no label as such; but the derivatives
that it and the silos get can sort the rows by label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from ..core.errors import ModelError, SettingError
from ..core.gradients import grad
from ..core.placed import AtClients, AtHubs, Batch, Rows
from ..core.registry import algorithms
from ..core.rng import Streams
from ..core.topology import SERVER
from ..data.placement import Placement
from ..fabric.kinds import Kind
from ..fabric.verbs import Fabric
from ..models.block import Params
from ..models.joint import join_head, split_head
from ..models.task import Part, Task, Theta
from .central import Parts, to_all
from .contract import NOWHERE, Step
from .shared import local
from .shared.local import Descent
from .shared.minibatch import Draw
from .shared.optimizers import Memory, Trained, memory_of, theta_of
from .shared.tiered import EMBEDDING, HUB_EMBEDDING, MODEL, TieredSGD, counted
from .splitnn import (
    TOP_SCORES,
    SplitNN,
    as_theta,
    derivative,
    joined,
    shares,
    top_scores,
)

HUB_MIDDLE = Kind(
    "hub-middle",
    "what the server's middle gives, to the label silo's hub",
    "middle",
    reveals="something of all silos' features of these rows",
)
MIDDLE = Kind(
    "middle",
    "what the server's middle gives for a label client's own rows, to it",
    "middle",
    reveals="something of all silos' features of these rows",
)
MIDDLE_DERIVATIVE = Kind(
    "middle-derivative",
    "derivatives of the loss by what the middle gave, to the label silo's hub",
    "middle",
    reveals="labels: rows can be sorted by them",
)
HUB_MIDDLE_DERIVATIVE = Kind(
    "hub-middle-derivative",
    "derivatives of the loss by what the middle gave, to the server",
    "middle",
    reveals="labels: not as such, but rows can be sorted by them",
)


class USplitState(NamedTuple):
    """Each hub's block, the server's middle, and the last layers at the label silo's hub. Of all
    three, what hubs and optimisers remember (see State); the server's optimiser keeps its own."""

    theta: AtHubs[Theta]
    middle: AtHubs[Params]
    top: AtHubs[Params]
    hub_top: AtHubs[Any] = NOWHERE
    kept_top: AtClients[Any] | AtHubs[Any] = NOWHERE
    hub: AtHubs[Any] = NOWHERE
    kept: AtClients[Any] | AtHubs[Any] = NOWHERE
    kept_middle: AtHubs[Any] = NOWHERE


@algorithms.register("splitnn-u")
@dataclass(frozen=True)
class SplitNNU(SplitNN):
    """U-shaped split network: a server holds the middle, the label silo the last layers."""

    State: ClassVar[type[Any]] = USplitState
    needs_server: ClassVar[bool] = True

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        if not placement.topology.server:
            raise SettingError(
                "the U-shaped split needs a server: use placement.with_server(), or "
                "Placement.of(..., server=True)"
            )
        if task.middle is None:
            raise ModelError(
                "the U-shaped split needs a middle for the server and a head after it: "
                "Task(..., middle=..., head=...)"
            )

    def start(self, fed: Fabric) -> Any:
        streams = fed.known(fed.streams)
        middle = fed.at(SERVER, initial_middle, fed.parts, streams)
        top = fed.at(self.holder(fed), initial_last, fed.part, streams)
        theta, hub, kept = TieredSGD.start(self, fed)
        of_top = self.memories_of_top(fed, top, last_only)
        of_middle = fed.at(SERVER, self.server_remembers, middle) if self.keeps else NOWHERE
        return USplitState(theta, middle, top, *of_top, hub, kept, of_middle)

    def round(self, fed: Fabric, state: Any, draw: Draw) -> Any:
        part, parts, rows, batch_k = fed.part, fed.parts, draw.rows, draw.batch_k
        label = fed.within(self.holder(fed))
        theta_k = self.to_clients(fed, state.theta, draw)
        top_k = self.top_to_clients(label, state.top)
        phi_k = fed.at_clients(local.embed_in_training, part, theta_k, batch_k)  # 1
        phi = fed.gather(EMBEDDING, phi_k, rows)
        phis = fed.collect(HUB_EMBEDDING, phi, to=SERVER)  # 2: every party to the server
        joint = fed.at(SERVER, joined_there, parts, phis)  # 3: the server's layers
        middle_k = label.scatter(MIDDLE, self.to_labels(fed, state.middle, joint), rows)
        gradient_k = label.at_clients(last_derivative, part, top_k, middle_k, batch_k)  # 3-4
        gradient = label.gather(MIDDLE_DERIVATIVE, gradient_k, rows)
        back = label.collect(HUB_MIDDLE_DERIVATIVE, gradient, to=SERVER)
        gradients = fed.at(SERVER, middle_shares, parts, state.middle, joint, back)  # 4
        memory = state.kept_middle if self.keeps else fed.known(None)
        given = (parts, state.middle, joint, back, draw.lr, memory)
        # 5: both parts of the master's model
        trained = fed.at(SERVER, self.train_middle, *given, steps=self.top_steps)
        top_k = self.train_tops(label, state, top_k, middle_k, draw)
        theta, hub, kept = self.pull(fed, SERVER, theta_k, gradients, state, draw)  # 5-6
        of_top = self.settle_top(label, top_k, state, label.at_clients(counted, middle_k))
        middle = fed.at(SERVER, theta_of, trained)
        of_middle = fed.at(SERVER, memory_of, trained) if self.keeps else NOWHERE
        return USplitState(theta, middle, *of_top, hub, kept, of_middle)

    def to_labels(self, fed: Fabric, middle: AtHubs[Params], joint: AtHubs[Rows]) -> AtHubs[Rows]:
        """The middle's output, at the label silo's hub."""
        holder = self.holder(fed)
        gives = fed.at(SERVER, through_middle, fed.parts, middle, joint)
        only = fed.at(SERVER, to_all, fed.known((holder,)), gives)
        return fed.within(holder).spread(HUB_MIDDLE, only, frm=SERVER)

    def train_middle(
        self,
        parts: Parts,
        middle: Params,
        joint: Rows,
        back: dict[str, Rows],
        lr: Tensor,
        memory: Memory | None,
    ) -> Trained:
        """One step on every minibatch of the round, with the derivatives that came back."""
        steps, optimizer, remembered = self.top_steps, self.steps_by, None
        if optimizer is not None:
            remembered = Descent(optimizer, memory).begin(as_theta(middle))
        arrays = (joint.value, *came_back(joint, back))
        for q in range(steps):
            z, gradient, mask = (a.unflatten(0, (steps, -1))[q] for a in arrays)
            before = as_theta(middle)
            by_middle = grad(pulled_middle)(before, parts, z, Rows(gradient, mask))
            if optimizer is None:
                middle = local.descend(before, by_middle, mask, lr[q], self.l2).head
            else:
                after, remembered = local.advance(
                    optimizer, before, by_middle, remembered, mask, lr[q], self.l2
                )
                middle = after.head
        return Trained(middle, remembered)

    def server_remembers(self, middle: Params) -> Memory:
        assert self.steps_by is not None
        return self.steps_by.init(as_theta(middle))

    def train_top(
        self,
        part: Part,
        top: Params,
        joint: Rows,
        batch: Batch,
        lr: Tensor,
        by: Descent | None = None,
    ) -> Any:
        return super().train_top(with_last(part), top, joint, batch, lr, by)

    def predict(self, fed: Fabric, state: Any, step: Step) -> AtHubs[Rows]:
        holder = self.holder(fed)
        theta_k = fed.to_clients(MODEL, state.theta)
        phi_k = fed.at_clients(local.embed, fed.part, theta_k, step.batch_k)
        phis = fed.collect(HUB_EMBEDDING, fed.gather(EMBEDDING, phi_k, step.rows), to=SERVER)
        joint = fed.at(SERVER, joined_there, fed.parts, phis)
        gives = self.to_labels(fed, state.middle, joint)
        scores = fed.at(holder, last_scores, fed.part, state.top, gives)
        everyone = fed.at(holder, to_all, fed.known(fed.silos), scores)
        return fed.spread(TOP_SCORES, everyone, frm=holder)

    def blocks(self, fed: Fabric, state: Any) -> dict[str, Theta]:
        """With the whole head, where both the server and the label silo's hub are hosted."""
        middle = fed.read(state.middle).get(SERVER, {})
        head = join_head(middle, fed.read(state.top).get(self.holder(fed), {}))
        return {silo: Theta(theta.block, head) for silo, theta in fed.read(state.theta).items()}


def initial_middle(parts: Parts, streams: Streams) -> Params:
    return split_head(next(iter(parts.values())).initial(streams).head)[0]


def initial_last(part: Part, streams: Streams) -> Params:
    return split_head(part.initial(streams).head)[1]


def last_only(part: Part, streams: Streams) -> Theta:
    return as_theta(initial_last(part, streams))


def with_last(part: Part) -> Part:
    """The task as the label silo sees it: the last layers are its head."""
    return replace(part, head=part.last)


def joined_there(parts: Parts, phis: dict[str, Rows]) -> Rows:
    return joined(next(iter(parts.values())), phis)


def middle_of(parts: Parts, params: Params, joint: Tensor) -> Tensor:
    block = next(iter(parts.values())).middle
    assert block is not None
    return block(params, joint)


def through_middle(parts: Parts, params: Params, joint: Rows) -> Rows:
    return Rows(middle_of(parts, params, joint.value), joint.mask)


def last_derivative(part: Part, top: Params, given: Rows, batch: Batch) -> Tensor:
    return derivative(with_last(part), top, given, batch)


def last_scores(part: Part, top: Params, given: Rows) -> Rows:
    return top_scores(with_last(part), top, given)


def came_back(joint: Rows, back: dict[str, Rows]) -> Rows:
    """The derivatives from the label silo; a row counts where every silo has it."""
    (gradient,) = back.values()
    return Rows(gradient.value, gradient.mask & joint.mask)


def pulled_middle(theta: Theta, parts: Parts, joint: Tensor, gradient: Rows) -> Tensor:
    """A function with the gradient of the loss: derivatives pulled back through the middle."""
    along = (middle_of(parts, theta.head, joint) * gradient.value).sum(-1)
    return local.mean_over(gradient.mask, along)


def middle_shares(
    parts: Parts, middle: Params, joint: Rows, back: dict[str, Rows]
) -> dict[str, Rows]:
    """Each silo's share of the derivatives, pulled back through the middle."""
    gradient = came_back(joint, back)
    by_joint = grad(_along)(joint.value, parts, middle, gradient.value)
    return shares(next(iter(parts.values())), joint, Rows(by_joint, gradient.mask))


def _along(joint: Tensor, parts: Parts, middle: Params, gradient: Tensor) -> Tensor:
    return (middle_of(parts, middle, joint) * gradient).sum()
