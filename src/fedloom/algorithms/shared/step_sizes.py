"""Step sizes: eta as a function of the local iteration t (a round has Q of them)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ...core.checked import Checked
from ...core.settings import WORDS, Count, NotNegative, Positive


@runtime_checkable
class StepSize(Protocol):
    """eta(t)."""

    def __call__(self, t: int) -> float: ...


WORDS[StepSize] = "a step-size rule"


@dataclass(frozen=True)
class Constant(Checked):
    """The same step size throughout; a plain number means this."""

    lr: Positive

    def __call__(self, t: int) -> float:
        return self.lr


@dataclass(frozen=True)
class StepDecay(Checked):
    """lr, multiplied by `factor` after every `every` iterations."""

    lr: Positive
    factor: Positive
    every: Count

    def __call__(self, t: int) -> float:
        return self.lr * self.factor ** (t // self.every)


@dataclass(frozen=True)
class InverseSqrt(Checked):
    """lr / sqrt(1 + t / scale): the decay of the O(1 / sqrt(R)) rate without knowing R."""

    lr: Positive
    scale: Positive = 1.0

    def __call__(self, t: int) -> float:
        return self.lr / math.sqrt(1 + t / self.scale)


@dataclass(frozen=True)
class Cosine(Checked):
    """From lr to `floor` along half a cosine over `steps` iterations, `floor` afterwards."""

    lr: Positive
    steps: Count
    floor: NotNegative = 0.0

    def __call__(self, t: int) -> float:
        done = min(t / self.steps, 1.0)
        return self.floor + (self.lr - self.floor) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class DelayBound(Checked):
    """min(1 / (4 (1 + delay) smoothness), scale / sqrt(steps)), for any smooth loss: VAFL's Theorem
    1 (delay is D) and Theorem 3 (delay is min sqrt(c_m)); smoothness is L, steps the number K of
    the master's turns, scale c_eta."""

    smoothness: Positive
    delay: NotNegative
    steps: Count
    scale: Positive = 1.0

    def __call__(self, t: int) -> float:
        fastest = 1 / (4 * (1 + self.delay) * self.smoothness)
        return min(fastest, self.scale / math.sqrt(self.steps))


@dataclass(frozen=True)
class InverseTime(Checked):
    """scale / (convexity (t + offset)), for strongly convex losses: VAFL's Theorem 2 (scale is
    4 / min sqrt(q_m), q_m the chance that silo m is the next visitor) and Theorem 4 (scale is 2);
    convexity is mu, or nu there, offset K_0."""

    convexity: Positive
    offset: Positive
    scale: Positive = 2.0

    def __call__(self, t: int) -> float:
        return self.scale / (self.convexity * (t + self.offset))


RULES: dict[str, type[Any]] = {
    "constant": Constant,
    "step-decay": StepDecay,
    "inverse-sqrt": InverseSqrt,
    "cosine": Cosine,
    "delay-bound": DelayBound,
    "inverse-time": InverseTime,
}


def step_size(lr: float | StepSize) -> StepSize:
    """A number as a constant step size."""
    return lr if callable(lr) else Constant(lr)
