"""Protection: a client's local work under privacy settings, as an object that a round uses.

Readings of VAFL's section 4 and of DP-SGD:
- What leaves a client is perturbed; steps that take the loss with the client's own embedding fresh
  take it clean. Steps with a derivative that came back take it where it was asked for: through the
  perturbed embedding.
- "frozen": a block stays as it is in every local step, too; only a head is trained, from noisy
  embeddings. (A block that moves between two steps would bring clean rows into the head's second.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...core import tree
from ...core.errors import ModelError, SettingError
from ...core.placed import AtClients, AtHubs, Batch, Known, Noise, RowMap, Rows
from ...fabric.local_work import by_rows_unless_mixed
from ...fabric.noise import Once
from ...fabric.verbs import Fabric
from ...models.block import Params
from ...models.clipping import Guarded
from ...models.task import Part, Task, Theta
from ...models.training_layers import BatchNorm
from ...privacy.accounting import Scales, need_accounting
from ...privacy.settings import Privacy
from . import local
from .local import Descent, Shield
from .optimizers import Optimizer

NOTHING: Known[None] = Known(None)
SHIELDED = Privacy("trained", 2.0, 0.02, gradient_clip=2.0, gradient_noise=0.02)  # for examples


@dataclass(frozen=True)
class Protection:
    """Of an algorithm with these settings (None: nothing is protected) and so many local steps."""

    privacy: Privacy | None
    local_steps: int

    @property
    def frozen(self) -> bool:
        """Whether blocks stay as they are."""
        return self.privacy is not None and self.privacy.mode == "frozen"

    @property
    def scales(self) -> Scales:
        assert self.privacy is not None
        return self.privacy.scales(self.local_steps)

    def check(self, task: Task, optimizer: Optimizer | None = None) -> None:
        """Refuse settings that contradict each other, the task, or the optimiser of local steps."""
        if self.privacy is None:
            return
        self.privacy.check()
        if self.privacy.guarantees:
            need_accounting()  # before training, not when the first record is made
        self.scales  # noqa: B018  (refuses an impossible budget)
        for silo, layer in task.training_layers():
            if isinstance(layer, BatchNorm):
                raise ModelError(
                    f"privacy: silo {silo}'s {layer.name} mixes a client's rows, and noise "
                    "protects them one by one: use nn.GroupNorm or nn.LayerNorm"
                )
            if self.frozen:
                raise ModelError(
                    f"privacy: silo {silo}'s {layer.name} has a new mask in each round, and mode "
                    "frozen releases a row once: put it in eval mode before handing the module over"
                )
        if self.frozen and task.head is None:
            raise ModelError(
                "privacy: mode frozen trains no block, and without a head nothing is left to "
                "train: give the model an embedding and a head"
            )
        if self.frozen and optimizer is not None:
            raise SettingError(
                f"privacy: mode frozen trains the head alone, by plain SGD, and optimizer is "
                f"{type(optimizer).__name__}: leave optimizer out, let hubs take such steps "
                '(hub = "adam"), or use mode = "trained"'
            )

    # Noise, which each client draws for itself

    def row_noise(
        self, fed: Fabric, rows: RowMap, ids: Tensor, theta_k: AtClients[Theta]
    ) -> AtClients[Noise] | Known[None]:
        """For a release of these rows."""
        if self.privacy is None:
            return NOTHING
        sizes = {j: self._sizes(part) for j, part in fed.parts.value.items()}
        once = Once(fed.at_clients(block_of, theta_k)) if self.frozen else None
        return fed.row_noise(rows, ids, sizes, once)

    def step_noise(
        self, fed: Fabric, ids: Tensor, steps_of_row: int, with_head: bool = True
    ) -> AtClients[Tensor] | Known[None]:
        """For the local steps on these rows: a line for each step, a number for each that is
        trained. `steps_of_row`: the steps that a row of them takes part in."""
        if self.privacy is None or self.privacy.mode != "trained":
            return NOTHING
        shapes = {
            j: (self.local_steps, _numbers(fed, part, with_head))
            for j, part in fed.parts.value.items()
        }
        return fed.noise(ids, steps_of_row, shapes)

    def _sizes(self, part: Part) -> tuple[int, int]:
        assert self.privacy is not None
        module = part.block.module
        assert isinstance(module, Guarded)
        row = part.shapes.made_up(part.silo, 1)[0].to(part.device)
        return module.sizes(row, self.privacy.uniform > 0)

    # Local work

    @by_rows_unless_mixed
    def release(self, part: Part, theta: Theta, batch: Batch, noise: Noise | None) -> Tensor:
        """What a client sends of its rows."""
        return local.embed_in_training(part, theta, self._perturbed(batch, noise))

    def sgd(
        self,
        part: Part,
        theta: Theta,
        rest: Rows,
        batch: Batch,
        lr: Tensor,
        l2: float,
        noise: Noise | None,
        normals: Tensor | None,
        prox: float = 0.0,
        by: Descent | None = None,
    ) -> Any:
        """Local steps on the client's own loss, the others' embeddings as they came."""
        if self.frozen:
            batch = self._perturbed(batch, noise)
            return local.head_sgd(part, theta, rest, batch, lr, l2, prox)
        shield = self._shield(normals)
        return local.sgd(
            local.local_loss, part, theta, rest, batch, lr, l2, prox=prox, shield=shield, by=by
        )

    def pulled_sgd(
        self,
        part: Part,
        theta: Theta,
        gradient: Rows,
        batch: Batch,
        lr: Tensor,
        l2: float,
        noise: Noise | None,
        normals: Tensor | None,
        prox: float = 0.0,
        by: Descent | None = None,
    ) -> Any:
        """Local steps with the derivatives that came back, pulled through the block."""
        if self.frozen:
            return theta
        batch, shield = self._perturbed(batch, noise), self._shield(normals)
        return local.sgd(
            local.pulled, part, theta, gradient, batch, lr, l2, prox=prox, shield=shield, by=by
        )

    def _perturbed(self, batch: Batch, noise: Noise | None) -> Batch:
        if noise is None:
            return batch
        assert self.privacy is not None
        normal, uniform = noise.normal * self.scales.noise, noise.uniform * self.privacy.uniform
        return batch._replace(noise=Noise(normal, uniform))

    def _shield(self, normals: Tensor | None) -> Shield | None:
        if normals is None or self.privacy is None or not self.privacy.gradient_clip:
            return None
        return Shield(self.privacy.gradient_clip, self.scales.gradient_noise, normals)

    def settled(self, fed: Fabric, new: AtHubs[Theta], old: AtHubs[Theta]) -> AtHubs[Theta]:
        """What hubs go on with: a block that is not trained is the very same one, not its mean over
        clients, which may differ in a last digit."""
        return fed.at_hubs(with_block_of, new, old) if self.frozen else new


def _numbers(fed: Fabric, part: Part, with_head: bool) -> int:
    theta = part.initial_for_all(fed.streams)  # of no matter whose block
    return sum(a.numel() for a in tree.tensors(theta if with_head else theta.block))


def block_of(theta: Theta) -> Params:
    return theta.block


def with_block_of(new: Theta, old: Theta) -> Theta:
    return new._replace(block=old.block)
