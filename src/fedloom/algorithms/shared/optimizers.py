"""Local optimisers: what a client does with a gradient. The same as torch.optim's, as pure
functions that run under vmap.

An optimiser is an object that local work is given. `init(theta)` makes what it remembers;
`step(theta, gradient, memory, lr, moves)` gives the next of both. Where `moves` is false (no row of
the client counts) neither changes.

Order of a step, as with torch: the gradient is clipped, then weights decay, then the rule. `l2` and
a proximal term belong to the loss, so their gradients are in before.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ...core import tree
from ...core.checked import Checked
from ...core.errors import SettingError
from ...core.settings import WORDS, Limit, NotNegative, Positive, above
from ...models.task import Theta
from ...models.training_layers import STATISTICS

Memory = Any  # of an optimiser: a tree of tensors, without any where it remembers nothing
Beta = Annotated[float, Limit("at least 0 and below 1", lambda value: 0 <= value < 1)]


class Trained(NamedTuple):
    """What a client has after its local steps, or a hub after its own: of a block (Theta), or of
    what else is trained."""

    theta: Any
    memory: Memory


def theta_of(trained: Trained) -> Any:
    return trained.theta


def memory_of(trained: Trained) -> Memory:
    return trained.memory


def is_trained(name: str) -> bool:
    """Whether optimisers move this entry of a block."""
    return name.rpartition(".")[2] not in STATISTICS


def trained_part(theta: Theta) -> Theta:
    """The entries that optimisers move."""
    if all(map(is_trained, theta.block)):
        return theta
    return theta._replace(block={name: a for name, a in theta.block.items() if is_trained(name)})


def with_trained_part(theta: Theta, moved: Theta) -> Theta:
    """All entries: those that were moved, and the others as they are."""
    if len(moved.block) == len(theta.block):
        return moved
    return moved._replace(block={name: moved.block.get(name, a) for name, a in theta.block.items()})


@dataclass(frozen=True, kw_only=True)
class Optimizer(Checked, ABC):
    """Settings of all of them."""

    weight_decay: Annotated[NotNegative, "weights decay by lr times this in every step"] = 0.0
    clip_norm: Annotated[
        float | None, above(0), "the largest norm of a client's gradient; none: any"
    ] = None
    state: Annotated[
        Literal["fresh", "kept"], "what it remembers: anew in every round, or kept by the client"
    ] = "fresh"

    @property
    def is_plain(self) -> bool:
        """Whether it is SGD and nothing else."""
        return False

    @property
    def keeps(self) -> bool:
        return self.state == "kept"

    @abstractmethod
    def init(self, theta: Any) -> Memory:
        """What it remembers before its first step."""

    @abstractmethod
    def rule(self, theta: Any, gradient: Any, memory: Any, lr: Tensor) -> tuple[Any, Memory]:
        """A step with this gradient, clipped already."""

    def step(
        self, theta: Any, gradient: Any, memory: Memory, lr: Tensor, moves: Tensor
    ) -> tuple[Any, Memory]:
        """The next weights and memory; as they were, unless `moves`."""
        if self.clip_norm is not None:
            gradient = clipped(gradient, self.clip_norm)
        after = self.rule(theta, gradient, memory, lr)
        new, remembered = tree.map_tensors(
            lambda a, b: torch.where(moves, a, b), after, (theta, memory)
        )
        return new, remembered


WORDS[Optimizer] = "an optimiser"


class Velocity(NamedTuple):
    velocity: Any
    steps: Tensor  # so far


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum where it is set."""

    momentum: Annotated[Beta, "how much of the velocity stays in every step"] = 0.0
    dampening: Annotated[Beta, "how much of the gradient does not enter the velocity"] = 0.0
    nesterov: Annotated[bool, "momentum that looks ahead"] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.momentum:
            for name in ("dampening", "nesterov"):
                if getattr(self, name):
                    raise SettingError(f"SGD: {name} is for momentum: give momentum, say 0.9")
            if self.keeps:
                raise SettingError(
                    'SGD: without momentum nothing is kept: give momentum, or state = "fresh"'
                )
        if self.nesterov and self.dampening:
            raise SettingError("SGD: nesterov goes without dampening: leave one of them out")

    @property
    def is_plain(self) -> bool:
        return not self.momentum and not self.weight_decay and self.clip_norm is None

    def init(self, theta: Any) -> Memory:
        return Velocity(zeros(theta), zero_count(theta)) if self.momentum else ()

    def rule(self, theta: Any, gradient: Any, memory: Any, lr: Tensor) -> tuple[Any, Memory]:
        if self.weight_decay:
            gradient = decayed(gradient, theta, self.weight_decay)
        if not self.momentum:
            return descended(theta, gradient, lr), memory
        velocity = self._velocity(gradient, memory)
        direction = velocity
        if self.nesterov:
            direction = tree.map_tensors(lambda g, v: g + self.momentum * v, gradient, velocity)
        return descended(theta, direction, lr), Velocity(velocity, memory.steps + 1)

    def _velocity(self, gradient: Any, memory: Velocity) -> Any:
        """The first one is the gradient, whatever the dampening."""
        first = memory.steps == 0

        def next_one(g: Tensor, v: Tensor) -> Tensor:
            if not self.dampening:
                return self.momentum * v + g
            return torch.where(first, g, self.momentum * v + (1 - self.dampening) * g)

        return tree.map_tensors(next_one, gradient, memory.velocity)


class Moments(NamedTuple):
    first: Any  # of the gradients
    second: Any
    steps: Tensor  # so far


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam: every weight has a step size of its own, from its gradients so far."""

    betas: Annotated[tuple[Beta, Beta], "how much of the two moments stays in every step"] = (
        0.9,
        0.999,
    )
    eps: Annotated[Positive, "added to the root of the second moment"] = 1e-8

    def init(self, theta: Any) -> Memory:
        return Moments(zeros(theta), zeros(theta), zero_count(theta))

    def rule(self, theta: Any, gradient: Any, memory: Any, lr: Tensor) -> tuple[Any, Memory]:
        theta, gradient = self.with_decay(theta, gradient, lr)
        (beta, beta2), count = self.betas, memory.steps + 1
        first = tree.map_tensors(lambda m, g: m.lerp(g, 1 - beta), memory.first, gradient)
        second = tree.map_tensors(
            lambda v, g: beta2 * v + (1 - beta2) * g * g, memory.second, gradient
        )
        rate, root = lr / less_than_one(beta, count), less_than_one(beta2, count).sqrt()

        def moved(a: Tensor, m: Tensor, v: Tensor) -> Tensor:
            return a - rate * m / (v.sqrt() / root + self.eps)

        return tree.map_tensors(moved, theta, first, second), Moments(first, second, count)

    def with_decay(self, theta: Any, gradient: Any, lr: Tensor) -> tuple[Any, Any]:
        """Weights and gradient, with the decay in the gradient."""
        if self.weight_decay:
            gradient = decayed(gradient, theta, self.weight_decay)
        return theta, gradient


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam whose weights decay by themselves, not through the gradient."""

    weight_decay: Annotated[NotNegative, "weights decay by lr times this in every step"] = 0.01

    def with_decay(self, theta: Any, gradient: Any, lr: Tensor) -> tuple[Any, Any]:
        keep = 1 - lr * self.weight_decay
        return tree.map_tensors(lambda a: a * keep, theta), gradient


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
OptimizerName = Literal["sgd", "adam", "adamw"]


def optimizer_of(setting: OptimizerName | Optimizer) -> Optimizer | None:
    """None: plain SGD, which needs no optimiser."""
    optimizer = OPTIMIZERS[setting]() if isinstance(setting, str) else setting
    return None if optimizer.is_plain else optimizer


def clipped(gradient: Any, largest: float) -> Any:
    """As torch.nn.utils.clip_grad_norm_: of all tensors together."""
    squares = [a.square().sum() for a in tree.tensors(gradient)]
    factor = (largest / (torch.stack(squares).sum().sqrt() + 1e-6)).clamp(max=1.0)
    return tree.scale(gradient, factor)


def decayed(gradient: Any, theta: Any, decay: float) -> Any:
    return tree.map_tensors(lambda g, a: g + decay * a, gradient, theta)


def descended(theta: Any, direction: Any, lr: Tensor) -> Any:
    return tree.map_tensors(lambda a, d: a - lr * d, theta, direction)


def zeros(theta: Any) -> Any:
    return tree.map_tensors(torch.zeros_like, theta)


def zero_count(theta: Any) -> Tensor:
    """No steps yet, where the weights are: a whole number in their precision, up to 2^24."""
    return next(iter(tree.tensors(theta))).new_zeros(())


def less_than_one(beta: float, count: Tensor) -> Tensor:
    """1 - beta^count, without losing digits in single precision."""
    return -torch.expm1(count * math.log(beta)) if beta else torch.ones_like(count)
