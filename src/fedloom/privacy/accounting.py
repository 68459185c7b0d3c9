"""Accounting in Gaussian differential privacy: mu of releases and local steps, and (epsilon,
delta).

Conversions between mu and (epsilon, delta) are dp-accounting's.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

from torch import Tensor

from ..core.extras import need


class Scales(NamedTuple):
    """The noise of a run. `release` and `step`: mu^2 of one release and of one local step; None
    where rows are not clipped."""

    noise: float
    gradient_noise: float
    budget: float | None
    release: float | None
    step: float

    def mu(self, releases: Tensor, steps: Tensor) -> Tensor:
        """mu of records with so many releases and local steps."""
        assert self.release is not None
        return (releases.double() * self.release + steps.double() * self.step).sqrt()

    def exceeds(self, mu: float) -> bool:
        return self.budget is not None and mu**2 > allowed(self.budget)


def allowed(budget: float) -> float:
    """The largest mu^2 within a budget; a budget that is used up exactly is not exceeded."""
    return budget**2 * (1 + 1e-9)


@lru_cache(maxsize=1024)
def epsilon_of(mu: float, delta: float) -> float:
    """epsilon at delta of mu-Gaussian differential privacy."""
    return 0.0 if mu == 0 else float(_accounting().get_epsilon_gaussian(1 / mu, delta))


@lru_cache(maxsize=64)  # a run asks at every step
def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-private."""
    return 1 / float(_accounting().get_sigma_gaussian(epsilon, delta))


def need_accounting() -> None:
    """Refuse a run that makes a promise, where what it spends cannot be counted."""
    need("privacy", "accounting for privacy")


def _accounting() -> ModuleType:
    need_accounting()
    import dp_accounting  # imported here: it takes a second

    return dp_accounting
