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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from torch import Tensor

from ..core.errors import ModelError, SettingError
from ..core.placed import AtClients, AtHubs, Rows
from ..core.registry import algorithms
from ..core.settings import NotNegative
from ..data.placement import Placement
from ..fabric.kinds import Direction
from ..fabric.releases import times
from ..fabric.verbs import Fabric
from ..models.task import Task, Theta
from ..privacy.settings import Privacy
from . import local
from .central import Central
from .contract import Bill, Draw, Entry, Facts, State, Step, Twin, label_silo, need_labels, tally
from .releasing import SHIELDED, Releasing
from .splitnn import (
    CUT,
    CUT_DERIVATIVE,
    CUT_GRADIENT,
    HUB_CUT_GRADIENT,
    SplitNN,
    derivative,
    joined,
    shares,
)
from .tdcd import (
    EMBEDDING,
    HEAD,
    HUB_EMBEDDING,
    MODEL,
    REST,
    TDCD,
    UPDATE,
    TieredSGD,
    counted,
    predict_jointly,
    share_head,
)


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

    @property
    def takes_head(self) -> bool:
        return self.updates == "fresh-own"

    def check(self, task: Task, placement: Placement) -> None:
        super().check(task, placement)
        self.check_privacy(task)
        silos = placement.topology.silos
        if self.order == "sequential" and len(silos) == 1:
            raise SettingError(
                "order = sequential: there is one silo, and nobody to take turns with; use parallel"
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
        theta, seen, moved = state.theta, fed.at(self.holder(fed), nothing_yet), fed
        theta_k = self.to_clients(fed, theta, draw)
        phi, noise_k = self.embeddings(fed, theta_k, draw)
        for turn, is_last in self.turns(fed):
            if self.updates == "fresh-own":
                new = self.fresh_own(fed, turn, theta_k, noise_k, phi, state, draw)
            else:
                came = moved.collect(HUB_EMBEDDING, phi, to=self.holder(fed))
                seen = fed.at(self.holder(fed), with_newer, seen, came)
                new = self.frozen_gradient(fed, turn, theta_k, noise_k, seen, state, draw)
            new = self.settled(turn, new, theta)
            theta = fed.renew(theta, new)
            if not is_last:  # what the next ones see
                newer, _ = self.embeddings(turn, turn.to_clients(MODEL, new), draw)
                phi, moved = fed.renew(phi, newer), turn
        return State(share_head(fed, theta))

    def turns(self, fed: Fabric) -> Iterator[tuple[Fabric, bool]]:
        """Who steps together, one after the other, and whether it is the last of the round."""
        if self.order == "parallel":
            yield fed, True
        else:
            for silo in fed.silos:
                yield fed.within(silo), silo == fed.silos[-1]

    def embeddings(
        self, fed: Fabric, theta_k: AtClients[Theta], draw: Draw
    ) -> tuple[AtHubs[Rows], Any]:
        """What the clients release of the minibatch, and the noise in it."""
        noise_k = self.row_noise(fed, draw.rows, draw.ids, theta_k)
        phi_k = fed.at_clients(self.release, fed.part, theta_k, draw.batch_k, noise_k)
        return fed.gather(EMBEDDING, phi_k, draw.rows), noise_k

    def fresh_own(
        self,
        fed: Fabric,
        turn: Fabric,
        theta_k: AtClients[Theta],
        noise_k: Any,
        phi: AtHubs[Rows],
        state: State,
        draw: Draw,
    ) -> AtHubs[Theta]:
        """Q steps with the others' embeddings as they are now."""
        if self.order == "parallel":
            phis = fed.exchange(HUB_EMBEDDING, phi)
        else:
            phis = fed.collect(HUB_EMBEDDING, phi, to=turn.scope[0])
        rest = turn.at_hubs(local.sum_of_others, fed.part, phis)
        rest_k = turn.scatter(REST, rest, draw.rows)
        theta_k = self.stepped(turn, theta_k, rest_k, draw, draw.lr, noise_k, draw.ids)
        return self.average(turn, theta_k, state, turn.at_clients(counted, rest_k))

    def frozen_gradient(
        self,
        fed: Fabric,
        turn: Fabric,
        theta_k: AtClients[Theta],
        noise_k: Any,
        seen: AtHubs[dict[str, Rows]],
        state: State,
        draw: Draw,
    ) -> AtHubs[Theta]:
        """Q steps with the derivative that the label silo takes of the embeddings it has seen."""
        holder, part = self.holder(fed), fed.part
        label = fed.within(holder)
        joint = fed.at(holder, joined, part, seen)
        joint_k = label.scatter(CUT, joint, draw.rows)
        slope_k = label.at_clients(derivative, part, fed.known({}), joint_k, draw.batch_k)
        slope = label.gather(CUT_DERIVATIVE, slope_k, draw.rows)
        slopes = fed.at(holder, shares, part, joint, slope)
        share = turn.spread(HUB_CUT_GRADIENT, slopes, frm=holder)
        share_k = turn.scatter(CUT_GRADIENT, share, draw.rows)
        theta_k = self.stepped(
            turn, theta_k, share_k, draw, draw.lr, noise_k, draw.ids, slopes=True
        )
        return self.average(turn, theta_k, state, turn.at_clients(counted, share_k))

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

    def bill(self, facts: Facts) -> Bill:
        talking = self.talking(facts)
        s, silos = self.rows_of_round(facts.size), list(talking)
        twice = silos if self.order == "parallel" else silos + silos[:-1]  # who embeds, and again
        k, k_twice = sum(talking.values()), sum(talking[j] for j in twice)
        wide = {j: s * facts.row("embedding", j) for j in silos}
        moves = self._fresh(facts, wide) if self.takes_head else self._frozen(facts, wide, twice)
        return tally(
            ("bottom", "down", MODEL, k_twice, sum(talking[j] * facts.model[j] for j in twice)),
            ("bottom", "up", EMBEDDING, k_twice, sum(wide[j] for j in twice)),
            *moves,
            ("bottom", "up", UPDATE, k, self.update_bytes(facts)),
        )

    def _fresh(self, facts: Facts, wide: dict[str, int]) -> list[Entry]:
        """In either order every silo's embeddings go to every other one, once."""
        talking, s, n = self.talking(facts), self.rows_of_round(facts.size), len(wide)
        rest = s * sum(facts.row("joint", j) + 1 for j in wide)
        pairs, embeddings = n * (n - 1), (n - 1) * sum(each + s for each in wide.values())
        way: Direction = "across" if self.order == "parallel" else "up"
        return [
            ("top", way, HUB_EMBEDDING, pairs, embeddings),
            ("bottom", "down", REST, sum(talking.values()), rest),
            ("top", "across", HEAD, pairs if facts.head else 0, pairs * facts.head),
        ]

    def _frozen(self, facts: Facts, wide: dict[str, int], twice: list[str]) -> list[Entry]:
        """In sequential order the label silo differentiates once for every turn."""
        talking, s = self.talking(facts), self.rows_of_round(facts.size)
        holder = self.labels_at or next(iter(wide))
        turns = 1 if self.order == "parallel" else len(wide)
        joint, m = s * facts.row("joint", holder), talking[holder]
        up, down = ([j for j in each if j != holder] for each in (twice, wide))
        return [
            ("top", "up", HUB_EMBEDDING, len(up), sum(wide[j] + s for j in up)),
            ("bottom", "down", CUT, turns * m, turns * (joint + s)),
            ("bottom", "up", CUT_DERIVATIVE, turns * m, turns * joint),
            ("top", "down", HUB_CUT_GRADIENT, len(down), sum(wide[j] + s for j in down)),
            ("bottom", "down", CUT_GRADIENT, sum(talking.values()), sum(wide[j] + s for j in wide)),
        ]

    @classmethod
    def examples(cls) -> list[Self]:
        frozen: dict[str, Any] = {"updates": "frozen-gradient", "lr": 0.2}
        return [
            cls(local_steps=3, lr=0.2, batch=12, prox=0.5),
            cls(local_steps=2, batch=12, order="sequential", privacy=SHIELDED, **frozen),
            cls(local_steps=2, lr=0.2, batch=9, order="sequential", weighting="rows", l2=0.05),
            cls(local_steps=2, batch=5, minibatch="fresh", weighting="participants", **frozen),
            cls(local_steps=3, batch=12, order="sequential", labels_at="birch", prox=0.5, **frozen),
        ]

    @classmethod
    def twins(cls) -> list[Twin]:
        many: dict[str, Any] = {"local_steps": 4, "lr": 0.2, "batch": 9}
        one: dict[str, Any] = {**many, "local_steps": 1}
        fresh = {**many, "minibatch": "fresh", "weighting": "rows"}
        frozen: dict[str, Any] = {"updates": "frozen-gradient"}
        in_turn = {**one, "order": "sequential"}
        return [
            Twin("parallel, fresh-own, K = 1: TDCD, K = 1", cls(**many), TDCD(**many), 3, 1),
            Twin("and with unequal clients and a head", cls(**fresh), TDCD(**fresh), 3, None, True),
            Twin("frozen: SplitNN", cls(**fresh, **frozen), SplitNN(**fresh), 3, None),
            Twin("frozen, K = Q = 1: SGD", cls(**one, **frozen), Central(**one), 3, 1),
            Twin("Q = 1, in turn: alike", cls(**in_turn, **frozen), cls(**in_turn), 3, None),
        ]


def nothing_yet() -> dict[str, Rows]:
    return {}


def with_newer(seen: dict[str, Rows], came: dict[str, Rows]) -> dict[str, Rows]:
    return {**seen, **came}
