"""Algorithms whose clients release embeddings, perhaps with noise (see fedloom.privacy).

Readings of VAFL's section 4 and of DP-SGD:
- What leaves a client is perturbed; steps that take the loss with the client's own embedding fresh
  take it clean. Steps with a derivative that came back take it where it was asked for: through the
  perturbed embedding.
- "frozen": a block stays as it is in every local step, too; only a head is trained, from noisy
  embeddings. (A block that moves between two steps would bring clean rows into the head's second.)
- A row is counted as released whether or not its client was there.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..core import tree
from ..core.errors import ModelError
from ..core.placed import AtClients, AtHubs, Batch, Known, Noise, RowMap, Rows
from ..fabric.local_work import by_rows, in_shares
from ..fabric.noise import Once
from ..fabric.verbs import Fabric
from ..models.block import Params
from ..models.clipping import Guarded
from ..models.task import Part, Task, Theta
from ..privacy.settings import Privacy, Scales, spent, spent_here
from . import local
from .contract import Algorithm, Draw, Step
from .local import PartLoss, Shield

NOTHING: Known[None] = Known(None)
SHIELDED = Privacy("trained", 2.0, 0.02, gradient_clip=2.0, gradient_noise=0.02)  # for examples


class Releasing(Algorithm):
    """For dataclasses with a setting `privacy`, and `local_steps`."""

    if TYPE_CHECKING:  # fields of the dataclasses; annotations here would hide theirs
        privacy: Privacy | None
        local_steps: int
        l2: float
    prox = 0.0  # the weight of |theta - theta_start|^2 / 2

    @property
    def frozen(self) -> bool:
        """Whether blocks stay as they are."""
        return self.privacy is not None and self.privacy.mode == "frozen"

    @property
    def scales(self) -> Scales:
        assert self.privacy is not None
        return self.privacy.scales(self.local_steps)

    def trains(self, task: Task) -> Task:
        return task if self.privacy is None else task.guarded(self.privacy.clip)

    def check_privacy(self, task: Task) -> None:
        if self.privacy is None:
            return
        self.privacy.check()
        self.scales  # noqa: B018  (refuses what cannot be)
        if self.frozen and task.head is None:
            raise ModelError(
                "privacy: mode frozen trains no block, and without a head nothing is left to "
                "train: give the model an embedding and a head"
            )

    @property
    def steps_of_row(self) -> int:
        """Local steps that a row takes part in, when it is in a minibatch."""
        return self.local_steps

    # Noise

    def row_noise(
        self, fed: Fabric, rows: RowMap, ids: Tensor, theta_k: AtClients[Theta]
    ) -> AtClients[Noise] | Known[None]:
        """Noise for a release of these rows."""
        if self.privacy is None:
            return NOTHING
        sizes = {j: self._sizes(part) for j, part in fed.parts.value.items()}
        once = Once(fed.at_clients(block_of, theta_k)) if self.frozen else None
        return fed.row_noise(rows, ids, sizes, once)

    def gradient_noise(self, fed: Fabric, ids: Tensor) -> AtClients[Tensor] | Known[None]:
        """Noise for the local steps on these rows."""
        if self.privacy is None or self.privacy.mode != "trained":
            return NOTHING
        count = {j: self._numbers(fed, part) for j, part in fed.parts.value.items()}
        shapes = {j: (self.local_steps, many) for j, many in count.items()}
        return fed.noise(ids, self.steps_of_row, shapes)

    def _numbers(self, fed: Fabric, part: Part) -> int:
        theta = self.initial(part, fed)
        return sum(a.numel() for a in tree.tensors(theta))

    def initial(self, part: Part, fed: Fabric) -> Theta:
        """What clients train, before the first round; of no matter whose block."""
        return part.initial_for_all(fed.streams)

    def _sizes(self, part: Part) -> tuple[int, int]:
        assert self.privacy is not None
        module = part.block.module
        assert isinstance(module, Guarded)
        row = part.shapes.made_up(part.silo, 1)[0].to(part.device)
        return module.sizes(row, self.privacy.uniform > 0)

    # Local work

    @by_rows
    def release(self, part: Part, theta: Theta, batch: Batch, noise: Noise | None) -> Tensor:
        """What a client sends of its rows."""
        return local.embed(part, theta, self.perturbed(batch, noise))

    def perturbed(self, batch: Batch, noise: Noise | None) -> Batch:
        if noise is None:
            return batch
        assert self.privacy is not None
        normal, uniform = noise.normal * self.scales.noise, noise.uniform * self.privacy.uniform
        return batch._replace(noise=Noise(normal, uniform))

    def stepped(
        self,
        fed: Fabric,
        theta_k: AtClients[Theta],
        given_k: AtClients[Rows],
        step: Step | Draw,
        lr: Known[Tensor],
        noise_k: AtClients[Noise] | Known[None],
        ids: Tensor,
        slopes: bool = False,
    ) -> AtClients[Theta]:
        """Local steps at the clients: by the loss, or by `slopes` that came back."""
        shield_k = self.gradient_noise(fed, ids)
        f = self.by_slopes if slopes else self.by_loss
        given = (theta_k, given_k, step.batch_k, lr, noise_k, shield_k)
        return fed.at_clients(f, fed.part, *given, steps=self.local_steps)

    @in_shares
    def by_loss(
        self,
        part: Part,
        theta: Theta,
        rest: Rows,
        batch: Batch,
        lr: Tensor,
        noise: Noise | None,
        normals: Tensor | None,
    ) -> Theta:
        if self.frozen:
            batch = self.perturbed(batch, noise)
            return local.head_sgd(part, theta, rest, batch, lr, self.l2, self.prox)
        return self._shielded(local.local_loss, part, theta, rest, batch, lr, normals)

    @in_shares
    def by_slopes(
        self,
        part: Part,
        theta: Theta,
        slope: Rows,
        batch: Batch,
        lr: Tensor,
        noise: Noise | None,
        normals: Tensor | None,
    ) -> Theta:
        if self.frozen:
            return theta
        batch = self.perturbed(batch, noise)
        return self._shielded(local.pulled, part, theta, slope, batch, lr, normals)

    def _shielded(
        self,
        loss: PartLoss,
        part: Part,
        theta: Theta,
        given: Rows,
        batch: Batch,
        lr: Tensor,
        normals: Tensor | None,
    ) -> Theta:
        shield = None
        if normals is not None and self.privacy is not None and self.privacy.gradient_clip:
            shield = Shield(self.privacy.gradient_clip, self.scales.gradient_noise, normals)
        return local.sgd(loss, part, theta, given, batch, lr, self.l2, self.prox, shield)

    def settled(self, fed: Fabric, new: AtHubs[Theta], old: AtHubs[Theta]) -> AtHubs[Theta]:
        """What hubs go on with: a block that is not trained is the very same one, not its mean over
        clients, which may differ in a last digit."""
        return fed.at_hubs(with_block_of, new, old) if self.frozen else new

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
            if self.frozen:
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
        return spent_here(self.privacy, self.scales, silo, fed.releases.of(silo))

    def protections(self) -> dict[str, str]:
        if self.privacy is None:
            return {}
        told = f"Gaussian noise of {self.scales.noise:.3g} on each number"
        if self.privacy.clip is not None:
            told += f", rows clipped to norm {self.privacy.clip:g}"
        told += ", from the client's secret"
        words = {"embedding": told, "hub-embedding": told}
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


def block_of(theta: Theta) -> Params:
    return theta.block


def with_block_of(new: Theta, old: Theta) -> Theta:
    return new._replace(block=old.block)
