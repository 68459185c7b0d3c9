"""TDCD with labels in one silo only (journal, Remark 2; line numbers of its Algorithm 1 below).

At every local step, all silos send their fresh embeddings to the silo that holds the labels. Its
clients differentiate the loss of their own rows, once for every silo (own embedding fresh, the
others' as at the start of the round), and the derivatives travel back. The iterates are those of
TDCD; it costs more messages and bytes.

It keeps labels where they are, it does not hide them: with cross-entropy the negative entry of a
row's derivative is its label. And it has no form with a trainable head: only the label silo could
train it, which is another algorithm (split learning).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.errors import ModelError
from ..core.gradients import grad
from ..core.placed import AtClients, AtHubs, Batch, Rows
from ..core.registry import algorithms
from ..data.placement import Placement
from ..fabric.kinds import Kind
from ..fabric.verbs import Fabric
from ..models.task import Part, Task, Theta
from .contract import State, Step
from .shared import local
from .shared.checks import label_silo
from .shared.minibatch import Draw
from .shared.optimizers import Memory, theta_of
from .shared.tiered import EMBEDDING, HUB_EMBEDDING, TieredSGD, predict_jointly

SCORES = Kind(
    "scores",
    "joint scores as each silo sees them, to the label holders",
    "views",
    reveals="how far each silo moved, from the second step on; with two silos, the other's "
    "embeddings of these rows",
)
DERIVATIVE = Kind(
    "derivative", "derivatives of the loss, from the label holders", "views", reveals="labels"
)
HUB_DERIVATIVE = Kind(
    "hub-derivative",
    "a silo's derivatives, from the label silo",
    "joint",
    reveals="labels: without a head the negative entry of a row IS its label, with one rows can "
    "still be sorted by label",
)
GRADIENT = Kind(
    "gradient",
    "the derivatives of a client's own rows, to that client",
    "joint",
    reveals="labels, as they do to its hub",
)


@algorithms.register("tdcd-private-labels")
@dataclass(frozen=True)
class TDCDPrivateLabels(TieredSGD):
    """TDCD whose labels stay in the silo `labels_at` (default: the first silo)."""

    labels_at: Annotated[str | None, "the silo that holds the labels; none: the first"] = None

    training_layers: ClassVar[bool] = True

    @property
    def takes_head(self) -> bool:
        return False

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        label_silo(self.labels_at, placement)
        if task.head is not None:
            raise ModelError(
                "tdcd-private-labels has no form with a trainable head: let the blocks give scores"
            )

    def round(self, fed: Fabric, state: State, draw: Draw) -> State:
        holder, part = self.labels_at or fed.silos[0], fed.part
        label = fed.within(holder)
        theta_k = self.to_clients(fed, state.theta, draw)  # 11-12
        step = Step(draw.batch_k, draw.rows)
        fresh = stale = embeddings(fed, theta_k, step, holder, 0)  # 13, 17
        memory = state.kept if self.keeps else fed.known(None)
        progress_k = fed.at_clients(self.begin, theta_k, memory)
        for q in range(self.local_steps):  # 25-29
            step = draw.step(fed, q)
            if q > 0:
                theta_k = fed.at_clients(theta_of, progress_k)
                fresh = embeddings(fed, theta_k, step, holder, q)
            z = fed.at(holder, views, part, fed.known((q, step.rows.size)), fresh, stale)  # 19
            z_k = label.scatter(SCORES, z, step.rows)
            dz = label.gather(
                DERIVATIVE, label.at_clients(derivatives, part, z_k, step.batch_k), step.rows
            )
            gradients = fed.at(holder, by_silo, fed.known(fed.silos), z, dz)
            gradient_k = fed.scatter(
                GRADIENT, fed.spread(HUB_DERIVATIVE, gradients, frm=holder), step.rows
            )
            eta = fed.known(draw.lr.value[q])
            progress_k = fed.at_clients(  # 27
                self.push, part, progress_k, gradient_k, step.batch_k, eta, fed.known(q), steps=1
            )
            progress_k = fed.hold(progress_k)
        rows_k = fed.at_clients(rows_of, progress_k)
        if not self.keeps:
            progress_k = fed.at_clients(theta_of, progress_k)
        return self.settle(fed, progress_k, state, rows_k)  # 32

    def begin(self, theta: Theta, memory: Memory | None) -> LocalProgress:
        rows = torch.zeros_like(next(iter(theta.block.values())), dtype=torch.int64).sum()
        if self.steps_by is None:
            return LocalProgress(theta, (), rows)
        return LocalProgress(theta, local.Descent(self.steps_by, memory).begin(theta), rows)

    def push(
        self, part: Part, progress: LocalProgress, gradient: Rows, batch: Batch, lr: Tensor, q: int
    ) -> LocalProgress:
        """Eqn. 5, with the derivative of the loss given instead of taken."""
        weights, _ = now = part.apart(progress.theta)
        batch = local.with_keys(batch, q)
        by_weights, statistics = local.loss_gradient(local.pulled, part, now, gradient, batch)
        rows = gradient.mask.sum() + (progress.rows if self.minibatch == "fresh" else 0)
        mask, memory = gradient.mask, progress.memory
        if self.steps_by is None:
            weights = local.descend(weights, by_weights, mask, lr, self.l2)
        else:
            weights, memory = local.advance(
                self.steps_by, weights, by_weights, memory, mask, lr, self.l2
            )
        return LocalProgress(part.joined(weights, statistics), memory, rows)

    def predict(self, fed: Fabric, state: State, step: Step) -> AtHubs[Rows]:
        return predict_jointly(fed, state, step)


class LocalProgress(NamedTuple):
    """A client's block on its way through a round, what its optimiser remembers, and how many of
    its rows counted."""

    theta: Theta
    memory: Memory
    rows: Tensor


def rows_of(progress: LocalProgress) -> Tensor:
    return progress.rows


def embeddings(
    fed: Fabric, theta_k: AtClients[Theta], step: Step, holder: str, q: int
) -> AtHubs[dict[str, Rows]]:
    """Every silo's embeddings of a minibatch (of local step q on), at the label silo's hub."""
    given = fed.part, theta_k, step.batch_k, fed.known(q)
    phi_k = fed.at_clients(local.embed_in_training, *given)
    return fed.collect(HUB_EMBEDDING, fed.gather(EMBEDDING, phi_k, step.rows), to=holder)


def views(
    part: Part, step: tuple[int, int], fresh: dict[str, Rows], stale: dict[str, Rows]
) -> Rows:
    """The joint scores as every silo sees them: its own embedding fresh, the others' stale."""
    fresh, stale = of_step(step, fresh), of_step(step, stale)
    seen = []
    for silo, phi in fresh.items():
        rest = local.sum_of_others(replace(part, silo=silo), stale)
        seen.append(part.place(phi.value, silo) + rest.value)
    everywhere = [phi.mask for phi in (*fresh.values(), *stale.values())]
    return Rows(torch.stack(seen, 1), torch.stack(everywhere).all(0))


def of_step(step: tuple[int, int], phis: dict[str, Rows]) -> dict[str, Rows]:
    """The rows of local step q, where the minibatches of all steps came together."""
    q, size = step
    return {
        silo: phi if len(phi.mask) == size else Rows(*(a[q * size : (q + 1) * size] for a in phi))
        for silo, phi in phis.items()
    }


def derivatives(part: Part, z: Rows, batch: Batch) -> Tensor:
    """dl/dz of every row, for every silo's view of it: [b, N, d]."""
    assert batch.y is not None
    return grad(total_loss)(z.value, part, batch.y)


def total_loss(z: Tensor, part: Part, y: Tensor) -> Tensor:
    return torch.stack([part.loss.rows(view, y).sum() for view in z.unbind(1)]).sum()


def by_silo(silos: tuple[str, ...], z: Rows, dz: Rows) -> dict[str, Rows]:
    """Each silo's own derivatives."""
    mask = z.mask & dz.mask
    return {silo: Rows(dz.value[:, j], mask) for j, silo in enumerate(silos)}
