"""What all parties of a federation know before the first round, besides the run file.

Who takes part, how many rows are common, of what shape each silo's rows and the labels are, and
which messages may pass: what `fedloom explain` lists. No row and no id is in it. It is part of the
fingerprint that parties compare.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..build import build_algorithm, build_task
from ..config.runfile import RunFile
from ..data.dataset import Goal
from ..data.federated import Federated
from ..data.placement import Placement
from ..errors import DataError
from ..explain import Explanation, explain
from ..federation.permits import Form, Permits, Way, form, way
from ..federation.schedule import Everyone, Recorded, Turn
from ..federation.topology import SERVER, Client, Party, Topology
from ..files import write_json
from ..models.task import Shapes, Spec, Task
from ..run import Run, play, reference


@dataclass(frozen=True)
class Agreement:
    """Common knowledge. `outputs`: scores that a model gives for a row."""

    topology: Topology
    size: int
    goal: Goal
    classes: tuple[str, ...]
    outputs: int
    shapes: Shapes
    permits: Permits

    @staticmethod
    def of(run: Run) -> Agreement:
        """What the parties of a run would have to agree on."""
        data = run.data
        assert data is not None
        topology = run.placement.topology
        shapes, permits = run.shapes, permits_of(run)
        size, goal, classes = run.placement.size, data.goal, data.classes
        return Agreement(topology, size, goal, classes, data.outputs, shapes, permits)

    @property
    def listeners(self) -> list[str]:
        """Hubs, and the server, in their order: of two, the later dials the earlier."""
        return [*self.topology.silos, *([SERVER] if self.topology.server else [])]

    def peers(self, party: Party) -> tuple[list[Party], list[Party]]:
        """Whom a party dials, and who dials it."""
        if isinstance(party, Client):
            return [party.silo], []
        place = self.listeners.index(party)
        own = self.topology.of(party) if party != SERVER else ()
        return [*self.listeners[:place]], [*own, *self.listeners[place + 1 :]]

    def task(self, file: RunFile) -> Task:
        """The task, as far as shapes tell."""
        return build_algorithm(file).trains(build_task(file, self._outline()))

    def _outline(self) -> Federated:
        """One made-up row in each silo."""
        x = {silo: self.shapes.made_up(silo, 1)[0] for silo in self.topology.silos}
        y = torch.zeros(1, self.outputs)
        if self.goal == "classes":
            y = torch.full((1,), self.outputs - 1)
        elif self.outputs == 1:
            y = torch.zeros(1)
        owner = {silo: torch.zeros(1, dtype=torch.int64) for silo in x}
        rows = Placement(self.topology, np.arange(1), owner, x, dict.fromkeys(x, y))
        return Federated("agreed", self.goal, rows, classes=self.classes)

    def to_json(self) -> dict[str, Any]:
        shapes = self.shapes
        return {
            "clients": {silo: list(names) for silo, names in self.topology.clients.items()},
            "server": self.topology.server,
            "rows": self.size,
            "goal": self.goal,
            "classes": list(self.classes),
            "outputs": self.outputs,
            "features": {silo: _told(spec) for silo, spec in shapes.features.items()},
            "label": _told(shapes.label),
            "width": dict(shapes.width),
            "joint": shapes.joint,
            "scores": shapes.scores,
            "middle": shapes.middle,
            "dtype": _name(shapes.dtype),
            "messages": self.permits.to_json(),
        }

    @staticmethod
    def from_json(told: Mapping[str, Any]) -> Agreement:
        clients = {silo: tuple(names) for silo, names in told["clients"].items()}
        shapes = Shapes(
            {silo: _spec(spec) for silo, spec in told["features"].items()},
            {silo: int(width) for silo, width in told["width"].items()},
            told["joint"],
            told["scores"],
            _spec(told["label"]),
            _dtype(told["dtype"]),
            told["middle"],
        )
        return Agreement(
            Topology(clients, told["server"]),
            told["rows"],
            told["goal"],
            tuple(told["classes"]),
            told["outputs"],
            shapes,
            Permits.from_json(told["messages"]),
        )

    def write(self, path: Path) -> None:
        write_json(path, self.to_json())

    @staticmethod
    def read(path: Path) -> Agreement:
        try:
            return Agreement.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise DataError(f"{path} is no agreement ({problem!r})") from None


def permits_of(run: Run) -> Permits:
    """What the messages of a run may be."""
    forms: dict[Way, set[Form]] = defaultdict(set)
    for found in _explained(run):
        for sent in found.sent:
            tensors = [(part.name, part.dtype, part.shape) for part in sent.shapes]
            rows = found.kinds[sent.move].row is not None
            forms[way(sent.kind, sent.source, sent.to)].add(form(tensors, rows))
    return Permits({where: frozenset(each) for where, each in forms.items()})


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


def _told(spec: Spec) -> list[Any]:
    return [list(spec[0]), _name(spec[1])]


def _spec(told: Any) -> Spec:
    shape, dtype = told
    return tuple(int(size) for size in shape), _dtype(dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name} is no type of numbers")
    return found
