"""A dry run: one round of an algorithm on a reference engine of its own, with a note of every
message and every declared local step. The run that it explains is not changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..algorithms.contract import Algorithm
from ..algorithms.verification.battery_cases import cases
from ..core import tree
from ..core.placed import AtClients, AtHubs, Placed
from ..core.registry import algorithms
from ..core.topology import Client
from ..data.partition.arrays import partition
from ..engines.party.engine import PartyEngine
from ..fabric.kinds import Direction, Key, Kind, Message, Tier
from ..fabric.local_work import Local
from ..fabric.schedule import Everyone, Moment, Schedule
from ..models.library import linear
from ..models.task import Task
from ..runs.loop import play
from ..runs.run import Run
from ..runs.stopping import Validated
from ..transports.memory import MemoryTransport
from .computable import computable
from .explanation import Explanation, LocalWork, SentMessage, Shape


def explain(run: Run, schedule: Schedule | None = None) -> Explanation:
    """Every message of a round of this run, with everyone there or by a schedule."""
    placement, fed = run.placement, run.fed
    parties, notes = placement.topology.parties, _Notes()
    watched = _Watched(
        run.task,
        run.shapes,
        run.rows.view(parties),
        hosted=parties,
        transport=_Listening(parties, notes),
        seed=fed.streams.seed,
        schedule=schedule or Everyone(),
        device=fed.device,
    )
    watched.notes = notes
    played = run.played.each_round() if isinstance(run.played, Validated) else run.played
    for _ in play(watched, played, 1):
        pass
    return Explanation(
        _name(run.algorithm),
        placement.topology,
        notes.kinds,
        tuple(notes.sent),
        tuple(notes.work),
        run.algorithm.protections(),
        tuple(run.algorithm.promises()),
        tuple(computable(run, notes.sent)),
    )


def explain_algorithm(name: str) -> Explanation:
    """Every message of a round of an algorithm with its default settings, on a small federation
    that is made up: two silos with two clients each (one, or a server too, if it wants that), 200
    rows, linear blocks, three classes; or on the algorithm's own sample."""
    kind = algorithms[name]
    sample = cases.of(kind).sample
    if sample is not None:
        return explain(Run(replace(kind(), batch=None), *sample(1, None, False)))
    draw = torch.Generator().manual_seed(0)
    widths = {"bank": 4} if kind.one_silo else {"bank": 4, "insurer": 3}
    x = {silo: torch.randn(200, width, generator=draw) for silo, width in widths.items()}
    y = torch.randint(3, (200,), generator=draw)
    blocks, rows = {j: linear(width, 3) for j, width in widths.items()}, dict.fromkeys(x, 2)
    placement, task = partition(x, y, rows), Task(blocks, "cross-entropy")
    if kind.needs_server:
        placement = placement.with_server()
        task = Task(blocks, "cross-entropy", middle=linear(3, 5), head=linear(5, 3))
    return explain(Run(kind(), task, placement))


def _name(algorithm: Algorithm) -> str:
    known = (name for name in algorithms if algorithms[name] is type(algorithm))
    return next(known, type(algorithm).__name__)


class _Notes:
    """The messages and local work so far; `kinds` and `directions` by number of the move."""

    def __init__(self) -> None:
        self.kinds: dict[int, Kind] = {}
        self.directions: dict[int, Direction] = {}
        self.sent: list[SentMessage] = []
        self.work: list[LocalWork] = []

    def message(self, message: Message) -> None:
        tier: Tier = "top"
        direction = self.directions.get(message.key.move, "across")
        if isinstance(message.to, Client):
            tier, direction = "bottom", "down"
        elif isinstance(message.source, Client):
            tier, direction = "bottom", "up"
        shapes = tuple(
            Shape(name, tuple(a.shape), str(a.dtype).removeprefix("torch."))
            for name, a in tree.named(message.payload).items()
        )
        size = tree.nbytes(message.payload)
        move = message.key.move
        self.sent.append(
            SentMessage(
                move, message.kind, tier, direction, message.source, message.to, shapes, size
            )
        )


class _Listening(MemoryTransport):
    """Notes what it delivers in a round."""

    def __init__(self, parties: Any, notes: _Notes):
        super().__init__(parties)
        self._notes = notes

    def send(self, message: Message) -> None:
        if message.key.move > 0:
            self._notes.message(message)
        super().send(message)


class _Watched(PartyEngine):
    """The reference engine; it notes what messages do not say."""

    notes: _Notes

    def _next(self, kind: Kind) -> tuple[Key, Moment]:
        key, moment = super()._next(kind)
        self.notes.kinds[key.move] = kind
        return key, moment

    def _post(
        self,
        key: Key,
        kind: Kind,
        direction: Direction,
        source: str,
        to: Sequence[str],
        payload: Any,
    ) -> Any:
        self.notes.directions[key.move] = direction
        return super()._post(key, kind, direction, source, to, payload)

    def at_clients(self, f: Local, *values: Placed, steps: int = 0) -> AtClients[Any]:
        if steps:
            self.notes.work.append(LocalWork(self.now.move, self.scope, True, steps))
        return super().at_clients(f, *values, steps=steps)

    def at_hubs(self, f: Local, *values: Placed, steps: int = 0) -> AtHubs[Any]:
        if steps:
            self.notes.work.append(LocalWork(self.now.move, self.scope, False, steps))
        return super().at_hubs(f, *values, steps=steps)

    def at(self, party: str, f: Local, *values: Placed, steps: int = 0) -> AtHubs[Any]:
        if steps:
            self.notes.work.append(LocalWork(self.now.move, (party,), False, steps))
        return super().at(party, f, *values, steps=steps)
