"""The verbs for a query, and which messages may pass then.

An algorithm's `predict` gives scores to every hub. Here one silo asks: what would go to all hubs
goes to its hub alone, and the other hubs compute no scores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...algorithms.contract import Step
from ...config.runfile import RunFile
from ...core.errors import SettingError
from ...core.placed import AtClients, AtHubs, Placed, RowMap, Rows
from ...engines.party.engine import PartyEngine
from ...fabric.kinds import Key, Kind, Message
from ...fabric.local_work import Local
from ...fabric.permits import PayloadForm, Permits, Route, form_of, route_of
from ...fabric.schedule import Everyone, Moment
from ...runs.run import Run
from ...transports.memory import MemoryTransport
from ..agreement.shared_facts import SharedFacts


class QueryEngine(PartyEngine):
    """`asker`: the silo that gets the scores. `without`: a silo adds nothing to rows that it does
    not have."""

    def __init__(self, *args: Any, asker: str, without: bool = False, **options: Any):
        super().__init__(*args, **options)
        self.asker, self.without = asker, without

    def exchange(self, kind: Kind, value: AtHubs[Any]) -> AtHubs[dict[str, Any]]:
        return self.collect(kind, value, to=self.asker)

    def spread(self, kind: Kind, value: AtHubs[Mapping[str, Any]], frm: str | None = None) -> Any:
        if frm is None or self.scope != self.silos:
            return super().spread(kind, value, frm)
        return super(QueryEngine, self.within(self.asker)).spread(kind, value, frm)

    def at_hubs(self, f: Local, *values: Placed, steps: int = 0) -> AtHubs[Any]:
        """At the hubs where all arguments live."""
        moved = [value for value in values if isinstance(value, AtHubs)]
        places = tuple(hub for hub in self.scope if all(hub in v.places for v in moved))
        return self._at([hub for hub in self._hubs() if hub in places], places, f, values, steps)

    def gather(self, kind: Kind, value: AtClients[Tensor], where: RowMap) -> AtHubs[Rows]:
        """Rows that nobody has are zeros; `without`, they count."""
        gathered = super().gather(kind, value, where)
        if not self.without:
            return gathered
        counted = {
            hub: Rows(r.value, torch.ones_like(r.mask)) for hub, r in self.read(gathered).items()
        }
        return AtHubs(counted, gathered.places)


@dataclass(frozen=True)
class ExpectedMessages:
    """`adds_up`: scores are sums of what silos embed, so that a silo can be left out of them."""

    forms: Mapping[Route, frozenset[PayloadForm]]
    adds_up: bool


def expected_messages(file: RunFile, facts: SharedFacts, asker: str) -> ExpectedMessages:
    """The messages of a prediction for a silo, found by a dry run on made-up rows; the same at
    every party."""
    run = facts.run(file)
    if run.algorithm.predicts_alone:
        raise SettingError(
            f"{file.values['algorithm']['name']}: every silo predicts by itself, so there is no "
            "score to ask the others for"
        )
    parties = run.placement.topology.parties
    seen = _NotingTransport(parties)
    fed = _NotingEngine(
        run.task,
        run.shapes,
        run.placement.view(parties),
        hosted=parties,
        transport=seen,
        seed=0,
        schedule=Everyone(),
        asker=asker,
    )
    fed.begin(0)
    rows = Step(*fed.minibatch(torch.arange(run.placement.size)))
    run.algorithm.predict(fed, run.algorithm.start(fed), rows)
    forms: dict[Route, set[PayloadForm]] = defaultdict(set)
    for message in seen.messages:
        row = fed.kinds[message.key.move].row is not None
        forms[route_of(message.kind, message.source, message.to)].add(form_of(message.payload, row))
    return ExpectedMessages(
        {where: frozenset(allowed) for where, allowed in forms.items()}, _adds_up(run, fed)
    )


def all_permits(expected: ExpectedMessages, more: Mapping[Route, PayloadForm]) -> Permits:
    """Of the algorithm's messages, and those around them (availability.py)."""
    return Permits({**expected.forms, **{where: frozenset([form]) for where, form in more.items()}})


def _adds_up(run: Run, fed: _NotingEngine) -> bool:
    if len(run.placement.topology.silos) == 1:
        return True
    embedded = {kind.row for kind in fed.kinds.values()} <= {"embedding", "scores", None}
    plain = run.task.head is None and run.task.combine == "sum"
    return run.algorithm.joint and plain and embedded


class _NotingTransport(MemoryTransport):
    def __init__(self, parties: Any):
        super().__init__(parties)
        self.messages: list[Message] = []

    def send(self, message: Message) -> None:
        self.messages.append(message)
        super().send(message)


class _NotingEngine(QueryEngine):
    """Notes the kind of every move, by its number."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.kinds: dict[int, Kind] = {}

    def _next(self, kind: Kind) -> tuple[Key, Moment]:
        key, moment = super()._next(kind)
        self.kinds[key.move] = kind
        return key, moment
