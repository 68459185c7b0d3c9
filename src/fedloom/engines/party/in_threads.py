"""Each party in a thread of its own; they share nothing but a transport.

Every party gets its own view of the data and runs the whole of round() from its own side, as it
would on a machine of its own.
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
class ThreadedRun:
    """The engine and the final state of each group of parties."""

    engines: dict[tuple[Party, ...], PartyEngine]
    states: dict[tuple[Party, ...], Any]

    @property
    def ledger(self) -> Ledger:
        return Ledger.merged(engine.ledger for engine in self.engines.values())

    @property
    def record(self) -> Recorded:
        return Recorded.merged(engine.record for engine in self.engines.values())


def run_in_threads(
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
) -> ThreadedRun:
    """`play` runs an engine to its end and returns the state. `groups`: which parties share a
    thread (default: none do). `by_arrival`: silos visit a master as they arrive."""
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
    return ThreadedRun(engines, {group: task.result() for group, task in running.items()})


def one_silo_each(placement: Placement) -> list[list[Party]]:
    """Groups that put a hub and all its clients together; the server is by itself."""
    groups: list[list[Party]] = []
    for silo in placement.topology.silos:
        members: list[Party] = [silo, *placement.topology.of(silo)]
        groups.append(members)
    if placement.topology.server:
        groups.append([SERVER])
    return groups
