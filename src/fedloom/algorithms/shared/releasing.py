"""Algorithms whose clients release embeddings, perhaps with noise: what they promise and spend.

A row is counted as released whether or not its client was there. What privacy settings make of
local work is in protection.py.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...fabric.verbs import Fabric
from ...models.task import Task
from ...privacy.accounting import Scales
from ...privacy.settings import Privacy
from ...privacy.spending import spent, spent_in_silo
from ..contract import Algorithm
from .protection import Protection


class Releasing(Algorithm):
    """For dataclasses with a setting `privacy`, and `local_steps`."""

    if TYPE_CHECKING:  # fields of the dataclasses; annotations here would hide theirs
        privacy: Privacy | None
        local_steps: int

    @cached_property
    def protection(self) -> Protection:
        """Made once: engines know work that they saw before by the object it is a method of."""
        return Protection(self.privacy, self.local_steps)

    @property
    def scales(self) -> Scales:
        return self.protection.scales

    def trains(self, task: Task) -> Task:
        return task if self.privacy is None else task.guarded(self.privacy.clip)

    # The budget

    @abstractmethod
    def exposure(self, fed: Fabric, round: int) -> tuple[Tensor, Tensor]:
        """How often, at most, each row will be released and worked on in a round."""

    def halts(self, fed: Fabric, round: int) -> str | None:
        if self.privacy is None or self.privacy.budget is None:
            return None
        more, steps = self.exposure(fed, round)
        for silo in fed.silos:
            releases, worked = fed.releases.of(silo)
            releases = releases + more
            if self.protection.frozen:
                releases, steps = releases.clamp(max=1), steps * 0
            mu = float(self.scales.mu(releases, worked + steps).max())
            if self.scales.exceeds(mu):
                return (
                    f"the privacy budget ends the run before round {round + 1}: a record of "
                    f"silo {silo} could reach mu {mu:.4g} of {self.scales.budget:.4g}"
                )
        return None

    def promises(self) -> list[str]:
        return [] if self.privacy is None else self.privacy.statement()

    def spending(self, fed: Fabric) -> dict[str, Any] | None:
        if self.privacy is None:
            return None
        return spent(self.privacy, self.scales, {j: fed.releases.of(j) for j in fed.silos})

    def spending_of(self, fed: Fabric, silo: str) -> dict[str, Any]:
        """The same for one silo's records, as its hub may say."""
        assert self.privacy is not None
        return spent_in_silo(self.privacy, self.scales, silo, fed.releases.of(silo))

    def protections(self) -> dict[str, str]:
        if self.privacy is None:
            return {}
        embedding_noise = f"Gaussian noise of {self.scales.noise:.3g} on each number"
        if self.privacy.clip is not None:
            embedding_noise += f", rows clipped to norm {self.privacy.clip:g}"
        embedding_noise += ", from the client's secret"
        words = {"embedding": embedding_noise, "hub-embedding": embedding_noise}
        if self.privacy.mode == "trained":
            words["update"] = (
                f"gradients clipped to {self.privacy.gradient_clip:g}, noise "
                f"{self.scales.gradient_noise:.3g} times that"
            )
        return words


def noisy(algorithm: Algorithm) -> Releasing | None:
    """The algorithm, if its clients draw noise."""
    if isinstance(algorithm, Releasing) and algorithm.privacy is not None:
        return algorithm
    return None
