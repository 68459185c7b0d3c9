"""The pooled baseline: the same sum model, trained in one place on everyone's raw rows.

What the federation is compared with, not something to deploy: features and labels leave the
clients. It is written over the fabric like everything else, so it has records and a ledger, which
counts a row each time it is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from ..core import tree
from ..core.gradients import grad
from ..core.placed import AtClients, AtHubs, Batch, Rows
from ..core.registry import algorithms
from ..core.rng import Streams
from ..core.settings import Count
from ..data.placement import Placement
from ..fabric.kinds import Kind
from ..fabric.verbs import Fabric
from ..models.block import Params
from ..models.dropout import number_of, of_step, row_keys
from ..models.task import Part, Task, Theta
from .contract import NOWHERE, State, Step
from .shared import local
from .shared.checks import label_silo
from .shared.minibatch import Draw, MinibatchSGD
from .shared.optimizers import (
    Memory,
    Trained,
    memory_of,
    theta_of,
    trained_part,
)

FEATURES = Kind("features", "a client's raw rows", "features", reveals="the rows")
LABELS = Kind("labels", "the labels of a client's rows", "label", reveals="the labels")
HUB_FEATURES = Kind("hub-features", "a silo's raw rows", "features", reveals="the rows")
SCORES = Kind("joint-scores", "the pooled model's scores", "scores")

Parts = dict[str, Part]
Thetas = dict[str, Theta]


@algorithms.register("central")
@dataclass(frozen=True)
class Central(MinibatchSGD):
    """Pooled baseline: Q steps of SGD a round on everyone's raw rows, at the label silo's hub."""

    local_steps: Annotated[Count, "Q, the steps of a round"] = 1
    labels_at: Annotated[
        str | None, "the silo that holds the labels, where rows meet; none: the first"
    ] = None

    training_layers: ClassVar[bool] = True

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        label_silo(self.labels_at, placement)

    def pool(self, fed: Fabric) -> str:
        return self.labels_at or fed.silos[0]

    def start(self, fed: Fabric) -> State:
        pool = self.pool(fed)
        theta = fed.at(pool, initial, fed.parts, fed.known(fed.streams))
        return State(theta, kept=fed.at(pool, self.remembers, theta) if self.keeps else NOWHERE)

    def round(self, fed: Fabric, state: State, draw: Draw) -> State:
        pool = self.pool(fed)
        x = pooled(fed, draw.batch_k, draw, pool)
        label = fed.within(pool)
        y = label.gather(LABELS, label.at_clients(labels_of, draw.batch_k), draw.rows)
        numbers = {
            j: number_of(fed.streams, j, fed.round)
            for j, part in fed.parts.value.items()
            if part.block.drops
        }
        memory = state.kept if self.keeps else fed.known(None)
        given = (x, y, fed.known(numbers), fed.known(draw.ids), draw.lr, memory)
        steps = self.local_steps
        trained = fed.at(pool, self.sgd, fed.parts, state.theta, *given, steps=steps)
        kept = fed.at(pool, memory_of, trained) if self.keeps else NOWHERE
        return State(fed.at(pool, theta_of, trained), kept=kept)

    def sgd(
        self,
        parts: Parts,
        thetas: Thetas,
        x: dict[str, Rows],
        y: Rows,
        numbers: dict[str, int],
        ids: Tensor,
        lr: Tensor,
        memory: Memory | None,
    ) -> Trained:
        """A step for each entry of lr, on all rows or on those of that step. `numbers`: of silos
        with dropout, what their masks are named by."""
        if memory is None and self.steps_by is not None:
            memory = self.remembers(thetas)
        steps = len(ids)
        mask = torch.stack([y.mask, *(rows.mask for rows in x.values())]).all(0)
        whole = ({silo: rows.value for silo, rows in x.items()}, y.value, mask)
        for q, eta in enumerate(lr):
            features, labels, counts = tree.map_tensors(
                lambda a, q=q: a.unflatten(0, (steps, -1))[q % steps], whole
            )
            keys = {j: of_step(row_keys(n, ids[q % steps]), q) for j, n in numbers.items()}
            gradients, statistics = grad(pooled_loss, has_aux=True)(
                thetas, parts, features, labels, counts, keys
            )
            moved, memory = self.moved(parts, thetas, gradients, memory, counts, eta)
            moved = {j: parts[j].joined(theta, statistics[j]) for j, theta in moved.items()}
            head = next(iter(moved.values())).head
            thetas = {silo: theta._replace(head=head) for silo, theta in moved.items()}
        return Trained(thetas, memory)

    def moved(
        self,
        parts: Parts,
        thetas: Thetas,
        gradients: Thetas,
        memory: Memory,
        counts: Tensor,
        lr: Tensor,
    ) -> tuple[Thetas, Memory]:
        """One step of all weights together: an optimiser may clip their gradient."""
        weights, along = (
            {j: part.apart(a[j])[0] for j, part in parts.items()} for a in (thetas, gradients)
        )
        if self.steps_by is None:
            return {
                j: local.descend(weights[j], along[j], counts, lr, self.l2) for j in parts
            }, memory
        along = local.with_l2(along, weights, self.l2)
        return self.steps_by.step(weights, along, memory, lr, counts.any())

    def remembers(self, thetas: Thetas) -> Memory:
        """What the optimiser remembers at the start."""
        assert self.steps_by is not None
        return self.steps_by.init(trained_parts(thetas))

    def predict(self, fed: Fabric, state: State, step: Step) -> AtHubs[Rows]:
        pool = self.pool(fed)
        x = pooled(fed, step.batch_k, step, pool)
        scores = fed.at(pool, rows_scores, fed.parts, state.theta, x)
        return fed.spread(SCORES, fed.at(pool, to_all, fed.known(fed.silos), scores), frm=pool)

    def blocks(self, fed: Fabric, state: State) -> dict[str, Theta]:
        return {**fed.read(state.theta).get(self.pool(fed), {})}


def pooled(
    fed: Fabric, batch_k: AtClients[Batch], where: Draw | Step, pool: str
) -> AtHubs[dict[str, Rows]]:
    """Everyone's raw rows of a minibatch, at one hub."""
    x = fed.gather(FEATURES, fed.at_clients(features_of, batch_k), where.rows)
    return fed.collect(HUB_FEATURES, x, to=pool)


def features_of(batch: Batch) -> Tensor:
    return batch.x


def labels_of(batch: Batch) -> Tensor:
    assert batch.y is not None
    return batch.y


def trained_parts(thetas: Thetas) -> Thetas:
    return {silo: trained_part(theta) for silo, theta in thetas.items()}


def initial(parts: Parts, streams: Streams) -> Thetas:
    return {silo: part.initial_for_all(streams) for silo, part in parts.items()}


def pooled_scores(thetas: Thetas, parts: Parts, phis: Mapping[str, Tensor]) -> Tensor:
    """The joint model in one place. The head is the first silo's replica."""
    joint = torch.stack([parts[j].place(phis[j]) for j in parts]).sum(0)
    first = next(iter(parts))
    return parts[first].scores(thetas[first], joint)


def pooled_loss(
    thetas: Thetas,
    parts: Parts,
    x: dict[str, Tensor],
    y: Tensor,
    mask: Tensor,
    keys: Mapping[str, Tensor],
) -> tuple[Tensor, dict[str, Params]]:
    """And the running statistics of every block after it."""
    embedded = {
        j: part.embed_in_training(thetas[j], x[j], mask, keys=keys.get(j))
        for j, part in parts.items()
    }
    phis, loss = {j: phi for j, (phi, _) in embedded.items()}, next(iter(parts.values())).loss
    value = local.mean_over(mask, loss.rows(pooled_scores(thetas, parts, phis), y))
    return value, {j: statistics for j, (_, statistics) in embedded.items()}


def rows_scores(parts: Parts, thetas: Thetas, x: dict[str, Rows]) -> Rows:
    phis = {j: part.embed(thetas[j], x[j].value) for j, part in parts.items()}
    value = pooled_scores(thetas, parts, phis)
    return Rows(value, local.everywhere(x))


def to_all(silos: tuple[str, ...], rows: Rows) -> dict[str, Any]:
    return dict.fromkeys(silos, rows)
