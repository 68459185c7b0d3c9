"""The reference engine: a party engine that hosts all parties over in-memory mailboxes."""

from __future__ import annotations

from typing import Any

from ...data.placement import Placement
from ...models.task import Shapes, Task
from ...transports.memory import MemoryTransport
from .engine import PartyEngine
from .timeouts import Waits


def reference(
    task: Task, shapes: Shapes, placement: Placement, waits: Waits | None = None, **options: Any
) -> PartyEngine:
    """An engine that hosts all parties of this placement."""
    parties = placement.topology.parties
    return PartyEngine(
        task,
        shapes,
        placement.view(parties),
        hosted=parties,
        transport=MemoryTransport(parties),
        waits=waits,
        **options,
    )
