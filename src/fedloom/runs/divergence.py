"""Divergence: when a run is stopped because its training loss went far above its start, and which
setting to change, with the numbers of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..algorithms.contract import Algorithm
from ..algorithms.shared.hub_steps import HubAdam
from ..algorithms.shared.step_sizes import step_size
from ..algorithms.shared.tiered import TieredSGD
from ..core.errors import DivergedError
from ..records.record import Record

if TYPE_CHECKING:
    from .run import Run


def check_divergence(run: Run, bound: float | None) -> None:
    """DivergedError if the last record's training loss is not finite, or above `bound` times that
    of the first."""
    why = divergence(run.records, bound)
    if why is not None:
        raise DivergedError(f"round {run.round}: training diverged: {why}; {cure(run)}")


def divergence(records: Sequence[Record], bound: float | None) -> str | None:
    """In numbers, why training counts as diverged; None: it does not."""
    if len(records) < 2:
        return None
    start, last = records[0].train_loss, records[-1].train_loss
    best = min(records, key=lambda record: record.train_loss)
    if math.isfinite(last):
        if bound is None or not last > bound * start > 0:
            return None
        how = f"the training loss is {last:.4g}, {last / start:.3g} times its start ({start:.4g})"
    else:
        how = f"the training loss is {last} (at the start {start:.4g})"
    if best.train_loss < start:
        how += f", after {best.train_loss:.4g} in round {best.round}"
    return how


def cure(run: Run) -> str:
    """What to change: most promising first."""
    changes = [*_of_hubs(run), *_of_steps(run.algorithm, run.round)]
    if not changes:
        return "a smaller step size is the usual cure"
    first, *others = changes
    return f"try {first}" + "".join(f", or {other}" for other in others)


def _of_hubs(run: Run) -> list[str]:
    algorithm = run.algorithm
    if not isinstance(algorithm, TieredSGD):
        return []
    silos, step = algorithm.silos_at_once(run.fed), algorithm.hub_step
    if isinstance(step, HubAdam):
        return [f"a smaller lr in [algorithm.hub] (now {step.lr:g})"]
    if step is not None:
        return [f"a smaller relaxation in [algorithm.hub] (now {step.rate(silos):.3g})"]
    if silos == 1:
        return []
    return [
        f'relaxation = "auto" in [algorithm.hub] (1/{silos} here: {silos} silos correct the same '
        "error at the same time)"
    ]


def _of_steps(algorithm: Algorithm, round: int) -> list[str]:
    """Of the local steps."""
    steps, lr = getattr(algorithm, "local_steps", 1), getattr(algorithm, "lr", None)
    changes = []
    if lr is not None:
        changes.append(f"a smaller lr (now {step_size(lr)(max(0, round * steps - 1)):g})")
    if steps > 1 and isinstance(algorithm, TieredSGD):
        changes.append(f"fewer local_steps (now {steps})")
    return changes
