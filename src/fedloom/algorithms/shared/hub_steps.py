"""What a hub does with its clients' mean: a step from its own weights towards it.

The default is the papers': the mean itself. Otherwise `theta - mean` is taken as a gradient, and
the hub's optimiser steps along it. Nothing more is sent, and clients hold nothing.

Where silos share a head, every hub steps with its replica, and then they average their replicas: so
replicas stay equal to the bit, while each hub remembers the moves of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import torch

from ...core import tree
from ...core.checked import Checked
from ...core.settings import WORDS, Positive, above
from ...models.task import Theta
from .optimizers import (
    SGD,
    Adam,
    Beta,
    Memory,
    Optimizer,
    Trained,
    trained_part,
    with_trained_part,
)

ROUNDING = 8  # units in the last place that a mean of equal weights may differ by


class HubStep(Checked, ABC):
    """An optimiser at a hub."""

    @property
    @abstractmethod
    def optimizer(self) -> Optimizer: ...

    @abstractmethod
    def rate(self, silos: int) -> float:
        """Its step size, where so many silos step at once."""

    @property
    def is_mean(self) -> bool:
        """Whether it takes the mean as it is."""
        return False

    @property
    def is_auto(self) -> bool:
        """Whether the rate depends on the number of silos."""
        return False


WORDS[HubStep] = "a hub's step"


@dataclass(frozen=True)
class Relaxed(HubStep):
    """theta + relaxation (mean - theta), with momentum where it is set."""

    relaxation: Annotated[
        float | Literal["auto"],
        above(0),
        "how far hubs go towards the mean; auto: 1 / N where N silos step at once",
    ] = 1.0
    momentum: Annotated[Beta, "how much of a hub's velocity stays in every round"] = 0.0

    @cached_property
    def optimizer(self) -> Optimizer:
        return SGD(momentum=self.momentum)

    def rate(self, silos: int) -> float:
        return 1.0 / silos if isinstance(self.relaxation, str) else self.relaxation

    @property
    def is_mean(self) -> bool:
        return self.relaxation == 1 and not self.momentum

    @property
    def is_auto(self) -> bool:
        return self.relaxation == "auto"


@dataclass(frozen=True)
class HubAdam(HubStep):
    """Adam along theta - mean."""

    lr: Annotated[Positive, "the hubs' step size; the clients' lr stays theirs"] = 0.03
    betas: Annotated[tuple[Beta, Beta], "how much of the two moments stays in every round"] = (
        0.9,
        0.99,
    )
    eps: Annotated[Positive, "added to the root of the second moment"] = 1e-8

    @cached_property
    def optimizer(self) -> Optimizer:
        return Adam(betas=self.betas, eps=self.eps)

    def rate(self, silos: int) -> float:
        return self.lr


HUB_STEPS: dict[str, type[HubStep]] = {"relaxed": Relaxed, "adam": HubAdam}
HubStepName = Literal["mean", "adam"]


def hub_step_of(setting: HubStepName | HubStep) -> HubStep | None:
    """None: the mean as it is."""
    if setting == "mean":
        return None
    step = HUB_STEPS[setting]() if isinstance(setting, str) else setting
    return None if step.is_mean else step


def stepped(step: HubStep, old: Theta, mean: Theta, memory: Memory, silos: int) -> Trained:
    """A hub's step. What optimisers do not move is the mean. Where nobody's weights moved, nor does
    the memory: a difference of last digits is none."""
    before = trained_part(old)
    away = tree.map_tensors(torch.sub, before, trained_part(mean))
    moves = torch.stack(
        [
            (d.abs() > ROUNDING * torch.finfo(a.dtype).eps * a.abs()).any()
            for d, a in zip(tree.tensors(away), tree.tensors(before), strict=True)
        ]
    ).any()
    rate = next(iter(tree.tensors(before))).new_tensor(step.rate(silos))
    new, remembered = step.optimizer.step(before, away, memory, rate, moves)
    return Trained(with_trained_part(mean, new), remembered)
