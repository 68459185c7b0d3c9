"""The best the same network does on pooled rows: Adam, to convergence.

A fifth of the training rows is set aside for validation. Training ends when the loss on these has
not fallen for PATIENCE epochs, and the weights of the best epoch are kept. That is done with two
step sizes, from the same initial weights; the better on the validation rows stays.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...core.arithmetic import Precision, dtype_of
from ...core.errors import DataError
from ...core.rng import Streams
from ...data.placement import Placement
from ...models.joint import JointModel
from ...models.losses import Squared
from ...models.task import Shapes, Task
from .fitted import Fitted

SHARE, PATIENCE, EPOCHS = 0.2, 20, 500
RATES = (0.01, 0.001)
BATCHES = (32, 512)  # at least and at most; between, 1/32 of the rows
AT_ONCE = 4096  # rows predicted at a time

Tell = Callable[[int], None]


def most_epochs() -> int:
    """Of all its trainings."""
    return len(RATES) * EPOCHS


class Scaled(nn.Module):
    """The joint model in one module. Where its scores are in the units of the labels, the labels'
    mean and spread are outside of the network, so that any unit is as easy to learn."""

    def __init__(self, task: Task, shapes: Shapes, seed: int, labels: Tensor, device: torch.device):
        super().__init__()
        parts = {silo: task.part(silo, shapes, device) for silo in shapes.width}
        streams = Streams(seed)
        self.joint = JointModel(
            parts, {j: part.initial_for_all(streams) for j, part in parts.items()}
        )
        centre, spread = torch.zeros(()), torch.ones(())
        if isinstance(task.loss, Squared):
            flat = labels.reshape(len(labels), -1).double()
            centre, spread = flat.mean(0), flat.std(0, correction=0)
            spread = torch.where(spread > 0, spread, 1.0)
        self.centre, self.spread = (a.to(device, shapes.dtype) for a in (centre, spread))

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.centre + self.spread * self.joint(x)


@dataclass
class Trained:
    """One training: its best epoch, and how it went."""

    weights: dict[str, Any]
    loss: float = math.inf
    epoch: int = 0
    epochs: int = 0
    steps: int = 0


def fit(
    task: Task,
    shapes: Shapes,
    train: Placement,
    seed: int,
    precision: Precision,
    device: torch.device,
    tell: Tell,
) -> Fitted:
    """Train it; `tell` is called after every epoch, with their number so far."""
    dtype = dtype_of(precision)
    model = Scaled(task, shapes, seed, train.labels(), device)
    x = {j: _on(a, dtype, device) for j, a in train.x.items()}
    loss = task.loss.to(dtype, device)
    y = loss.labels(train.labels().to(device), dtype)
    fitting, validation = _split(train.size, seed)
    start = copy.deepcopy(model.state_dict())
    done = 0

    def loss_of(rows: Tensor) -> Tensor:
        return loss.rows(model({j: a[rows] for j, a in x.items()}), y[rows]).mean()

    def validated() -> float:
        model.eval()
        with torch.no_grad():
            sums = [float(loss_of(rows)) * len(rows) for rows in validation.split(AT_ONCE)]
        return sum(sums) / len(validation)

    def train_at(rate: float) -> Trained:
        nonlocal done
        model.load_state_dict(start)
        best = Trained(copy.deepcopy(start), validated())
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
        for epoch in range(1, EPOCHS + 1):
            model.train()
            for rows in _minibatches(fitting, seed, rate, epoch):
                optimizer.zero_grad()
                loss_of(rows.to(device)).backward()
                optimizer.step()
                best.steps += 1
            best.epochs, done = epoch, done + 1
            now = validated()
            if now < best.loss:
                best.weights, best.loss = copy.deepcopy(model.state_dict()), now
                best.epoch = epoch
            tell(done)
            if epoch - best.epoch >= PATIENCE or not math.isfinite(now):
                break
        return best

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(Streams(seed).common("best-pooled").seed())  # of dropout
        tries = {rate: train_at(rate) for rate in RATES}
    rate = min(tries, key=lambda rate: tries[rate].loss)
    best = tries[rate]
    model.load_state_dict(best.weights)
    model.eval()

    def scores(rows: Placement) -> Tensor:
        with torch.no_grad():
            pieces = [
                model({j: _on(a[at], dtype, device) for j, a in rows.x.items()}).cpu()
                for at in torch.arange(rows.size).split(AT_ONCE)
            ]
        return torch.cat(pieces)

    notes = {"lr": rate, "best_epoch": best.epoch, "validation_rows": len(validation)}
    if best.epochs == EPOCHS:
        notes["still_improving"] = True
    return Fitted(scores, notes, best.epoch, best.steps)


def _split(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of the rows to train on, and of those to validate on."""
    count = round(SHARE * size)
    if not 0 < count < size:
        raise DataError(f"{size} training rows are too few to set some aside for validation")
    order = torch.from_numpy(Streams(seed).common("best-pooled", "validation").permutation(size))
    return order[count:], order[:count]


def _minibatches(rows: Tensor, seed: int, rate: float, epoch: int) -> Iterator[Tensor]:
    """All rows once, in a new order; a lone row at the end is left for another epoch."""
    least, most = BATCHES
    size = min(most, max(least, len(rows) // 32))
    order = Streams(seed).common("best-pooled", rate, epoch).permutation(len(rows))
    for piece in rows[torch.from_numpy(order)].split(size):
        if len(piece) > 1 or len(rows) == 1:
            yield piece


def _on(x: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return x.to(device, dtype if x.is_floating_point() else x.dtype)
