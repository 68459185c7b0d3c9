"""Parties apart: each in a thread of its own, sharing nothing but a transport.

Every party is given its own view of the data and runs the whole of round() from its own side. What
a network run does between machines, this does inside one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ...core.errors import AbortedError
from ...core.topology import SERVER, Party
from ...data.placement import Placement
from ...fabric.ledger import Ledger
from ...fabric.schedule import Recorded, Schedule
from ...models.task import Shapes, Task
from ...transports.base import Transport
from ...transports.memory import MemoryTransport
from .engine import PartyEngine
from .timeouts import Waits

Play = Callable[[PartyEngine], Any]


@dataclass
class Apart:
    """How each group of parties ended."""

    engines: dict[tuple[Party, ...], PartyEngine]
    states: dict[tuple[Party, ...], Any]

    @property
    def ledger(self) -> Ledger:
        return Ledger.merged(engine.ledger for engine in self.engines.values())

    @property
    def record(self) -> Recorded:
        return Recorded.merged(engine.record for engine in self.engines.values())


def run_apart(
    play: Play,
    task: Task,
    shapes: Shapes,
    placement: Placement,
    *,
    seed: int,
    schedule: Schedule,
    waits: Waits | None = None,
    transport: Transport | None = None,
    groups: Sequence[Sequence[Party]] | None = None,
    by_arrival: bool = False,
) -> Apart:
    """`play` runs an engine to its end and returns the state; `groups` says who shares a thread
    (by default nobody does); `by_arrival`: silos visit a master as they come."""
    parties = placement.topology.parties
    link = transport or MemoryTransport(parties)
    split = [tuple(group) for group in groups] if groups else [(party,) for party in parties]
    engines = {
        group: PartyEngine(
            task,
            shapes,
            placement.view(group),
            hosted=group,
            transport=link,
            seed=seed,
            schedule=schedule,
            waits=waits,
            by_arrival=by_arrival,
        )
        for group in split
    }
    with ThreadPoolExecutor(len(engines)) as pool:
        running = {group: pool.submit(play, engine) for group, engine in engines.items()}
    problems = [task.exception() for task in running.values() if task.exception() is not None]
    for problem in sorted(problems, key=lambda p: isinstance(p, AbortedError)):
        assert problem is not None
        raise problem
    return Apart(engines, {group: task.result() for group, task in running.items()})


def one_silo_each(placement: Placement) -> list[list[Party]]:
    """Groups that put a hub and all its clients together; the server is by itself."""
    groups: list[list[Party]] = []
    for silo in placement.topology.silos:
        members: list[Party] = [silo, *placement.topology.of(silo)]
        groups.append(members)
    if placement.topology.server:
        groups.append([SERVER])
    return groups
