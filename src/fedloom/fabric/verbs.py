"""The verbs that an algorithm is written in.

Local work is a pure function applied where values live (`at_clients`, `at_hubs`, `at`). The only
way for anything to leave a party is a move, which names its kind:

    down    to_clients, scatter, spread (clients)
    up      gather, mean, collect (clients)
    across  exchange; collect and spread between the hubs and one party

`keep` makes client-held state whole, `hold` lets an engine compute a value once, `within` narrows
the verbs to one silo, `visits` is how asynchronous algorithms go on. Every engine runs the same
round() by giving these verbs its own meaning of "at each client". What an engine must give besides
is in engine.py; an algorithm sees this file only.
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
    """Some or all parties of a federation, seen from above.

    `silos` are all silos, `part` each silo's part of the task, `parts` all of them, `shapes` the
    shapes of messages, `size` the number of common rows, `streams` all randomness, `releases` how
    often rows were released with noise.
    """

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
        """The round going on, from 0."""

    # Values

    @abstractmethod
    def known(self, value: Any) -> Known[Any]:
        """Common knowledge: every party derives it, nobody sends it."""

    @property
    @abstractmethod
    def parts(self) -> Known[dict[str, Part]]:
        """All silos' parts of the task: the run file describes them to everyone."""

    @property
    @abstractmethod
    def names(self) -> AtHubs[tuple[str, ...]]:
        """At each hub, its clients' names in their order."""

    @abstractmethod
    def within(self, silo: str) -> Self:
        """The same verbs on one silo, with the same move numbers."""

    @abstractmethod
    def sample(self, rows: int, minibatches: int, round: int) -> Tensor:
        """The rows of a round's minibatches, one a line, which every party draws alike."""

    @abstractmethod
    def minibatch(self, ids: Tensor, steps: int | None = None) -> tuple[AtClients[Batch], RowMap]:
        """Each client's own rows of a minibatch, and where they sit in it. `ids` are canonical row
        numbers: [B], or [Q, B] for Q minibatches at once (positions then count through all).
        `steps`: how many local steps will be taken on them, if that is known; an engine may lay
        them out accordingly."""

    @abstractmethod
    def read(self, value: Placed) -> dict[Any, Any]:
        """Out of the fabric: the value at every party hosted here (for records and tests)."""

    @abstractmethod
    def renew(self, value: AtHubs[Any], newer: AtHubs[Any]) -> AtHubs[Any]:
        """The value, with the newer one at the hubs where that lives. Nothing moves."""

    # Local work. `steps`: how many local steps f takes, for the clock; all else takes no time.

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
        """Client-held state: the new value where the hub accepted all of this round so far."""

    @abstractmethod
    def hold(self, value: AtClients[Any]) -> AtClients[Any]:
        """The same value; an engine that is lazy computes it once. Not for values with rows."""

    # Noise: from each client's own streams, which nobody else can draw. What it is drawn for is
    # booked, for everyone in a silo.

    @abstractmethod
    def row_noise(
        self,
        where: RowMap,
        ids: Tensor,
        sizes: Mapping[str, tuple[int, int]],
        once: Once | None = None,
    ) -> AtClients[Noise]:
        """For a release of a minibatch's rows (`ids`), so many normal and uniform numbers for each.
        `once`: the same ones each time a row is asked for, which is booked once."""

    @abstractmethod
    def noise(
        self, ids: Tensor, steps: int, sizes: Mapping[str, tuple[int, ...]]
    ) -> AtClients[Tensor]:
        """Normal numbers of the shape that is a silo's, at each of its clients, for so many local
        steps on each of a minibatch's rows."""

    # Moves inside a silo

    @abstractmethod
    def to_clients(
        self, kind: Kind, value: AtHubs[Any], holding: RowMap | None = None
    ) -> AtClients[Any]:
        """The hub's value at each of its clients; `holding`: only at those with rows in the map,
        and the others sit this round out."""

    @abstractmethod
    def scatter(self, kind: Kind, rows: AtHubs[Rows], where: RowMap) -> AtClients[Rows]:
        """To each client its own rows (the paper's projection pi)."""

    @abstractmethod
    def gather(self, kind: Kind, value: AtClients[Tensor], where: RowMap) -> AtHubs[Rows]:
        """Union by row. Rows of clients who did not answer are masked."""

    @abstractmethod
    def mean(
        self,
        kind: Kind,
        value: AtClients[Any],
        *,
        otherwise: AtHubs[Any],
        weight: AtClients[Tensor] | None = None,
    ) -> AtHubs[Any]:
        """Mean over those who answered; where nobody did, or all weights are 0: `otherwise`."""

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
        mine: AtHubs[Any],
        desk: AtHubs[Any],
        *,
        at: str,
        reply: Kind,
        turns: int,
        group: int = 1,
        again: Local | None = None,
        given: Any = None,
    ) -> tuple[AtHubs[Any], AtHubs[Any]]:
        """`turns` answers of the master `at`, each to a group of visitors: what every silo has
        (`mine`) and what the master has (`desk`) afterwards. `given`: common knowledge.

        ask(silo, mine, visit) -> ({kind: value for the master}, what the silo keeps for learn)
        again(parts, given, desk, visits, asks) -> for each silo, whether the master calls it
        answer(parts, given, desk, visits, asks) -> (desk, {visitor: reply})
        learn(silo, mine, visit, kept, reply) -> what the visitor has afterwards

        The desk given here stays as it is: `again` and `answer` get the round's own copy, which
        they may write into. What `again` writes must be what `answer` would write anyway.
        """
