"""Local work that several algorithms do: pure functions of what a party holds.

A loss is taken row by row, and rows that do not count are replaced by zero before they are summed.
A block may mix the rows of a client in training (BatchNorm); rows that do not count never enter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ...core import tree
from ...core.gradients import by_row, grad, plain_steps, whole
from ...core.placed import Batch, Rows
from ...core.rng import Streams
from ...fabric.local_work import by_rows, by_rows_unless_mixed
from ...models import dropout
from ...models.block import Params
from ...models.task import Part, Theta
from .optimizers import Memory, Optimizer, Trained

T = TypeVar("T", Rows, Batch)
D = TypeVar("D")
Loss = tuple[Tensor, Params]  # and the running statistics of the block after it
PartLoss = Callable[[Theta, Part, Rows, Batch], Loss]


def initial(part: Part, streams: Streams) -> Theta:
    return part.initial(streams)


@by_rows
def embed(part: Part, theta: Theta, batch: Batch) -> Tensor:
    """The client's embeddings of its rows, to predict."""
    return part.embed(theta, batch.x, batch.mask.ndim, batch.noise)


@by_rows_unless_mixed
def embed_in_training(part: Part, theta: Theta, batch: Batch, step: int = 0) -> Tensor:
    """Phi_{k,j}: the client's embeddings of its rows, to train (from local step `step` on). All of
    them count: who is absent in other silos is not known yet."""
    keys = None if batch.keys is None else dropout.of_steps(dropout.of_step(batch.keys, step))
    return part.embed_in_training(theta, batch.x, batch.mask, batch.noise, keys)[0]


def everywhere(phis: dict[str, Rows]) -> Tensor:
    """Which rows every silo has."""
    masks = {id(phi.mask): phi.mask for phi in phis.values()}  # often one
    return reduce(torch.logical_and, masks.values())


def sum_of_others(part: Part, phis: dict[str, Rows]) -> Rows:
    """Phi_{-j} (line 19). A row counts where every silo has it; the others stay here."""
    mask = everywhere(phis)
    others = [part.place(phi.value, silo) for silo, phi in phis.items() if silo != part.silo]
    if not others:
        nothing = torch.zeros(len(mask), part.shapes.joint, dtype=part.shapes.dtype)
        return Rows(nothing.to(mask.device), mask)
    total = reduce(torch.add, others)
    if mask.device.type == "cpu" and bool(mask.all()):  # which takes less than to choose
        return Rows(total, mask)
    return Rows(torch.where(mask[:, None], total, 0.0), mask)


def joint_scores(part: Part, theta: Theta, phis: dict[str, Rows]) -> Rows:
    """The joint prediction, at one hub: added up in hub order, so that all hubs get the same."""
    placed = [part.place(phi.value, silo) for silo, phi in phis.items()]
    return Rows(part.scores(theta, reduce(torch.add, placed)), everywhere(phis))


def mean_over(mask: Tensor, per_row: Tensor) -> Tensor:
    """Mean over the rows that count; 0 where none does (Eqn. 4 would be 0 / 0). With shares of rows
    in a mean of clients, that mean."""
    if mask.is_floating_point():
        return (torch.where(mask > 0, per_row, 0.0) * mask).sum()
    return torch.where(mask, per_row, 0.0).sum() / mask.sum().clamp(min=1)


def descend(theta: D, gradient: D, mask: Tensor, lr: Tensor, l2: float) -> D:
    """One step down the gradient; a client without a row that counts takes none."""
    moves = mask.any()
    if l2:
        decay = l2 * mask.sum() if mask.is_floating_point() else l2
        gradient = tree.map_tensors(lambda g, a: g + decay * a, gradient, theta)

    def step(a: Tensor, g: Tensor) -> Tensor:
        return torch.where(moves, torch.addcmul(a, g, lr, value=-1), a)

    return tree.map_tensors(step, theta, gradient)


def local_loss(theta: Theta, part: Part, rest: Rows, batch: Batch) -> Loss:
    """The client's loss with its own embedding fresh and the others' as they came (Eqn. 4)."""
    phi, statistics = part.embed_in_training(theta, batch.x, rest.mask, batch.noise, batch.keys)
    joint = part.place(phi) + rest.value
    assert batch.y is not None
    return mean_over(rest.mask, part.loss.rows(part.scores(theta, joint), batch.y)), statistics


def with_l2(gradient: D, theta: D, l2: float) -> D:
    """The gradient, plus that of l2 |theta|^2 / 2."""
    return tree.map_tensors(lambda g, a: g + l2 * a, gradient, theta) if l2 else gradient


class Descent(NamedTuple):
    """How local steps go where they are not plain. `memory`: what the client has kept of it; None:
    it begins anew."""

    optimizer: Optimizer
    memory: Memory | None = None

    def begin(self, theta: Theta) -> Memory:
        return self.optimizer.init(theta) if self.memory is None else self.memory

    def end(self, theta: Theta, memory: Memory) -> Theta | Trained:
        """With the memory only where the client keeps it."""
        return theta if self.memory is None else Trained(theta, memory)


def advance(
    optimizer: Optimizer,
    theta: Theta,
    gradient: Theta,
    memory: Memory,
    mask: Tensor,
    lr: Tensor,
    l2: float,
) -> tuple[Theta, Memory]:
    """One step of an optimiser; a client without a row that counts takes none."""
    return optimizer.step(theta, with_l2(gradient, theta, l2), memory, lr, mask.any())


class Shield(NamedTuple):
    """Rows' gradients are clipped to norm `clip`, and their sum gets noise: `clip` x `scale` x a
    line of `normals` for each step."""

    clip: float
    scale: float
    normals: Tensor


@plain_steps(descend)
def sgd(
    loss: PartLoss,
    part: Part,
    theta: Theta,
    given: Rows,
    batch: Batch,
    lr: Tensor,
    l2: float,
    *,
    prox: float = 0.0,
    shield: Shield | None = None,
    by: Descent | None = None,
) -> Any:
    """Eqn. 5, one step for each entry of lr, on the same rows or on those of that step; `prox` is
    the weight of |theta - where it started|^2 / 2. Returns the new Theta, or, where the client
    keeps its optimiser's memory, both (Trained)."""
    if by is not None:
        return optimized(loss, part, theta, given, batch, lr, l2, prox, shield, by)
    weights, statistics = part.apart(theta)
    start = weights if prox else None
    for q, eta in enumerate(lr):
        given_q, batch_q = of_step(given, q), with_keys(of_step(batch, q), q)
        if shield is None:
            now = weights, statistics
            weights, statistics = step(loss, part, now, given_q, batch_q, eta, l2, prox, start)
        else:  # rows by themselves, so without statistics
            gradient = private_gradient(loss, part, weights, given_q, batch_q, shield, q)
            gradient = with_prox(gradient, weights, prox, start)
            weights = descend(weights, gradient, given_q.mask, eta, l2)
    return part.joined(weights, statistics)


def optimized(
    loss: PartLoss,
    part: Part,
    theta: Theta,
    given: Rows,
    batch: Batch,
    lr: Tensor,
    l2: float,
    prox: float,
    shield: Shield | None,
    by: Descent,
) -> Theta | Trained:
    """`sgd` whose steps are an optimiser's."""
    weights, statistics = part.apart(theta)
    start = weights if prox else None
    memory = by.begin(weights)
    for q, eta in enumerate(lr):
        given_q, batch_q = of_step(given, q), with_keys(of_step(batch, q), q)
        if shield is None:
            now = weights, statistics
            (weights, statistics), memory = optimizer_step(
                loss, part, now, given_q, batch_q, eta, l2, prox, start, by.optimizer, memory
            )
        else:  # rows by themselves, so without statistics
            gradient = private_gradient(loss, part, weights, given_q, batch_q, shield, q)
            gradient = with_prox(gradient, weights, prox, start)
            mask = given_q.mask
            weights, memory = advance(by.optimizer, weights, gradient, memory, mask, eta, l2)
    return by.end(part.joined(weights, statistics), memory)


@whole
def optimizer_step(
    loss: PartLoss,
    part: Part,
    now: tuple[Theta, Params],
    given: Rows,
    batch: Batch,
    lr: Tensor,
    l2: float,
    prox: float,
    start: Theta | None,
    optimizer: Optimizer,
    memory: Memory,
) -> tuple[tuple[Theta, Params], Memory]:
    """One step of `optimized`."""
    weights, _ = now
    gradient, statistics = loss_gradient(loss, part, now, given, batch)
    gradient = with_prox(gradient, weights, prox, start)
    weights, memory = advance(optimizer, weights, gradient, memory, given.mask, lr, l2)
    return (weights, statistics), memory


@whole
def step(
    loss: PartLoss,
    part: Part,
    now: tuple[Theta, Params],
    given: Rows,
    batch: Batch,
    lr: Tensor,
    l2: float,
    prox: float,
    start: Theta | None,
) -> tuple[Theta, Params]:
    """One step of `sgd`. `now`: weights, and running statistics, which are not descended."""
    weights, _ = now
    gradient, statistics = loss_gradient(loss, part, now, given, batch)
    gradient = with_prox(gradient, weights, prox, start)
    return descend(weights, gradient, given.mask, lr, l2), statistics


def loss_gradient(
    loss: PartLoss, part: Part, now: tuple[Theta, Params], given: Rows, batch: Batch
) -> tuple[Theta, Params]:
    """The gradient by the weights, and the running statistics after it."""
    gradient, statistics = grad(loss, has_aux=True)(part.joined(*now), part, given, batch)
    return part.apart(gradient)[0], statistics


def with_prox(gradient: Theta, theta: Theta, prox: float, start: Theta | None) -> Theta:
    """The gradient, plus that of the proximal term where there is one."""
    if start is None:
        return gradient
    return tree.map_tensors(lambda g, a, b: g + prox * (a - b), gradient, theta, start)


def private_gradient(
    loss: PartLoss, part: Part, theta: Theta, given: Rows, batch: Batch, shield: Shield, q: int
) -> Theta:
    """DP-SGD's gradient: rows clipped one by one, added up, noise, divided by their number."""

    def of_row(row: Rows, batch_row: Batch) -> Theta:
        row, batch_row = (tree.map_tensors(lambda a: a[None], x) for x in (row, batch_row))
        return grad(loss, has_aux=True)(theta, part, row, batch_row)[0]

    row_gradients = by_row(of_row, given, batch, loop=part.loop_only)
    squares = [a.flatten(1).square().sum(1) for a in tree.tensors(row_gradients)]
    norms = torch.stack(squares).sum(0).sqrt()
    keep = torch.where(given.mask, shield.clip / norms.clamp(min=shield.clip), 0.0)
    sizes = [a.numel() for a in tree.tensors(theta)]
    noise = iter(shield.normals[q].split(sizes))
    count, deviation = given.mask.sum().clamp(min=1), shield.clip * shield.scale

    def noisy_mean(g: Tensor, a: Tensor) -> Tensor:
        return (torch.tensordot(keep, g, 1) + deviation * next(noise).reshape(a.shape)) / count

    return tree.map_tensors(noisy_mean, row_gradients, theta)


def local_sgd(
    part: Part,
    theta: Theta,
    rest: Rows,
    batch: Batch,
    lr: Tensor,
    l2: float,
    prox: float = 0.0,
    by: Descent | None = None,
) -> Any:
    """Lines 25-29: own embedding fresh, the others' as they came."""
    return sgd(local_loss, part, theta, rest, batch, lr, l2, prox=prox, by=by)


def head_sgd(
    part: Part, theta: Theta, rest: Rows, batch: Batch, lr: Tensor, l2: float, prox: float = 0.0
) -> Theta:
    """The same for a block that is not trained: the head alone moves, and sees of the client's own
    rows nothing but their embeddings, which are computed once."""
    joint = Rows(part.place(embed_in_training(part, theta, batch)) + rest.value, rest.mask)
    new = sgd(head_loss, part, Theta({}, theta.head), joint, batch, lr, l2, prox=prox)
    return theta._replace(head=new.head)


def head_loss(theta: Theta, part: Part, joint: Rows, batch: Batch) -> Loss:
    """The loss of rows where embeddings meet."""
    assert batch.y is not None
    return mean_over(joint.mask, part.loss.rows(part.scores(theta, joint.value), batch.y)), {}


def frozen_gradient_sgd(
    part: Part,
    theta: Theta,
    gradient: Rows,
    batch: Batch,
    lr: Tensor,
    l2: float,
    by: Descent | None = None,
) -> Any:
    """Steps with the derivative of the loss by the embeddings given, and frozen."""
    return sgd(pulled, part, theta, gradient, batch, lr, l2, by=by)


def of_step(rows: T, q: int) -> T:
    """The rows of local step q: all of them, or, of fresh minibatches, those of that step."""
    return rows if rows.mask.ndim == 1 else tree.map_tensors(lambda a: a[q], rows)


def with_keys(batch: Batch, step: int) -> Batch:
    """With the keys of a local step."""
    return batch if batch.keys is None else batch._replace(keys=dropout.of_step(batch.keys, step))


def pulled(theta: Theta, part: Part, gradient: Rows, batch: Batch) -> Loss:
    """A function of theta with the gradient of the loss: the derivatives pulled back through h."""
    phi, statistics = part.embed_in_training(theta, batch.x, gradient.mask, batch.noise, batch.keys)
    return mean_over(gradient.mask, (phi * gradient.value).sum(-1)), statistics


def made_up_rows(part: Part) -> Batch:
    """A batch of made-up rows, to warm up on."""
    x, y = part.shapes.made_up(part.silo, 2)
    mask = torch.ones(2, dtype=torch.bool, device=part.device)
    return Batch(x.to(part.device), y.to(part.device), mask)


@by_rows
def nothing_from_others(part: Part, batch: Batch) -> Rows:
    """The rest, for a silo that trains alone."""
    zeros = torch.zeros(part.shapes.joint, dtype=part.shapes.dtype, device=batch.mask.device)
    return Rows(zeros.expand(*batch.mask.shape, -1), batch.mask)
