"""A run between two rounds, out of its engine: what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..fabric.ledger import Ledger
from ..fabric.schedule import Recorded


@dataclass(frozen=True)
class Snapshot:
    """A run after so many rounds, out of its engine: {field: {party: tree}}, what was sent and who
    dropped out until then."""

    round: int
    state: Mapping[str, Mapping[Any, Any]]
    ledger: Ledger
    record: Recorded
    clock: Mapping[str, Any] | None = None  # everyone's virtual time, as JSON
    releases: Mapping[str, Any] = field(default_factory=dict)  # of rows, as JSON
