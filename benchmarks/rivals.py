"""What a round is compared with, in plain PyTorch.

The floor: one forward and Q forward-backward-update steps of the same rows through one shared model
per silo; no federated method can be faster. The loop: the same through a copy of the module for
every client. The hand-written loop: a round of ridge regression as batched matrix products.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom import Run
from fedloom.models.task import Part

from .cases import Case

Precise = Callable[[], contextlib.AbstractContextManager[object]]


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Squared": lambda z, y: 0.5 * F.mse_loss(z, y.reshape(z.shape)),
    "BinaryCrossEntropy": lambda z, y: F.binary_cross_entropy_with_logits(z.squeeze(-1), y),
    "CrossEntropy": F.cross_entropy,
}


class Silo(nn.Module):
    """One silo's block (and its replica of the head), and its loss given the other silos' part."""

    def __init__(self, part: Part):
        super().__init__()
        self.part, self.loss = part, LOSSES[type(part.loss).__name__]
        self.block = copy.deepcopy(part.block.module)
        self.top = None if part.head is None else copy.deepcopy(part.head.module)

    def forward(self, x: Tensor, y: Tensor, rest: Tensor) -> Tensor:
        joint = self.part.place(self.block(x)) + rest
        scores = joint if self.top is None else self.top(joint)
        return self.loss(scores, y)


class Rivals:
    """The rows of one minibatch of a case, as a run draws them."""

    def __init__(self, case: Case, run: Run, precise: Precise = contextlib.nullcontext):
        self.case, self.precise = case, precise
        draw = torch.Generator().manual_seed(1)
        self.ids = torch.randperm(run.placement.size, generator=draw)[: case.batch]
        device = torch.device(case.device)
        y = run.task.loss.labels(run.placement.labels(), torch.float32)[self.ids].to(device)
        self.silos, self.rows, self.owner = [], [], []
        for name, part in run.fed.part.values.items():
            x = run.placement.x[name][self.ids].to(device)
            rest = torch.randn(case.batch, run.shapes.joint, device=device)
            self.silos.append(Silo(part).to(device))
            self.rows.append((x, y, rest))
            self.owner.append(run.placement.owner[name][self.ids])
        self._copies: list[list[nn.Module]] = []
        self._own: list[list[tuple[Tensor, ...]]] = []

    def floor(self, compiled: bool = False) -> Callable[[], None]:
        """A round of the floor. torch.compile fails here if it cannot work."""
        steps = [torch.compile(silo) if compiled else silo for silo in self.silos]

        def round() -> None:
            for silo, step, rows in zip(self.silos, steps, self.rows, strict=True):
                with torch.no_grad(), self.precise():
                    silo.block(rows[0])
                self._train(silo, step, rows)

        return round

    def _train(self, silo: nn.Module, step: nn.Module, rows: tuple[Tensor, ...]) -> None:
        weights = list(silo.parameters())
        for _ in range(self.case.steps):
            with self.precise():
                loss = step(*rows)
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                torch._foreach_add_(weights, gradients, alpha=-self.case.lr)

    def loop(self, silos: int | None = None) -> Callable[[], None]:
        """A round as a loop over copies of the module (of the first `silos` silos)."""
        for silo, rows, owner in zip(self.silos[:silos], self.rows, self.owner, strict=False):
            self._copies.append([copy.deepcopy(silo) for _ in range(self.case.clients)])
            masks = [owner.to(rows[0].device) == k for k in range(self.case.clients)]
            self._own.append([tuple(a[mask] for a in rows) for mask in masks])

        def round() -> None:
            for silo, copies, own in zip(self.silos, self._copies, self._own, strict=False):
                for client, rows in zip(copies, own, strict=True):
                    if not len(rows[0]):
                        continue
                    with torch.no_grad(), self.precise():
                        for a, b in zip(client.parameters(), silo.parameters(), strict=True):
                            a.copy_(b)
                        client.block(rows[0])
                    self._train(client, client, rows)
                with torch.no_grad():
                    for all_ in zip(*(client.parameters() for client in copies), strict=True):
                        torch.stack(all_).mean(0)

        return round


def by_hand(case: Case, run: Run) -> Callable[[], None]:
    """Rounds of ridge regression over [silos, clients, rows, columns]: rows drawn and padded anew
    each round, means over clients, and nothing else."""
    x = torch.stack(list(run.placement.x.values()))
    y = run.placement.labels().float()
    owner = torch.stack(list(run.placement.owner.values()))
    theta = torch.zeros(case.silos, case.shape[0], 1)
    bias = torch.zeros(case.silos, 1, 1)
    clients, silos = torch.arange(case.clients), torch.arange(case.silos)[:, None, None]

    def round() -> None:
        nonlocal theta, bias
        ids = torch.randperm(len(y))[: case.batch]
        owns = owner[:, ids][:, None] == clients[:, None]  # [silos, clients, rows]
        width = int(owns.sum(-1).max())
        order = owns.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :width]
        mask, slots = owns.gather(-1, order)[..., None], ids[order]
        own_x, target = x[silos, slots], y[slots][..., None]  # [silos, clients, width, columns]
        phi = x[:, ids] @ theta + bias
        rest = (phi.sum(0, keepdim=True) - phi)[silos, order]
        count = mask.sum(2, keepdim=True).clamp(min=1)
        theta_k = theta[:, None].repeat(1, case.clients, 1, 1)
        bias_k = bias[:, None].repeat(1, case.clients, 1, 1)
        for _ in range(case.steps):
            error = torch.where(mask, own_x @ theta_k + bias_k + rest - target, 0.0) / count
            theta_k = theta_k - case.lr * (own_x.transpose(-1, -2) @ error)
            bias_k = bias_k - case.lr * error.sum(2, keepdim=True)
        theta, bias = theta_k.mean(1), bias_k.mean(1)

    return round


def rounds_of(run: Run) -> Callable[[], None]:
    """A call that plays one more round of a run."""
    run.fit(2)
    began = time.process_time()
    run.fit(3)
    if time.process_time() - began < 0.5:  # fast rounds are traced soon: measure them after that
        run.fit(20)
    more: Iterator[int] = iter(range(run.round + 1, 10**9))

    def round() -> None:
        run.fit(next(more))

    return round
