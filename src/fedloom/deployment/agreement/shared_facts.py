"""The facts that organisations share of their data, once, before a run: no row and no id.

From them alone every party derives the same task, the same shapes and the same list of permitted
messages, by a dry run on made-up rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...algorithms.contract import Algorithm
from ...config.runfile import RunFile
from ...core.errors import DataError
from ...core.topology import Topology
from ...data.dataset import Goal
from ...data.federated import Federated
from ...data.placement import Placement, View
from ...models.task import Spec, Task
from ...runs.build import build_algorithm, build_task
from ...runs.run import Run
from ...runs.stopping import Validated

FEW = 64  # made-up rows for each client


@dataclass(frozen=True)
class SharedFacts:
    """`size`: common rows that are trained on; `outputs`: scores that a model gives for a row;
    `labelled`: silos whose clients have labels; `validation`: common rows after these, to stop by;
    `class_weights`: where the run file asks for balanced ones."""

    topology: Topology
    size: int
    goal: Goal
    classes: tuple[str, ...]
    outputs: int
    features: Mapping[str, Spec]
    label: Spec
    labelled: tuple[str, ...]
    validation: int = 0
    class_weights: tuple[float, ...] = ()

    @staticmethod
    def of(run: Run, balanced: bool = False) -> SharedFacts:
        """Of a run that has all data in one place; `balanced`: whether its weights of classes
        follow from them."""
        data, rows = run.data, run.placement
        assert data is not None
        labels = rows.labels()
        return SharedFacts(
            rows.topology,
            rows.size,
            data.goal,
            data.classes,
            data.outputs,
            {silo: (tuple(x.shape[1:]), x.dtype) for silo, x in rows.x.items()},
            (tuple(labels.shape[1:]), labels.dtype),
            rows.labelled,
            run.rows.validation,
            getattr(run.task.loss, "class_weights", ()) if balanced else (),
        )

    def run(self, file: RunFile) -> Run:
        """The run on made-up rows: enough of them for a round."""
        batch = getattr(file.algorithm, "batch", None) or 0
        most = max(map(len, self.topology.clients.values()))
        data, engine = self.outline(min(self.size, max(batch, FEW * most))), file.engine
        algorithm = build_algorithm(file)
        data = replace(data, train=algorithm.fitting(data.train))
        if self.validation:
            data = replace(data, validation=self.outline(FEW * most).train)
        run = Run(
            algorithm,
            self._task(file, data),
            data,
            seed=engine.seed,
            engine="reference",
            precision=engine.precision,
        )
        return run if file.stopping is None else run.stop_early(file.stopping, 1, 1)

    def played(self, file: RunFile) -> Algorithm:
        """What the rounds of a real run are: the algorithm, perhaps with early stopping."""
        own, goal = build_algorithm(file), self.task(file).loss.goal
        if file.stopping is None:
            return own
        holding = self.validation, self.labelled, self.topology.server
        return Validated(own, file.stopping, file.every, file.rounds, goal, *holding)

    def task(self, file: RunFile) -> Task:
        return build_algorithm(file).trains(self._task(file, self.outline(1)))

    def _task(self, file: RunFile, data: Federated) -> Task:
        """The task of made-up rows, whose labels say nothing about weights of classes."""
        if wants_balance(file):
            if not self.class_weights:
                raise DataError(
                    "the agreement has no weights of classes: align again, all together"
                )
            loss = {**file.values["model"]["loss"], "class_weights": list(self.class_weights)}
            file = file.replaced("model", loss=loss)
        return build_task(file, data)

    def check(self, file: RunFile, view: View) -> None:
        """Refuse what the algorithm cannot run on: made-up rows as agreed on, with a party's own
        rows in their places."""
        data = self.outline(self.size + self.validation, blank=True)
        for client, rows in view.rows.items():
            place = self.topology.of(client.silo).index(client)
            data.train.owner[client.silo][rows] = place
            if client in view.x:
                data.train.x[client.silo][rows] = view.x[client]
        placement = replace(data.train, validation=self.validation)
        build_algorithm(file).admit(self.task(file), placement)

    def outline(self, size: int, blank: bool = False) -> Federated:
        """Made-up rows, client by client in turn; `blank`: all zeros."""
        topology, (shape, dtype) = self.topology, self.label
        y = torch.zeros(size, *shape, dtype=dtype)
        if self.goal == "classes":
            y[:] = self.outputs - 1
        elif self.goal == "binary":
            y[::2] = 1
        owner = {silo: torch.arange(size) % len(topology.clients[silo]) for silo in topology.silos}
        labels: dict[str, Tensor | None] = {
            silo: y if silo in self.labelled else None for silo in topology.silos
        }
        draw = torch.Generator().manual_seed(0)
        x = {
            silo: torch.zeros(size, *shape, dtype=dtype)
            if blank or not dtype.is_floating_point
            else torch.randn(size, *shape, dtype=dtype, generator=draw)
            for silo, (shape, dtype) in self.features.items()
        }
        rows = Placement(topology, np.arange(size), owner, x, labels)
        return Federated("agreed", self.goal, rows, classes=self.classes)

    def to_json(self) -> dict[str, Any]:
        return {
            "clients": {silo: list(names) for silo, names in self.topology.clients.items()},
            "server": self.topology.server,
            "rows": self.size,
            "goal": self.goal,
            "classes": list(self.classes),
            "outputs": self.outputs,
            "features": {silo: spec_json(spec) for silo, spec in self.features.items()},
            "label": spec_json(self.label),
            "labelled": list(self.labelled),
            "class_weights": list(self.class_weights),
        } | ({"validation": self.validation} if self.validation else {})

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> SharedFacts:
        clients = {silo: tuple(names) for silo, names in saved["clients"].items()}
        return SharedFacts(
            Topology(clients, saved["server"]),
            int(saved["rows"]),
            saved["goal"],
            tuple(saved["classes"]),
            int(saved["outputs"]),
            {silo: spec_of(spec) for silo, spec in saved["features"].items()},
            spec_of(saved["label"]),
            tuple(saved["labelled"]),
            int(saved.get("validation", 0)),
            tuple(map(float, saved["class_weights"])),
        )


def wants_balance(file: RunFile) -> bool:
    """Whether weights of classes follow from how many rows each class has."""
    loss = file.values["model"]["loss"]
    return isinstance(loss, Mapping) and loss.get("class_weights") == "balanced"


def spec_json(spec: Spec) -> list[Any]:
    """The shape and type of a row, for JSON."""
    return [list(spec[0]), str(spec[1]).removeprefix("torch.")]


def spec_of(saved: Any) -> Spec:
    shape, name = saved
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is no type of numbers")
    return tuple(int(size) for size in shape), dtype
