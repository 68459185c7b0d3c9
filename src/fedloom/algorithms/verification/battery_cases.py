"""What the battery (fedloom.testing) plays an algorithm with, registered beside the algorithm.

    @cases.register(TDCD)
    def tdcd_cases(kind: type[TDCD]) -> Cases:
        return Cases(examples=[kind(local_steps=3, lr=0.2, batch=12)], twins=[...])

A subclass has the cases of its parent until it registers its own; `kind` is the subclass then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ...core.errors import SettingError
from ...data.placement import Placement
from ...models.task import Task
from ..contract import Algorithm

Maker = Callable[[Any], "Cases"]
F = TypeVar("F", bound=Maker)
Sample = Callable[[int, int | None, bool], tuple[Task, Placement]]  # of silos, clients, with a head


class Twin(NamedTuple):
    """A degenerate case: with so many silos and clients in each, `one` must equal `other`.
    `clients` None: unequal numbers of clients, which hold unequal numbers of rows. `head`: with a
    trainable head. `complete`: only where everyone is there."""

    about: str
    one: Algorithm
    other: Algorithm
    silos: int
    clients: int | None
    head: bool = False
    complete: bool = False


@dataclass(frozen=True)
class Cases:
    """`examples`: small settings that cover the options; the battery runs each. `twins`: degenerate
    cases in which the algorithm is another one. `sample`: what to run them on, where the battery's
    own small federation will not do. `renamed`: the same settings where clients are called
    otherwise ({old: new}), for settings that name clients."""

    examples: Sequence[Algorithm]
    twins: Sequence[Twin] = ()
    sample: Sample | None = None
    renamed: Callable[[Any, Mapping[str, str]], Algorithm] | None = None


class CaseRegistry:
    """Cases by algorithm class."""

    def __init__(self) -> None:
        self._known: dict[type[Algorithm], Maker] = {}

    def register(self, kind: type[Algorithm]) -> Callable[[F], F]:
        def add(make: F) -> F:
            self._known[kind] = make
            return make

        return add

    def of(self, kind: type[Algorithm]) -> Cases:
        """Of a class; those of its parent where it has none."""
        for base in kind.__mro__:
            if base in self._known:
                return self._known[base](kind)
        raise SettingError(
            f"no cases are registered for {kind.__name__}: @cases.register({kind.__name__})"
        )


cases = CaseRegistry()
"""Battery cases by algorithm class: `@cases.register(Mine)`."""
