"""Local steps of a client with fewer rows than columns.

Steps on the same rows X change the weights W of a first layer by sums of these rows: W_q = W +
C_q'X. Its outputs are X W_q' = X W' + (X X') C_q. So the steps need only these products and C_q,
which have a number for each pair of rows instead of each column. The weights are computed after the
last step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....core.gradients import grad
from ....core.placed import Batch, Rows
from ....models.task import Part, Theta
from ...limits import DEFAULT, Limits

Descend = Callable[[Any, Any, Tensor, Tensor, float], Any]


class FewRows:
    """Computes plain local steps of clients with few rows; declines all others with None."""

    def __init__(self, limits: Limits = DEFAULT):
        self._columns_per_row = limits.columns_per_row

    def __call__(
        self,
        descend: Descend,
        loss: Callable[..., tuple[Tensor, Any]],
        part: Part,
        theta: Theta,
        given: Rows,
        batch: Batch,
        lr: Tensor,
        l2: float,
    ) -> Theta | None:
        if not self._are_few(part, theta, given, batch):
            return None
        return steps(descend, loss, part, theta, given, batch, lr, l2)

    def _are_few(self, part: Part, theta: Theta, given: Rows, batch: Batch) -> bool:
        first, x = part.block.first, batch.x
        if first is None or first.weights not in theta.block or part.block.trains_otherwise:
            return False
        # other rows in every step, or row weights
        if batch.mask.ndim > 1 or given.mask.is_floating_point():
            return False
        if torch.is_autocast_enabled(x.device.type) or (x.ndim > 2 and not first.flattens):
            return False
        return self._columns_per_row * x.shape[0] <= theta.block[first.weights].shape[1]


class WeightsAsProduct:
    """A first layer's weights, known only by their product with the rows."""

    def __init__(self, product: Tensor):
        self.product, self.dtype = product, product.dtype

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        assert func is F.linear, func
        _, weight, bias = args
        return weight.product if bias is None else weight.product + bias


def steps(
    descend: Descend,
    loss: Callable[..., tuple[Tensor, Any]],
    part: Part,
    theta: Theta,
    given: Rows,
    batch: Batch,
    lr: Tensor,
    l2: float,
) -> Theta:
    """The result of plain steps, up to rounding."""
    assert part.block.first is not None
    name = part.block.first.weights
    x, start = batch.x.flatten(1), theta.block[name]
    row_products, product = x @ x.T, F.linear(x, start)
    # of the weights: their product with the rows, the coefficient of each row, and of the start
    first = product, torch.zeros_like(product), torch.ones_like(lr[0])
    others = theta._replace(block={k: v for k, v in theta.block.items() if k != name})

    def loss_of(others: Theta, product: Tensor) -> Tensor:
        block: dict[str, Any] = {**others.block, name: WeightsAsProduct(product)}
        return loss(others._replace(block=block), part, given, batch)[0]

    for eta in lr:
        gradient, by_product = grad(loss_of, (0, 1))(others, first[0])
        direction = row_products @ by_product, by_product, torch.zeros_like(eta)
        others = descend(others, gradient, given.mask, eta, l2)
        first = descend(first, direction, given.mask, eta, l2)
    _, rows, start_share = first
    weights = torch.addmm(start, rows.T, x) if not l2 else start_share * start + rows.T @ x
    block = {k: weights if k == name else others.block[k] for k in theta.block}
    return others._replace(block=block)
