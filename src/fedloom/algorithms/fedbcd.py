"""FedBCD, federated stochastic block coordinate descent: Q local steps between two exchanges.

Liu et al., FedBCD: A Communication-Efficient Collaborative Learning Framework for Distributed
Features, IEEE TSP 2022 (FedBCD-p, parallel, and FedBCD-s, sequential; the proximal term of their
section 3); thesis, sections 4.3.1 and 5.4.1.

Readings of the papers:
- Two meanings of a local step. "fresh-own": the party's own embedding is fresh, the others' are as
  they came, and it takes the loss itself, so it needs labels (the paper's guest, and TDCD).
  "frozen-gradient": the derivative of the loss by the embeddings comes from the label silo, and the
  party pulls that same derivative through its block at each of the Q steps (the paper's host, and
  the thesis). Here all parties do the one or the other, also the silo that holds the labels.
- A party is a silo: a single client, or a hub that averages its clients as in TDCD.
- In sequential order silos take their turn in the order in which they are listed. The next one sees
  what the averaged block of the one before gives for the same minibatch.
- With a head (fresh-own), every silo trains its replica with its block, and hubs average replicas
  at the end of the round, in either order. A head in the label silo only is splitnn.

Parallel with "fresh-own" it is TDCD; parallel with "frozen-gradient" it is SplitNN without a top.
"frozen-gradient" keeps labels where they are, it does not hide them: with cross-entropy the
negative entry of the derivative that a silo gets back is the row's label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from ..core.errors import ModelError, SettingError
from ..core.placed import AtClients, AtHubs, Batch, Noise, Rows
from ..core.registry import algorithms
from ..core.settings import NotNegative
from ..data.placement import Placement
from ..fabric.local_work import in_shares
from ..fabric.releases import times
from ..fabric.verbs import Fabric
from ..models.task import Part, Task, Theta
from ..privacy.settings import Privacy
from .contract import State, Step
from .shared import local
from .shared.checks import label_silo, need_labels
from .shared.local import Descent
from .shared.minibatch import Draw
from .shared.releasing import Releasing
from .shared.tiered import EMBEDDING, HUB_EMBEDDING, MODEL, TieredSGD, counted, predict_jointly
from .splitnn import (
    CUT,
    CUT_DERIVATIVE,
    CUT_GRADIENT,
    HUB_CUT_GRADIENT,
    derivative,
    joined,
    shares,
)
from .tdcd import REST, share_head


@algorithms.register("fedbcd")
@dataclass(frozen=True)
class FedBCD(Releasing, TieredSGD):
    """Federated block coordinate descent: silos take Q local steps, all at once or in turn."""

    order: Annotated[
        Literal["parallel", "sequential"], "silos step all at once, or each in its turn"
    ] = "parallel"
    updates: Annotated[
        Literal["fresh-own", "frozen-gradient"],
        "own embedding fresh (labels in every silo), or one derivative for the Q steps of a round "
        "(labels in one silo)",
    ] = "fresh-own"
    labels_at: Annotated[
        str | None, "frozen-gradient: the silo that holds the labels; none: the first"
    ] = None
    prox: Annotated[NotNegative, "weight of |theta - theta_start|^2 / 2 in the local steps"] = 0.0
    privacy: Annotated[Privacy | None, "noise on embeddings that leave a client"] = None

    training_layers: ClassVar[bool] = True

    @property
    def takes_head(self) -> bool:
        return self.updates == "fresh-own"

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        self.protection.check(task, self.steps_by)
        silos = placement.topology.silos
        if self.order == "sequential" and self.keeps:
            raise SettingError(
                "order = sequential: clients keep no state of their optimisers where silos take "
                'turns; use optimizer.state = "fresh", or order = "parallel"'
            )
        if self.order == "sequential" and len(silos) == 1:
            raise SettingError(
                "order = sequential: there is one silo, and none to take turns with; use parallel"
            )
        if self.updates == "frozen-gradient":
            label_silo(self.labels_at, placement)
            if task.head is not None:
                raise ModelError(
                    "updates = frozen-gradient has no form with a head in every silo: use splitnn, "
                    "which trains it where the labels are"
                )
            return
        if self.labels_at is not None:
            cure = "splitnn" if task.head is not None else "tdcd-private-labels"
            raise SettingError(
                f"labels_at = {self.labels_at!r}: with updates = fresh-own every silo uses labels; "
                f"for labels in one silo use updates = frozen-gradient, or {cure}"
            )
        need_labels(
            placement,
            silos,
            "updates = fresh-own takes labels at every client; use updates = frozen-gradient",
        )

    def round(self, fed: Fabric, state: State, draw: Draw) -> State:
        if self.order == "parallel":
            return self.parallel(fed, state, draw)
        return self.sequential(fed, state, draw)

    def parallel(self, fed: Fabric, state: State, draw: Draw) -> State:
        """FedBCD-p: one exchange of embeddings, then all silos take their Q steps at the same
        time (thesis, section 4.3.1)."""
        theta_k = self.to_clients(fed, state.theta, draw)
        phi, noise_k = self.embeddings(fed, theta_k, draw)
        if self.updates == "fresh-own":
            given_k = self.rest(fed, fed.exchange(HUB_EMBEDDING, phi), draw)
        else:
            seen = fed.collect(HUB_EMBEDDING, phi, to=self.holder(fed))
            given_k = self.derivatives(fed, seen, draw, fed)
        new = self.settled(fed, theta_k, given_k, noise_k, state, draw)
        return new._replace(theta=share_head(fed, new.theta))

    def sequential(self, fed: Fabric, state: State, draw: Draw) -> State:
        """FedBCD-s: silo after silo takes its Q steps; the next ones see its new embeddings."""
        theta_k = self.to_clients(fed, state.theta, draw)
        phi, noise_k = self.embeddings(fed, theta_k, draw)
        theta, hub, holder, stepped = state.theta, state.hub, self.holder(fed), fed
        seen = fed.at(holder, nothing_yet)
        for silo in fed.silos:
            turn = fed.within(silo)
            if self.updates == "fresh-own":
                given_k = self.rest(turn, fed.collect(HUB_EMBEDDING, phi, to=silo), draw)
            else:
                seen = fed.at(holder, newer, seen, stepped.collect(HUB_EMBEDDING, phi, to=holder))
                given_k = self.derivatives(fed, seen, draw, turn)
            new = self.settled(turn, theta_k, given_k, noise_k, state, draw)
            theta = fed.renew(theta, new.theta)
            hub = hub if self.hub_step is None else fed.renew(hub, new.hub)
            if silo != fed.silos[-1]:
                again, _ = self.embeddings(turn, turn.to_clients(MODEL, new.theta), draw)
                phi, stepped = fed.renew(phi, again), turn
        return State(share_head(fed, theta), hub)

    # What both have in common. `turn`: the silos that step now.

    def embeddings(
        self, turn: Fabric, theta_k: AtClients[Theta], draw: Draw
    ) -> tuple[AtHubs[Rows], Any]:
        """What the clients release of the minibatch, and the noise in it."""
        guard = self.protection
        noise_k = guard.row_noise(turn, draw.rows, draw.ids, theta_k)
        phi_k = turn.at_clients(guard.release, turn.part, theta_k, draw.batch_k, noise_k)
        return turn.gather(EMBEDDING, phi_k, draw.rows), noise_k

    def rest(self, turn: Fabric, phis: AtHubs[dict[str, Rows]], draw: Draw) -> AtClients[Rows]:
        """fresh-own: the others' embeddings as they are now, at the clients."""
        return turn.scatter(REST, turn.at_hubs(local.sum_of_others, turn.part, phis), draw.rows)

    def derivatives(
        self, fed: Fabric, seen: AtHubs[dict[str, Rows]], draw: Draw, turn: Fabric
    ) -> AtClients[Rows]:
        """frozen-gradient: what the label silo takes of the embeddings that it has seen, at the
        clients of those who step."""
        holder, part = self.holder(fed), fed.part
        label = fed.within(holder)
        joint = fed.at(holder, joined, part, seen)
        joint_k = label.scatter(CUT, joint, draw.rows)
        gradient_k = label.at_clients(derivative, part, fed.known({}), joint_k, draw.batch_k)
        gradient = label.gather(CUT_DERIVATIVE, gradient_k, draw.rows)
        by_silo = fed.at(holder, shares, part, joint, gradient)
        return turn.scatter(
            CUT_GRADIENT, turn.spread(HUB_CUT_GRADIENT, by_silo, frm=holder), draw.rows
        )

    def settled(
        self,
        turn: Fabric,
        theta_k: AtClients[Theta],
        given_k: AtClients[Rows],
        noise_k: Any,
        state: State,
        draw: Draw,
    ) -> State:
        """The Q local steps at the clients, the mean of their blocks, and the hubs' step."""
        normals_k = self.protection.step_noise(turn, draw.ids, self.steps_of_row)
        steps = self.local_sgd if self.updates == "fresh-own" else self.frozen_gradient_sgd
        given = (theta_k, given_k, draw.batch_k, draw.lr, noise_k, normals_k)
        trained_k = self.train(turn, steps, state.kept, *given)
        new = self.settle(turn, trained_k, state, turn.at_clients(counted, given_k))
        return new._replace(theta=self.protection.settled(turn, new.theta, state.theta))

    def silos_at_once(self, fed: Fabric) -> int:
        return len(fed.silos) if self.order == "parallel" else 1

    @in_shares
    def local_sgd(
        self,
        part: Part,
        theta: Theta,
        rest: Rows,
        batch: Batch,
        lr: Tensor,
        noise: Noise | None,
        normals: Tensor | None,
        by: Descent | None = None,
    ) -> Any:
        """Q steps on the loss, the own embedding fresh, the others' as they came."""
        guard, prox = self.protection, self.prox
        return guard.sgd(part, theta, rest, batch, lr, self.l2, noise, normals, prox, by)

    @in_shares
    def frozen_gradient_sgd(
        self,
        part: Part,
        theta: Theta,
        gradient: Rows,
        batch: Batch,
        lr: Tensor,
        noise: Noise | None,
        normals: Tensor | None,
        by: Descent | None = None,
    ) -> Any:
        """Q steps with one derivative of the loss, pulled through the block at each."""
        guard, prox = self.protection, self.prox
        return guard.pulled_sgd(part, theta, gradient, batch, lr, self.l2, noise, normals, prox, by)

    def holder(self, fed: Fabric) -> str:
        return self.labels_at or fed.silos[0]

    @property
    def steps_of_row(self) -> int:
        return 1 if self.minibatch == "fresh" else self.local_steps

    def exposure(self, fed: Fabric, round: int) -> tuple[Tensor, Tensor]:
        """In turn, all silos but the last send their embeddings again."""
        again = times(self.ids(fed, round), fed.size)
        return again * (2 if self.order == "sequential" else 1), again * self.steps_of_row

    def predict(self, fed: Fabric, state: State, step: Step) -> AtHubs[Rows]:
        return predict_jointly(fed, state, step)


def nothing_yet() -> dict[str, Rows]:
    return {}


def newer(seen: dict[str, Rows], arrived: dict[str, Rows]) -> dict[str, Rows]:
    return {**seen, **arrived}
