"""Step sizes: eta as a function of the local iteration t (a round has Q of them)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import SettingError


class StepSize(Protocol):
    """eta(t)."""

    def __call__(self, t: int) -> float: ...


class _Positive:
    """All settings of a rule must be positive numbers, except `floor`, which may be 0."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and (value > 0 or (name == "floor" and value == 0))):
                raise SettingError(f"{name} must be a positive number, not {value}")


@dataclass(frozen=True)
class Constant(_Positive):
    """The same step size throughout; a plain number means this."""

    lr: float

    def __call__(self, t: int) -> float:
        return self.lr


@dataclass(frozen=True)
class StepDecay(_Positive):
    """lr, multiplied by `factor` after every `every` iterations."""

    lr: float
    factor: float
    every: int

    def __call__(self, t: int) -> float:
        return self.lr * self.factor ** (t // self.every)


@dataclass(frozen=True)
class InverseSqrt(_Positive):
    """lr / sqrt(1 + t / scale): the decay of the O(1 / sqrt(R)) rate without knowing R."""

    lr: float
    scale: float = 1.0

    def __call__(self, t: int) -> float:
        return self.lr / math.sqrt(1 + t / self.scale)


@dataclass(frozen=True)
class Cosine(_Positive):
    """From lr to `floor` along half a cosine over `steps` iterations, `floor` afterwards."""

    lr: float
    steps: int
    floor: float = 0.0

    def __call__(self, t: int) -> float:
        done = min(t / self.steps, 1.0)
        return self.floor + (self.lr - self.floor) * (1 + math.cos(math.pi * done)) / 2


RULES: dict[str, type[Any]] = {
    "constant": Constant,
    "step-decay": StepDecay,
    "inverse-sqrt": InverseSqrt,
    "cosine": Cosine,
}


def step_size(lr: float | StepSize) -> StepSize:
    """A number as a constant step size."""
    if callable(lr) and not isinstance(lr, type):
        return lr
    if not isinstance(lr, float | int) or isinstance(lr, bool):
        raise SettingError(f"lr must be a number or a function of the iteration, not {lr!r}")
    return Constant(lr)
