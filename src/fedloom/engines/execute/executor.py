"""The interface `Executor`: it executes local work with the result of a plain call, or returns None
to decline.

A run has a chain of executors (choose.py). Each piece of work is offered to one after the other;
the last one, `plain`, never declines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from ...core.gradients import StepsWay
from ..limits import DEFAULT, Limits
from .described import MeanRequest, Sums

CALLS = 150  # calls of a function before it is traced

log = logging.getLogger("fedloom")


class Work(NamedTuple):
    """A call for all clients of a chunk at once, on trees of tensors. `key`: functions with equal
    keys and arguments of equal form do the same."""

    key: Hashable
    function: Callable[..., Any]
    args: Sequence[Any]

    def plainly(self) -> Any:
        return self.function(*self.args)


@dataclass(frozen=True)
class Options:
    """What executors are made with. `replay`: the calls after which work is traced (0: never)."""

    device: torch.device
    replay: int = CALLS
    limits: Limits = DEFAULT


class Executor:
    """One way to execute local work. Results equal those of plain calls up to the order of sums. An
    executor declines work that it is not sure of."""

    name: ClassVar[str]
    batches_one: ClassVar[bool] = False
    """Whether a single client is given to it as a batch of one."""
    steps: StepsWay | None = None
    """A faster way for plain local steps inside of work (core/gradients.py: `steps_by`)."""

    def __init__(self, options: Options):
        self.options = options

    def begin(self) -> None:
        """A new round begins; no work is running."""

    def run(self, work: Work) -> Any | None:
        """The result of the work, or None to decline."""
        return None

    def sums(self, mean: MeanRequest) -> Sums | None:
        """The sums over clients that a mean needs, at once, or None to decline."""
        return None


class Executors:
    """A chain of executors; the last one runs everything."""

    def __init__(self, chain: Sequence[Executor]):
        self._chain = tuple(chain)
        self.batches_one = any(executor.batches_one for executor in chain)
        """Whether any of them takes a single client as a batch of one."""
        self.sums_some = any(type(executor).sums is not Executor.sums for executor in chain)
        """Whether any of them may compute sums."""
        self.steps = next(
            (executor.steps for executor in chain if executor.steps is not None), None
        )
        """The `steps` of the first executor that has any."""

    def __iter__(self) -> Iterator[Executor]:
        return iter(self._chain)

    def __getitem__(self, name: str) -> Any:
        """The executor of this name."""
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
        return work.plainly()  # its result is None

    def sums(self, mean: MeanRequest) -> Sums | None:
        for executor in self._chain:
            if (sums := executor.sums(mean)) is not None:
                return sums
        return None


def first_line(problem: Exception) -> str:
    """The first line of an error's text; torch's are long."""
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)
