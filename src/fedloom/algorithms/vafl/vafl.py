"""VAFL, vertical asynchronous federated learning.

Chen, Jin, Sun, Yin: VAFL: a Method of Vertical Asynchronous Federated Learning, Algorithms 1 and 2.
A silo that is active sends embeddings of a minibatch and gets the derivatives of the loss, which
the master computes from the last embeddings that it has of the other silos. visiting.py is what
happens at a visit (its line numbers are Algorithm 1's).

Readings of the paper:
- Its client m is our silo m: a hub and its clients. With one client a silo it is the paper's
  algorithm; inside a silo, the hub averages what its clients make of their own rows.
- The server's model theta_0 is the task's head; without one, embeddings are summed up. Derivatives
  by theta_0 and by the embeddings are both taken at theta_0 before its step (Eqns. 2a, 2b).
- The paper takes an embedding of every row for granted; here every silo sends all rows before the
  first round. With `prime` off, a row counts once all silos have sent it.
- t-synchronous (`group`): theta_0 moves once for t visitors, by the mean of their derivatives. With
  t = M it is synchronous SGD.
- Delays are counted in the master's turns: tau = 0 for what came in this turn. Bounded (Assumption
  4): where an embedding of a visitor's row is more than D turns old, the master calls its silo for
  the rows of that minibatch; rows it still does not get do not count. Unbounded: as it comes.
- r(theta_m) = l2 |theta_m|^2 / 2; theta_0 has no regulariser. Theorems 1-4 are the step-size rules
  `delay-bound` and `inverse-time`.
- Perturbed embeddings (section 4) are the setting `privacy`: see shared/protection.py. Theorem 6 is
  not a guarantee as printed; what can be promised instead is in privacy/accounting.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...core.errors import SettingError
from ...core.registry import algorithms
from ...core.settings import Count, above, at_least
from ...data.placement import Placement
from ...models.task import Task
from ..shared.step_sizes import StepSize, step_size
from .visiting import Visiting


@algorithms.register("vafl")
@dataclass(frozen=True)
class VAFL(Visiting):
    """Vertical asynchronous federated learning: silos visit a master that holds the labels."""

    master_lr: Annotated[float | StepSize | None, above(0), "of theta_0, the head; none: as lr"] = (
        None
    )
    group: Annotated[Count, "t, how many visitors the master waits for; 1: fully asynchronous"] = 1
    max_delay: Annotated[
        int | None,
        at_least(1),
        "D, turns after which an embedding is called for again; none: no bound",
    ] = None

    @property
    def group_size(self) -> int:
        return self.group

    @property
    def delay_bound(self) -> int | None:
        return self.max_delay

    def master_lr_of(self, turn: int, silos: int) -> float:
        if self.master_lr is None:
            return step_size(self.lr)(turn * self.local_steps)
        return step_size(self.master_lr)(turn)

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        silos = len(placement.topology.silos)
        if self.group > silos:
            raise SettingError(
                f"group (t) is {self.group}, but there are only {silos} silos to wait for: say "
                f"{silos} or less"
            )
