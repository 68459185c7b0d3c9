"""Dropout whose masks are named: by the run's seed, silo, round, row, local step and layer.

A mask is computed from a key of its row, in the layer that uses it. So engines, chunks, padding and
resumed runs agree, and nothing is kept but a number for each row. The numbers are a counter put
through splitmix64's finaliser, in whole numbers of 64 bits that wrap around.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import ModelError
from ..core.rng import Streams

DROPOUTS: dict[type[nn.Module], int | None] = {  # and the axes of their input (None: any)
    nn.Dropout: None,  # numbers by themselves; the others: channels
    nn.Dropout1d: 3,
    nn.Dropout2d: 4,
    nn.Dropout3d: 5,
}
BITS = 24  # of a number that is compared with p
NUMBER, STEP, LAYER = 0x1E3779B97F4A7C15, 0x3C6EF372FE94F82B, 0x2545F4914F6CDD1D
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def number_of(streams: Streams, silo: str, round: int) -> int:
    """What a silo's masks of a round are named by. It is common knowledge: masks hide nothing."""
    return streams.common("dropout", silo, round).seed()


def row_keys(number: int | Tensor, rows: Tensor) -> Tensor:
    """A key for each row, by its number among all rows."""
    return _mixed(rows * LAYER + number)


def of_step(keys: Tensor, step: int) -> Tensor:
    """The keys of a local step."""
    return keys + _wrapped(step * STEP)


def of_steps(keys: Tensor) -> Tensor:
    """The keys of the steps that fresh minibatches are for, [Q, b]; of one minibatch, the first."""
    if keys.ndim == 1:
        return keys
    return keys + torch.arange(keys.shape[0], device=keys.device)[:, None] * STEP


def _wrapped(number: int) -> int:
    """A whole number of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def _mixed(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * FIRST
    z = (z ^ _shifted(z, 27)) * SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (z >> by) & ((1 << (64 - by)) - 1)


class Dropout(nn.Module):
    """nn.Dropout, 1d, 2d or 3d. With `keys`, one for each row, it leaves out what their masks say;
    without, nothing."""

    def __init__(self, given: Any, name: str, number: int):
        super().__init__()
        self.name = f"layer {name or '(the module itself)'} ({type(given).__name__})"
        self.p, self._axes, self._number = given.p, DROPOUTS[type(given)], number
        self.by_channel = self._axes is not None
        self.keys: Tensor | None = None
        self.uses = 0  # in this pass: a layer that is used twice has two masks

    def forward(self, x: Tensor) -> Tensor:
        if self.keys is None:
            return x
        if self._axes not in (None, x.ndim):
            raise ModelError(f"{self.name} is for tensors of {self._axes} axes, not of {x.ndim}")
        if self.keys.shape[0] != x.shape[0]:
            raise ModelError(
                f"{self.name} is given {x.shape[0]} rows of a minibatch of {self.keys.shape[0]}: "
                "the first axis of its input must be the rows"
            )
        one_each = x.flatten(2)[:, :, 0] if self.by_channel else x
        kept = self._kept(one_each.flatten(1).shape[1]).reshape(one_each.shape)
        kept = kept.reshape(*kept.shape, *[1] * (x.ndim - kept.ndim))
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return torch.where(kept, x * scale, 0.0)

    def _kept(self, numbers: int) -> Tensor:
        """Whether each of a row's numbers stays, [rows, numbers]."""
        assert self.keys is not None
        start = self.keys + _wrapped((self._number + 4096 * self.uses) * LAYER)
        self.uses += 1
        counter = torch.arange(numbers, device=start.device) * NUMBER
        bits = _shifted(_mixed(start[:, None] + counter), 64 - BITS)
        return bits >= round(self.p * 2**BITS)

    def extra_repr(self) -> str:
        return f"p={self.p}"
