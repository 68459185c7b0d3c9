"""What executes local work: an `Executor` gives what a plain call gives, or None for "I cannot".

A run has a chain of them (choose.py). Each piece of work is offered to one after the other; the
last one, `plain`, never refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from ...core.gradients import StepsWay
from ..limits import DEFAULT, Limits
from .described import Mean, Sums

CALLS = 150  # of local work before it is traced

log = logging.getLogger("fedloom")


class Work(NamedTuple):
    """A call for all clients of a chunk at once: of tensors in trees of arguments. `key`: what the
    function is; functions of one key, given arguments of one form, do the same."""

    key: Hashable
    function: Callable[..., Any]
    args: Sequence[Any]

    def plainly(self) -> Any:
        return self.function(*self.args)


@dataclass(frozen=True)
class Options:
    """What executors are made with. `replay`: after how many calls work is traced (0: never)."""

    device: torch.device
    replay: int = CALLS
    limits: Limits = DEFAULT


class Executor:
    """One way to execute local work. It computes what a plain call does, up to the order of sums,
    and never lets work through that it is not sure of."""

    name: ClassVar[str]
    batches_one: ClassVar[bool] = False
    """Whether one client by itself is given to it as a batch of one."""
    steps: StepsWay | None = None
    """A shorter way for plain local steps inside of work (core/gradients.py: `steps_by`)."""

    def __init__(self, options: Options):
        self.options = options

    def begin(self) -> None:
        """A new round begins, and no work is going on."""

    def run(self, work: Work) -> Any | None:
        """What the work gives, or None: I cannot."""
        return None

    def sums(self, mean: Mean) -> Sums | None:
        """Sums over clients of what their work gives, in one go, or None: I cannot."""
        return None


class Executors:
    """A chain of them, the last of which runs everything."""

    def __init__(self, chain: Sequence[Executor]):
        self._chain = tuple(chain)
        self.batches_one = any(executor.batches_one for executor in chain)
        """Whether one client by itself is a batch of one."""
        self.sums_some = any(type(one).sums is not Executor.sums for one in chain)
        """Whether one of them may compute sums in one go."""
        self.steps = next((one.steps for one in chain if one.steps is not None), None)
        """The way of the first that has one."""

    def __iter__(self) -> Iterator[Executor]:
        return iter(self._chain)

    def __getitem__(self, name: str) -> Any:
        """The one of this name."""
        return {executor.name: executor for executor in self._chain}[name]

    def __str__(self) -> str:
        return ", then ".join(executor.name for executor in self._chain)

    def begin(self) -> None:
        for executor in self._chain:
            executor.begin()

    def run(self, work: Work) -> Any:
        for executor in self._chain:
            if (result := executor.run(work)) is not None:
                return result
        return work.plainly()  # which gave None, as work may

    def sums(self, mean: Mean) -> Sums | None:
        for executor in self._chain:
            if (sums := executor.sums(mean)) is not None:
                return sums
        return None


def first_line(problem: Exception) -> str:
    """Of what it says; torch says much."""
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)
