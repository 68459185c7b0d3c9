"""The verbs that algorithms are written in.

Local work is a pure function applied where values live (`at_clients`, `at_hubs`, `at`). A value
leaves a party by a move only, which names its kind:

    down    to_clients, scatter, spread (clients)
    up      gather, mean, collect (clients)
    across  exchange; collect and spread between the hubs and one party

`keep` updates state at clients, `hold` lets an engine compute a value once, `within` narrows the
verbs to one silo, `visits` is the loop of asynchronous algorithms. Every engine runs the same
round(), with its own implementation of these verbs. Other methods of engines are in engine.py; an
algorithm uses this file only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from ..core.placed import AtClients, AtHubs, Batch, Known, Noise, PerSilo, Placed, RowMap, Rows
from ..core.rng import Streams
from ..models.task import Part, Shapes
from .kinds import Kind
from .local_work import Local
from .noise import Once
from .releases import Releases
from .visits import Ask, Learn


class Fabric(ABC):
    """Some or all parties of a federation.

    `silos`: all silos; `part`: each silo's part of the task; `parts`: all of them; `shapes`: the
    shapes of messages; `size`: the number of common rows; `streams`: all random streams;
    `releases`: how often rows were released with noise."""

    silos: tuple[str, ...]
    part: PerSilo[Part]
    shapes: Shapes
    size: int
    streams: Streams
    has_head: bool
    dtype: torch.dtype
    device: torch.device
    releases: Releases

    @property
    @abstractmethod
    def round(self) -> int:
        """The current round, from 0."""

    # Values

    @abstractmethod
    def known(self, value: Any) -> Known[Any]:
        """Common knowledge: every party derives it without a message."""

    @property
    @abstractmethod
    def parts(self) -> Known[dict[str, Part]]:
        """All silos' parts of the task: common knowledge from the run file."""

    @property
    @abstractmethod
    def names(self) -> AtHubs[tuple[str, ...]]:
        """At each hub, its clients' names in their order."""

    @abstractmethod
    def within(self, silo: str) -> Self:
        """The same verbs on one silo, with the same move numbers."""

    @abstractmethod
    def sample(self, rows: int, minibatches: int, round: int) -> Tensor:
        """The rows of a round's minibatches, [minibatches, rows]: the same at every party."""

    @abstractmethod
    def minibatch(self, ids: Tensor, steps: int | None = None) -> tuple[AtClients[Batch], RowMap]:
        """Each client's own rows of a minibatch, and their positions in it. `ids`: canonical row
        numbers, [B], or [Q, B] for Q minibatches at once (positions then run through all of them).
        `steps`: the number of local steps that will use them, if known; an engine may choose their
        layout by it."""

    @abstractmethod
    def read(self, value: Placed) -> dict[Any, Any]:
        """The value at every party hosted here, for records and tests; not for algorithms."""

    @abstractmethod
    def renew(self, value: AtHubs[Any], newer: AtHubs[Any]) -> AtHubs[Any]:
        """The value, replaced by the newer one at the hubs where that lives. Nothing is sent."""

    # Local work. `steps`: the number of local steps in f, for the virtual clock.

    @abstractmethod
    def at_clients(self, f: Local, *values: Placed, steps: int = 0) -> AtClients[Any]:
        """f at every client."""

    @abstractmethod
    def at_hubs(self, f: Local, *values: Placed, steps: int = 0) -> AtHubs[Any]:
        """f at every hub."""

    @abstractmethod
    def at(self, party: str, f: Local, *values: Placed, steps: int = 0) -> AtHubs[Any]:
        """f at one hub, or at the server."""

    @abstractmethod
    def keep(self, new: AtClients[Any], old: AtClients[Any]) -> AtClients[Any]:
        """State at clients: the new value where the hub has accepted all of this round so far."""

    @abstractmethod
    def hold(self, value: AtClients[Any]) -> AtClients[Any]:
        """The same value, which a lazy engine computes only once. Not for values with rows."""

    # Noise: from each client's own streams, which nobody else can draw. Every use is counted in
    # `releases`, for all clients of a silo.

    @abstractmethod
    def row_noise(
        self,
        where: RowMap,
        ids: Tensor,
        sizes: Mapping[str, tuple[int, int]],
        once: Once | None = None,
    ) -> AtClients[Noise]:
        """Noise for a release of a minibatch's rows (`ids`). `sizes`: how many normal and uniform
        numbers each row of a silo gets. `once`: a row always gets the same noise, and is counted
        once."""

    @abstractmethod
    def noise(
        self, ids: Tensor, steps: int, sizes: Mapping[str, tuple[int, ...]]
    ) -> AtClients[Tensor]:
        """Normal numbers at each client, for `steps` local steps on each of a minibatch's rows.
        `sizes`: the shape of the numbers in each silo."""

    # Moves inside a silo

    @abstractmethod
    def to_clients(
        self, kind: Kind, value: AtHubs[Any], holding: RowMap | None = None
    ) -> AtClients[Any]:
        """The hub's value at each of its clients. `holding`: only at clients with rows in this map;
        the others sit this round out."""

    @abstractmethod
    def rejoin(self) -> None:
        """Those who sit this round out (`holding`) take part again, for what is left of it."""

    @abstractmethod
    def scatter(self, kind: Kind, rows: AtHubs[Rows], where: RowMap) -> AtClients[Rows]:
        """To each client its own rows (the paper's projection pi)."""

    @abstractmethod
    def gather(self, kind: Kind, value: AtClients[Tensor], where: RowMap) -> AtHubs[Rows]:
        """All rows of a silo at its hub. Rows of clients who did not answer are masked."""

    @abstractmethod
    def mean(
        self,
        kind: Kind,
        value: AtClients[Any],
        *,
        otherwise: AtHubs[Any],
        weight: AtClients[Tensor] | None = None,
    ) -> AtHubs[Any]:
        """Mean over the clients who answered; `otherwise` where nobody did, or all weights are
        0."""

    # Moves between hubs, or with the server

    @abstractmethod
    def exchange(self, kind: Kind, value: AtHubs[Any]) -> AtHubs[dict[str, Any]]:
        """Every hub's value at every hub, its own included, in hub order."""

    @abstractmethod
    def collect(
        self, kind: Kind, value: AtHubs[Any] | AtClients[Any], to: str | None = None
    ) -> AtHubs[dict[str, Any]]:
        """Every hub's value at one party, {hub: value}; of a value at clients, every client's at
        its own hub, {client: value}."""

    @abstractmethod
    def spread(self, kind: Kind, value: AtHubs[Mapping[str, Any]], frm: str | None = None) -> Any:
        """From one party, to each hub its own of {hub: value}; without `frm`, from each hub, to
        each of its clients its own of {client: value}."""

    @abstractmethod
    def visits(
        self,
        ask: Ask,
        answer: Local,
        learn: Learn,
        own: AtHubs[Any],
        server_table: AtHubs[Any],
        *,
        at: str,
        reply: Kind,
        turns: int,
        group: int = 1,
        again: Local | None = None,
        given: Any = None,
    ) -> tuple[AtHubs[Any], AtHubs[Any]]:
        """The loop of an asynchronous algorithm: `turns` answers of the master `at`, each to
        `group` visitors. `own`: the state of every silo; `server_table`: the state of the master.
        Returns both. `given`: common knowledge.

        ask(silo, own, visit) -> ({kind: value for the master}, what the silo keeps for learn)
        again(parts, given, server_table, visits, asks) -> for each silo, whether to call it
        answer(parts, given, server_table, visits, asks) -> (server_table, {visitor: reply})
        learn(silo, own, visit, kept, reply) -> the new state of the visitor

        `again` and `answer` get the round's own copy of the server table and may write into it; the
        argument stays unchanged. `again` may write only what `answer` would write, too.
        """
