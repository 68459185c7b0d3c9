"""The contract of an algorithm, and what those that take SGD steps on minibatches share.

An algorithm is a frozen dataclass of settings with one `round()` over the fabric. It imports
neither engines nor transports. Registering it is all it takes to be simulated, run by parties, and
tested: the battery (fedloom.testing) takes `examples()`, `twins()` and `bill()` from here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..core.checked import Checked
from ..core.errors import DataError, SettingError, nearest
from ..core.payload import RowWord
from ..core.placed import AtClients, AtHubs, Batch, Known, RowMap, Rows
from ..core.rng import Streams
from ..core.settings import Count, NotNegative, above, at_least
from ..data.placement import Placement
from ..fabric.kinds import Direction, Kind, Tier
from ..fabric.ledger import Line
from ..fabric.schedule import Turn
from ..fabric.verbs import Fabric
from ..models.task import Part, Shapes, Task, Theta
from . import local
from .step_sizes import StepSize, step_size

ROUNDS = 32  # of which minibatches are drawn at once,
NUMBERS = 2**15  # if they have no more rows than these

Bill = dict[Line, tuple[int, int]]
Entry = tuple[Tier, Direction, Kind, int, int]  # of a bill: ..., messages, bytes


class State(NamedTuple):
    """What lives from round to round: each hub's block of the model."""

    theta: AtHubs[Theta]


class Step(NamedTuple):
    """One minibatch: each client's rows of it, and where they sit."""

    batch_k: AtClients[Batch]
    rows: RowMap


class Draw(NamedTuple):
    """What chance decides in a round: `ids`, the rows of its minibatches, one a line; `batch_k` and
    `rows` span them all."""

    batch_k: AtClients[Batch]
    rows: RowMap
    ids: Tensor
    lr: Known[Tensor]

    def step(self, fed: Fabric, q: int) -> Step:
        """The minibatch of one local step."""
        if len(self.ids) == 1:
            return Step(self.batch_k, self.rows)
        return Step(*fed.minibatch(self.ids[q]))


class Twin(NamedTuple):
    """A degenerate case: with so many silos and clients in each, `mine` must equal `other`.
    `clients` None: unequal numbers of clients, which hold unequal numbers of rows. `head`: with a
    trainable head. `complete`: only where everyone is there."""

    about: str
    mine: Algorithm
    other: Algorithm
    silos: int
    clients: int | None
    head: bool = False
    complete: bool = False


@dataclass(frozen=True)
class Facts:
    """What a bill depends on, in a round where everyone is there. Of asynchronous algorithms also
    which round it is, and who visited the master in it (none: everyone in turn)."""

    clients: Mapping[str, int]
    holders: Mapping[str, int]  # clients with rows in the round's minibatches
    size: int  # common rows
    model: Mapping[str, int]  # bytes of theta_j, its replica of the head included
    head: int  # bytes of the head
    shapes: Shapes
    names: Mapping[str, tuple[str, ...]]  # the clients'
    theta: Mapping[str, Theta]  # theta_j at round 0
    middle: int = 0  # of which the middle's
    round: int = 1
    turns: tuple[Turn, ...] = ()

    def row(self, word: RowWord, silo: str) -> int:
        """Bytes of one row."""
        shape, dtype = self.shapes.row(word, silo)
        return int(np.prod(shape, dtype=int)) * dtype.itemsize


class Algorithm(Checked, ABC):
    """One round, written from above. Subclasses are frozen dataclasses of settings, checked by
    their types and limits when one is made."""

    State: ClassVar[type[Any]] = State
    joint: ClassVar[bool] = True  # the silos train one model: a row missing anywhere is left out
    one_silo: ClassVar[bool] = False  # it is for the clients of a single silo
    needs_server: ClassVar[bool] = False  # a server takes part, and holds the task's middle
    personal: ClassVar[bool] = False  # clients have models of their own: see `predict_as`
    asynchronous: ClassVar[bool] = False  # its silos visit a master, and wait for nobody else

    @abstractmethod
    def check(self, task: Task, placement: Placement) -> None:
        """Refuse, before any training, what this algorithm cannot run on."""

    def fitting(self, rows: Placement) -> Placement:
        """Made-up rows, changed where this algorithm demands something of rows."""
        return rows

    def trains(self, task: Task) -> Task:
        """The task as this algorithm trains it."""
        return task

    def halts(self, fed: Fabric, round: int) -> str | None:
        """Why the run must end before this round, if it must: the same at every party."""
        return None

    def protections(self) -> dict[str, str]:
        """What keeps messages of a kind from being read as they are: {kind: in words}."""
        return {}

    def promises(self) -> list[str]:
        """What is promised of the privacy of records, and what that rests on, line by line."""
        return []

    def spending(self, fed: Fabric) -> dict[str, Any] | None:
        """What was spent of a privacy budget, for the records."""
        return None

    @abstractmethod
    def start(self, fed: Fabric) -> Any:
        """The state before round 0."""

    @abstractmethod
    def draw(self, fed: Fabric) -> Any:
        """What chance decides in this round, from common streams."""

    @abstractmethod
    def round(self, fed: Fabric, state: Any, draw: Any) -> Any:
        """The state after one more round."""

    @property
    def takes_head(self) -> bool:
        """Whether it can train a head where the silos' embeddings meet."""
        return True

    @property
    def predicts_alone(self) -> bool:
        """Whether every hub predicts something of its own."""
        return False

    def warm_up(self, part: Part, streams: Streams) -> None:
        """One dry local step at a client, before anyone waits for it: torch's first calls are slow
        enough to miss a deadline."""

    @abstractmethod
    def predict(self, fed: Fabric, state: Any, step: Step) -> AtHubs[Rows]:
        """Scores of these rows, at every hub."""

    def predict_as(self, fed: Fabric, state: Any, step: Step, client: str) -> AtHubs[Rows]:
        """Scores of these rows by the model of one client of the first silo; for records only."""
        raise SettingError(f"clients of {type(self).__name__} have no models of their own")

    @abstractmethod
    def blocks(self, fed: Fabric, state: Any) -> dict[str, Theta]:
        """The blocks that the hubs hosted here can export (Remark 1)."""

    def notes(self, fed: Fabric, state: Any) -> dict[str, Any]:
        """What else is to be said of the run so far, in its records: numbers and lists of them."""
        return {}

    @abstractmethod
    def bill(self, facts: Facts) -> Bill:
        """Closed formula for a round's messages and bytes."""

    @classmethod
    @abstractmethod
    def examples(cls) -> list[Self]:
        """Small settings that cover the options; the battery runs each."""

    @classmethod
    def sample(
        cls, silos: int = 3, clients: int | None = None, head: bool = False
    ) -> tuple[Task, Placement] | None:
        """What the battery runs the examples on, where its own small federation will not do."""
        return None

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The same settings where clients are called otherwise: {old: new}."""
        return self

    @classmethod
    @abstractmethod
    def twins(cls) -> list[Twin]:
        """Degenerate cases in which this algorithm is another one."""


@dataclass(frozen=True)
class MinibatchSGD(Algorithm):
    """Q local steps of SGD a round; the journal reuses one minibatch for them (Algorithm 1), ICASSP
    draws Q fresh ones."""

    local_steps: Annotated[Count, "Q, the local steps of a round"] = 10
    lr: Annotated[float | StepSize, above(0), "the step size, or a rule for it"] = 0.1
    batch: Annotated[int | None, at_least(1), "B, the rows of a minibatch; none: all"] = 100
    minibatch: Annotated[
        Literal["reused", "fresh"], "one minibatch for the Q steps of a round, or Q of them"
    ] = "reused"
    l2: Annotated[NotNegative, "weight of |theta|^2 / 2"] = 0.0

    def check(self, task: Task, placement: Placement) -> None:
        check_batch(self.batch, placement)

    def warm_up(self, part: Part, streams: Streams) -> None:
        theta, batch = part.initial(streams), local.made_up_rows(part)
        rest = local.nothing_from_others(part, batch)
        local.local_sgd(part, theta, rest, batch, torch.ones(1, device=part.device), self.l2)

    def rows_of_step(self, size: int) -> int:
        """Rows of one minibatch."""
        return size if self.batch is None else self.batch

    def rows_of_round(self, size: int) -> int:
        """Rows of all minibatches of a round."""
        return self.rows_of_step(size) * (self.local_steps if self.minibatch == "fresh" else 1)

    def ids(self, fed: Fabric, round: int) -> Tensor:
        """The rows of a round's minibatches, one a line. Those of some more rounds are drawn with
        them: small draws one after the other take a third of the time."""
        count = self.local_steps if self.minibatch == "fresh" else 1
        size = self.rows_of_step(fed.size)
        if (count, size, round) not in fed.drawn:
            fed.drawn.clear()
            for later in range(round, round + max(1, min(ROUNDS, NUMBERS // (count * size)))):
                streams = (fed.streams.common("minibatch", later, q) for q in range(count))
                drawn = np.stack([stream.sample(fed.size, size) for stream in streams])
                fed.drawn[count, size, later] = torch.from_numpy(drawn)
        return fed.drawn[count, size, round]

    def draw(self, fed: Fabric) -> Draw:
        """zeta: minibatch ids that every party derives alike (line 9)."""
        ids = self.ids(fed, fed.round)
        batch_k, rows = fed.minibatch(ids if len(ids) > 1 else ids[0], self.local_steps)
        rule = step_size(self.lr)
        first = fed.round * self.local_steps
        lr = [rule(first + step) for step in range(self.local_steps)]
        if not all(math.isfinite(eta) and eta >= 0 for eta in lr):
            raise SettingError(f"round {fed.round}: lr gives {lr}; step sizes cannot be negative")
        return Draw(batch_k, rows, ids, fed.known(torch.tensor(lr, dtype=fed.dtype)))


def check_batch(batch: int | None, placement: Placement) -> None:
    """Refuse a minibatch that there are no rows for."""
    if batch is not None and batch > placement.size:
        raise SettingError(f"batch (B) is {batch}, but there are only {placement.size} common rows")


def need_labels(placement: Placement, silos: tuple[str, ...], cure: str) -> None:
    """Refuse silos without labels."""
    for silo in silos:
        if placement.y[silo] is None:
            raise DataError(f"silo {silo} holds no labels: {cure}")


def label_silo(labels_at: str | None, placement: Placement) -> str:
    """The silo that holds the labels (None: the first); refuse one that does not."""
    silos = placement.topology.silos
    if labels_at is not None and labels_at not in silos:
        raise SettingError(f"labels_at: {labels_at!r}{nearest(labels_at, silos)}")
    holder = labels_at or silos[0]
    labelled = ", ".join(silo for silo in silos if placement.y[silo] is not None)
    cure = f"labels_at must name the silo that holds them (here: {labelled or 'none'})"
    need_labels(placement, (holder,), cure)
    return holder


def tally(*lines: Entry) -> Bill:
    """(tier, direction, kind, messages, bytes) lines as a bill; what is never sent is left out."""
    return {
        Line(tier, direction, kind.name): (messages, size)
        for tier, direction, kind, messages, size in lines
        if messages
    }
