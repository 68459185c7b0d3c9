"""What asynchronous split algorithms share: silos visit a master with the embeddings of a minibatch
and learn from the derivatives it returns.

- The master is the hub of the silo with the labels, or the server. Labels come to it with that
  silo's embeddings, from its clients.
- The n-th visit of a silo in a round is with the n-th minibatch of that round, which all silos
  derive alike: silos that visit equally often work on the same rows.
- A round is as many visits as there are silos (`visits`), rounded up to whole groups. The step size
  is that of the master's turn: a common count of its answers.
- A row counts for a visitor where the master has every silo's embedding of it, and its label. Of an
  absent client the table has the last embeddings; rows that never came count nowhere.
- Inside a silo, clients take Q steps with the derivatives frozen, and the hub averages them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ...core import tree
from ...core.errors import SettingError
from ...core.placed import AtClients, AtHubs, Batch, Noise, Rows
from ...core.rng import Streams
from ...core.settings import Count, NotNegative, above, at_least
from ...core.topology import SERVER
from ...data.placement import Placement
from ...fabric.kinds import Kind
from ...fabric.local_work import in_shares
from ...fabric.releases import times
from ...fabric.verbs import Fabric
from ...fabric.visits import Asks, Visit
from ...models.task import Part, Task, Theta
from ...privacy.settings import Privacy
from ..central import LABELS, SCORES, labels_of, to_all
from ..contract import Step
from ..shared import local
from ..shared.checks import check_batch, label_silo
from ..shared.releasing import Releasing
from ..shared.step_sizes import StepSize, step_size
from ..shared.tiered import EMBEDDING, HUB_EMBEDDING, MODEL, UPDATE
from . import server_table
from .kinds import GRADIENT, HUB_LABELS, OWN_GRADIENT
from .server_table import Parts, ServerTable

PRIMED_ROWS = 4096  # rows that are primed at a time


class VisitState(NamedTuple):
    """Each hub's block of the model, and the master's table."""

    theta: AtHubs[Theta]
    desk: AtHubs[ServerTable]  # its name in checkpoints stays


class RoundFacts(NamedTuple):
    """What every party knows of a round, and draws minibatches from."""

    streams: Streams
    size: int
    round: int


class UnansweredVisit(NamedTuple):
    """A visit that was not answered yet: what its silo needs to learn from the answer."""

    theta_k: AtClients[Theta]
    step: Step
    ids: Tensor
    noise_k: Any


@dataclass(frozen=True)
class Visiting(Releasing):
    """Settings of all of them, and what happens at a visit."""

    lr: Annotated[float | StepSize, above(0), "the silos' step size, or a rule for it"] = 0.1
    batch: Annotated[int | None, at_least(1), "B, the rows of a minibatch; none: all"] = 100
    local_steps: Annotated[Count, "Q, steps of a visit, with the derivatives frozen"] = 1
    l2: Annotated[NotNegative, "weight of the regulariser |theta_m|^2 / 2"] = 0.0
    weighting: Annotated[
        Literal["uniform", "rows"], "of a silo's clients in its mean: all alike, or by their rows"
    ] = "uniform"
    labels_at: Annotated[str | None, "the silo that holds the labels; none: the first"] = None
    master: Annotated[
        Literal["hub", "server"], "who is visited: the hub of the label silo, or the server"
    ] = "hub"
    visits: Annotated[
        int | None, at_least(1), "visits of a round; none: as many as there are silos"
    ] = None
    prime: Annotated[bool, "before the first round, every silo sends embeddings of all rows"] = True
    privacy: Annotated[Privacy | None, "noise on embeddings that leave a client"] = None

    State: ClassVar[type[Any]] = VisitState
    asynchronous: ClassVar[bool] = True
    training_layers: ClassVar[bool] = True

    # What the algorithms differ in

    @property
    def group_size(self) -> int:
        """t, how many visitors the master waits for."""
        return 1

    @property
    def delay_bound(self) -> int | None:
        """D, how many turns old an embedding may be."""
        return None

    @abstractmethod
    def master_lr_of(self, turn: int, silos: int) -> float:
        """The step size of theta_0."""

    def check(self, task: Task, placement: Placement) -> None:
        self.protection.check(task)
        check_batch(self.batch, placement)
        label_silo(self.labels_at, placement)
        if self.master == "server" and not placement.topology.server:
            raise SettingError(
                'master: this federation has no server; say "hub", or place the rows with a server'
            )

    def start(self, fed: Fabric) -> VisitState:
        streams = fed.known(fed.streams)
        theta = fed.at_hubs(block_only, fed.part, streams)
        size = fed.known(fed.size)
        return VisitState(theta, fed.at(self.at(fed), server_table.empty, fed.parts, streams, size))

    def draw(self, fed: Fabric) -> RoundFacts:
        return RoundFacts(fed.streams, fed.size, fed.round)

    def round(self, fed: Fabric, state: VisitState, draw: RoundFacts) -> VisitState:
        if self.prime and fed.round == 0:
            state = self.primed(fed, state)
        theta, table = fed.visits(
            self.ask,
            self.answer,
            self.learn,
            state.theta,
            state.desk,
            at=self.at(fed),
            reply=GRADIENT,
            turns=self.turns(len(fed.silos)),
            group=self.group_size,
            again=None if self.delay_bound is None else self.again,
            given=draw,
        )
        return VisitState(theta, table)

    # A visit

    def ask(
        self, silo: Fabric, theta: AtHubs[Theta], visit: Visit
    ) -> tuple[dict[Kind, AtHubs[Any]], UnansweredVisit]:
        """Algorithm 1, lines 4-6, over the silo's clients."""
        ids = self.ids(self.draw(silo), visit)
        step = Step(*silo.minibatch(ids))  # 4
        theta_k = silo.to_clients(MODEL, theta)
        noise_k = self.protection.row_noise(silo, step.rows, ids, theta_k)
        phi_k = silo.at_clients(self.protection.release, silo.part, theta_k, step.batch_k, noise_k)
        query = {HUB_EMBEDDING: silo.gather(EMBEDDING, phi_k, step.rows)}  # 5-6
        if visit.silo == self.holder(silo):
            y_k = silo.at_clients(labels_of, step.batch_k)
            query[HUB_LABELS] = silo.gather(LABELS, y_k, step.rows)
        return query, UnansweredVisit(theta_k, step, ids, noise_k)

    def learn(
        self,
        silo: Fabric,
        theta: AtHubs[Theta],
        visit: Visit,
        pending: UnansweredVisit,
        gradient: AtHubs[Rows],
    ) -> AtHubs[Theta]:
        """Line 7 (Eqn. 4a): the derivatives, pulled back through the clients' blocks."""
        rule, first = step_size(self.lr), visit.turn * self.local_steps
        lr = [rule(first + q) for q in range(self.local_steps)]
        eta = silo.known(torch.tensor(lr, dtype=silo.dtype))
        gradient_k = silo.scatter(OWN_GRADIENT, gradient, pending.step.rows)
        normals_k = self.protection.step_noise(silo, pending.ids, self.local_steps, with_head=False)
        given = (pending.theta_k, gradient_k, pending.step.batch_k, eta, pending.noise_k, normals_k)
        theta_k = silo.at_clients(
            self.frozen_gradient_sgd, silo.part, *given, steps=self.local_steps
        )
        weight_k = None if self.weighting == "uniform" else silo.at_clients(rows_of, gradient_k)
        new = silo.mean(UPDATE, theta_k, otherwise=theta, weight=weight_k)
        return self.protection.settled(silo, new, theta)

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
    ) -> Theta:
        """Q steps with the derivatives that came back, pulled through the block at each."""
        guard = self.protection
        return guard.pulled_sgd(part, theta, gradient, batch, lr, self.l2, noise, normals)

    # The master

    def again(
        self,
        parts: Parts,
        common: RoundFacts,
        table: ServerTable,
        visits: tuple[Visit, ...],
        asks: Asks,
    ) -> Tensor:
        """Which silos' embeddings of the other visitors' rows are older than D."""
        self.take(parts, common, table, asks)
        stale = torch.zeros(len(parts), dtype=torch.bool, device=table.y.device)
        for visit, message in asks:
            ids = self.ids(common, visit).to(table.y.device)[message[HUB_EMBEDDING.name].mask]
            too_old = ~server_table.fresh(table, ids, visit.turn, self.delay_bound).all(0)
            too_old[list(parts).index(visit.silo)] = False
            stale |= too_old
        return stale

    def answer(
        self,
        parts: Parts,
        common: RoundFacts,
        table: ServerTable,
        visits: tuple[Visit, ...],
        asks: Asks,
    ) -> tuple[ServerTable, dict[str, Rows]]:
        """Lines 8-13 for a group of visitors: theta_0 moves once, by the mean of its gradients
        (Eqn. 2a); every visitor gets those by its own embeddings (Eqn. 2b), from theta_0 before."""
        self.take(parts, common, table, asks)  # 8, 11
        gradients = []
        for visit, message in asks[: len(visits)]:
            ids = self.ids(common, visit).to(table.y.device)
            complete = server_table.fresh(table, ids, visit.turn, self.delay_bound).all(1)
            mask = complete & table.labelled[ids] & message[HUB_EMBEDDING.name].mask
            own = server_table.gradients(parts[visit.silo], table, ids, mask)  # 9, 12
            server_table.count_delays(table, ids if own.rows == len(ids) else ids[mask], visit.turn)
            gradients.append(own)
        eta = self.master_lr_of(visits[0].turn, len(parts))
        contributing = max(1, sum(own.rows > 0 for own in gradients))
        head = tree.map_tensors(  # 10
            lambda a, *tensors: a - eta * torch.stack(tensors).sum(0) / contributing,
            table.head,
            *(own.head for own in gradients),
        )
        table.calls.add_(len(asks) - len(visits))
        replies = {visit.silo: own.phi for visit, own in zip(visits, gradients, strict=True)}  # 13
        return table._replace(head=head), replies

    def take(self, parts: Parts, common: RoundFacts, table: ServerTable, asks: Asks) -> None:
        """Writes what the silos sent into the table."""
        for visit, message in asks:
            ids, shapes = self.ids(common, visit).to(table.y.device), parts[visit.silo].shapes
            server_table.put(
                table, shapes, visit.silo, ids, message[HUB_EMBEDDING.name], visit.turn
            )
            if HUB_LABELS.name in message:
                server_table.put_labels(table, ids, message[HUB_LABELS.name])

    def primed(self, fed: Fabric, state: VisitState) -> VisitState:
        """Before training: everyone's embeddings of all rows, and the labels."""
        at, label = self.at(fed), fed.within(self.holder(fed))
        theta_k = fed.to_clients(MODEL, state.theta)
        table = fed.at(at, tree.copy, state.desk)
        for start in range(0, fed.size, PRIMED_ROWS):
            ids = torch.arange(start, min(start + PRIMED_ROWS, fed.size))
            step = Step(*fed.minibatch(ids))
            noise_k = self.protection.row_noise(fed, step.rows, ids, theta_k)
            phi_k = fed.at_clients(
                self.protection.release, fed.part, theta_k, step.batch_k, noise_k
            )
            phis = fed.collect(HUB_EMBEDDING, fed.gather(EMBEDDING, phi_k, step.rows), to=at)
            y = label.gather(LABELS, label.at_clients(labels_of, step.batch_k), step.rows)
            ys = label.collect(HUB_LABELS, y, to=at)
            table = fed.at(at, server_table.filled, fed.parts, table, fed.known(ids), phis, ys)
        return VisitState(state.theta, table)

    # Common knowledge

    def holder(self, fed: Fabric) -> str:
        return self.labels_at or fed.silos[0]

    def at(self, fed: Fabric) -> str:
        return SERVER if self.master == "server" else self.holder(fed)

    def turns(self, silos: int) -> int:
        """The master's answers in a round."""
        return -(-(self.visits or silos) // self.group_size)

    def rows(self, size: int) -> int:
        return size if self.batch is None else self.batch

    def ids(self, common: RoundFacts, visit: Visit) -> Tensor:
        """The rows of a visit."""
        count = self.rows(common.size)
        minibatches = [minibatch(common, nth, count) for nth in visit.nth]
        return minibatches[0] if len(minibatches) == 1 else torch.cat(minibatches)

    def rows_of_round(self, size: int) -> int:
        """A minibatch: silos visit once a round in the mean, and work on the same rows."""
        return self.rows(size)

    def exposure(self, fed: Fabric, round: int) -> tuple[Tensor, Tensor]:
        """A silo visits at most once a turn; with a bound on delays, it may be called for the rows
        of every visit of every other silo, too."""
        common, turns = RoundFacts(fed.streams, fed.size, round), range(self.turns(len(fed.silos)))
        visits = [self.ids(common, Visit("", 0, (nth,))) for nth in turns]
        worked = times(torch.cat(visits), fed.size)
        releases = worked * (1 if self.delay_bound is None else len(fed.silos))
        primes = self.prime and round == 0
        return releases + int(primes), worked * self.local_steps

    # Around training

    def warm_up(self, part: Part, streams: Streams) -> None:
        batch, theta = local.made_up_rows(part), block_only(part, streams)
        gradient = Rows(torch.ones_like(local.embed(part, theta, batch)), batch.mask)
        local.frozen_gradient_sgd(
            part, theta, gradient, batch, torch.ones(1, device=part.device), self.l2
        )

    def predict(self, fed: Fabric, state: VisitState, step: Step) -> AtHubs[Rows]:
        """Embeddings to the master, scores back to every hub."""
        at = self.at(fed)
        theta_k = fed.to_clients(MODEL, state.theta)
        phi_k = fed.at_clients(local.embed, fed.part, theta_k, step.batch_k)
        phis = fed.collect(HUB_EMBEDDING, fed.gather(EMBEDDING, phi_k, step.rows), to=at)
        scores = fed.at(at, joint_scores, fed.parts, state.desk, phis)
        return fed.spread(SCORES, fed.at(at, to_all, fed.known(fed.silos), scores), frm=at)

    def blocks(self, fed: Fabric, state: VisitState) -> dict[str, Theta]:
        """Blocks with the master's theta_0, which hubs do not hold themselves."""
        heads = [table.head for table in fed.read(state.desk).values()]
        thetas = fed.read(state.theta)
        return {j: theta._replace(head=heads[0] if heads else {}) for j, theta in thetas.items()}

    def notes(self, fed: Fabric, state: VisitState) -> dict[str, Any]:
        """How old the other silos' embeddings were when they were used, in turns."""
        tables = list(fed.read(state.desk).values())
        return server_table.summary(tables[0]) if tables else {}

    def delays(self, fed: Fabric, state: VisitState) -> list[int]:
        """How many embeddings were 0, 1, 2, ... turns old when they were used (the last: or more),
        where the master is."""
        return next(iter(fed.read(state.desk).values())).delays.tolist()


def block_only(part: Part, streams: Streams) -> Theta:
    """theta_m; theta_0 is the master's."""
    return part.initial(streams)._replace(head={})


@lru_cache(maxsize=32)
def minibatch(common: RoundFacts, nth: int, count: int) -> Tensor:
    """The rows of everyone's n-th visit of a round: drawn once for all silos."""
    stream = common.streams.common("minibatch", common.round, nth)
    return torch.from_numpy(stream.sample(common.size, count))


def rows_of(gradient: Rows) -> Tensor:
    """How many of a client's rows counted."""
    return gradient.mask.sum()


def joint_scores(parts: Parts, table: ServerTable, phis: dict[str, Rows]) -> Rows:
    part = next(iter(parts.values()))
    return local.joint_scores(part, Theta({}, table.head), phis)
