"""All parts of a job, checked before any is trained."""

from __future__ import annotations

from typing import NamedTuple

from ..config.runfile import RunFile
from ..data.federated import Federated
from ..engines.multiprocess.ranks import Ranks
from . import contributions
from .build import build_parts, build_pooled
from .pooled.baseline import Pooled
from .run import Run


class Parts(NamedTuple):
    """`runs` are trained by rounds: the run itself, its baselines, and without one silo each, if
    that is asked for. `pooled` baselines are no federation, and are trained in one go."""

    runs: dict[str, Run]
    pooled: dict[str, Pooled]

    @property
    def main(self) -> Run:
        return next(iter(self.runs.values()))

    @property
    def names(self) -> list[str]:
        return [*self.runs, *self.pooled]


def all_parts(file: RunFile, data: Federated, ranks: Ranks | None = None) -> Parts:
    """The parts that a run file asks for; what cannot be trained or judged is refused."""
    runs = build_parts(file, data, ranks)
    main = next(iter(runs.values()))
    contributions.check(file, main)
    without = contributions.build_without(file, data, main, ranks)
    return Parts({**runs, **without}, build_pooled(file, data))
