"""What the cost of a round of a run depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..algorithms.verification.costs import Facts
from ..core import tree
from ..models.joint import split_head

if TYPE_CHECKING:
    from .run import Run


def facts_of(run: Run, holders: Mapping[str, int] | None, round: int | None) -> Facts:
    """Of a round that was run, or of any."""
    topology, parts = run.placement.topology, run.fed.parts.value
    clients = {silo: len(names) for silo, names in topology.clients.items()}
    thetas = {j: part.initial(run.fed.streams) for j, part in parts.items()}
    head = next(iter(thetas.values())).head
    return Facts(
        clients,
        holders or clients,
        run.placement.size,
        {silo: tree.nbytes(theta) for silo, theta in thetas.items()},
        tree.nbytes(head),
        run.shapes,
        topology.clients,
        thetas,
        0 if run.task.middle is None else tree.nbytes(split_head(head)[0]),
        1 if round is None else round,
        () if round is None else tuple(run.record.visits.get(round, ())),
    )
