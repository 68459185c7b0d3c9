"""What all parties of a federation know before the first round, besides the run file.

It says who takes part, how many rows are common, which shapes rows and labels have, and which
messages may pass (those that `fedloom explain` lists). No row and no id is in it. It is part of the
fingerprint that parties compare, and its file has a digest over all of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.runfile import RunFile
from ...core import seal
from ...core.errors import DamagedError, DataError, reason
from ...core.topology import Topology
from ...engines.party.reference import reference
from ...explain import Explanation, explain
from ...fabric.permits import PayloadForm, Permits, Route, form, route_of
from ...fabric.schedule import Everyone, Recorded, Turn
from ...models.task import Shapes
from ...runs.loop import play
from ...runs.run import Run
from .shared_facts import SharedFacts, spec_json, spec_of

CURE = "copy it from another party of this federation"


@dataclass(frozen=True)
class Agreement:
    """Common knowledge."""

    facts: SharedFacts
    shapes: Shapes
    permits: Permits

    @staticmethod
    def of(file: RunFile, facts: SharedFacts) -> Agreement:
        """What follows from a run file and the shared facts, the same at every party."""
        run = facts.run(file)
        return Agreement(facts, run.shapes, permits_of(run))

    @property
    def topology(self) -> Topology:
        return self.facts.topology

    @property
    def size(self) -> int:
        return self.facts.size

    def to_json(self) -> dict[str, Any]:
        shapes = self.shapes
        return {
            **self.facts.to_json(),
            "shapes": {
                "features": {silo: spec_json(spec) for silo, spec in shapes.features.items()},
                "width": dict(shapes.width),
                "joint": shapes.joint,
                "scores": shapes.scores,
                "label": spec_json(shapes.label),
                "dtype": spec_json(((), shapes.dtype)),
                "middle": shapes.middle,
            },
            "messages": self.permits.to_json(),
        }

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Agreement:
        saved_shapes = saved["shapes"]
        shapes = Shapes(
            {silo: spec_of(spec) for silo, spec in saved_shapes["features"].items()},
            {silo: int(width) for silo, width in saved_shapes["width"].items()},
            int(saved_shapes["joint"]),
            int(saved_shapes["scores"]),
            spec_of(saved_shapes["label"]),
            spec_of(saved_shapes["dtype"])[1],
            int(saved_shapes["middle"]),
        )
        return Agreement(SharedFacts.from_json(saved), shapes, Permits.from_json(saved["messages"]))

    def write(self, path: Path) -> None:
        seal.write_json(path, self.to_json())

    @staticmethod
    def read(path: Path) -> Agreement:
        try:
            return Agreement.from_json(seal.read_json(path, CURE))
        except DamagedError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise DataError(f"{path} is no agreement ({reason(problem)})") from None


def permits_of(run: Run) -> Permits:
    """What the messages of a run may be."""
    forms: dict[Route, set[PayloadForm]] = defaultdict(set)
    for explanation in _explained(run):
        for sent in explanation.sent:
            tensors = [(part.name, part.dtype, part.shape) for part in sent.shapes]
            rows = explanation.kinds[sent.move].row is not None
            forms[route_of(sent.kind, sent.source, sent.to)].add(form(tensors, rows))
    return Permits({where: frozenset(allowed) for where, allowed in forms.items()})


def _explained(run: Run) -> Iterator[Explanation]:
    """A round; where silos visit a master, one for each way to exchange their turns, in a ring."""
    if not run.algorithm.asynchronous:
        yield explain(run)
        return
    fed, silos = run.fed, run.placement.topology.silos
    seed, device = fed.streams.seed, fed.device
    dry = reference(
        run.task, run.shapes, run.placement, seed=seed, schedule=Everyone(), device=device
    )
    for _ in play(dry, run.algorithm, 1):
        pass
    ring = {silo: silos[(place + 1) % len(silos)] for place, silo in enumerate(silos)}
    turns = [turn.visitors for turn in dry.record.visits[0]]
    for _ in silos:
        yield explain(run, Recorded(rounds=1, visits={0: [Turn(who) for who in turns]}))
        turns = [tuple(ring[silo] for silo in who) for who in turns]
