"""A run: algorithm, task and data, trained round by round by an engine.

data -> placement -> task -> algorithm -> engine -> state, on one screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import tree
from .algorithms.base import Algorithm, Facts, Step
from .data.placement import Placement
from .engines.party import PartyEngine, Waits
from .engines.stacked import StackedEngine
from .errors import DataError, ModelError, SettingError
from .federation.fabric import Fabric
from .federation.ledger import Ledger
from .federation.placed import AtHubs, Rows
from .federation.schedule import Everyone, Recorded, Schedule
from .federation.topology import Client
from .models.task import JointModel, Task
from .transports.memory import MemoryTransport

EngineName = Literal["stacked", "reference"]
Precision = Literal["float32", "float64"]


@dataclass(frozen=True)
class Snapshot:
    """A state taken out of its engine: {field: {party: tree}} after so many rounds."""

    round: int
    state: Mapping[str, Mapping[Any, Any]]


def play(
    fed: Fabric, algorithm: Algorithm, rounds: int, state: Any = None, first: int = 0
) -> Iterator[tuple[int, Any]]:
    """The loop, in one place: yields (rounds done, state) after every round."""
    try:
        fed.warm_up(algorithm.warm_up)
        if state is None:
            state = algorithm.start(fed)
        for round in range(first, rounds):
            fed.begin(round)
            state = algorithm.round(fed, state, algorithm.draw(fed))
            fed.end()
            yield round + 1, state
        fed.finish()
    except Exception as problem:
        fed.fail(problem)
        raise


class Run:
    """One training run in this process.

    `engine`: "stacked" (fast) or "reference" (every party by itself, slow, obviously right).
    `chunk`: clients run at once by the stacked engine. After an error, `state` and `round` are
    those of the last complete round.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        placement: Placement,
        *,
        seed: int = 0,
        engine: EngineName = "stacked",
        schedule: Schedule | None = None,
        precision: Precision = "float32",
        device: str = "cpu",
        chunk: int | None = None,
    ):
        if precision not in ("float32", "float64"):
            raise SettingError(f"precision must be float32 or float64, not {precision!r}")
        self.algorithm, self.task, self.placement = algorithm, task, placement
        self.shapes = task.shapes(placement, getattr(torch, precision))
        algorithm.check(task, placement)
        self._options: dict[str, Any] = {"seed": seed, "device": _device(device)}
        self._kind, self._chunk = engine, chunk
        self.fed = self._engine(placement, schedule or Everyone())
        self.round = 0
        self.state: Any = None

    def _engine(self, placement: Placement, schedule: Schedule) -> Fabric:
        options = {**self._options, "schedule": schedule}
        if self._kind == "stacked":
            return StackedEngine(self.task, self.shapes, placement, chunk=self._chunk, **options)
        if self._kind == "reference":
            return reference(self.task, self.shapes, placement, **options)
        raise SettingError(f"engine must be stacked or reference, not {self._kind!r}")

    def train(self, rounds: int, on_round: Callable[[Run], None] | None = None) -> Run:
        """Go on until `rounds` rounds are done in all."""
        going = play(self.fed, self.algorithm, rounds, self.state, self.round)
        for done, state in going:
            self.round, self.state = done, state
            if on_round is not None:
                on_round(self)
        return self

    # What came of it

    @property
    def ledger(self) -> Ledger:
        """Messages and bytes so far."""
        return self.fed.ledger

    @property
    def record(self) -> Recorded:
        """Who answered so far; as a schedule, it replays this run."""
        return self.fed.record

    def predict(
        self, placement: Placement | None = None, at: str | None = None, rows: int = 4096
    ) -> Tensor:
        """Joint scores of every row of a placement, in the order of its ids, as the hub `at` gets
        them (all hubs get the same, except where silos train alone). `rows` at a time."""
        placement = placement or self.placement
        self._check_fits(placement)
        fed = self._engine(placement, Everyone())
        state = self.state if self.state is not None else self.algorithm.start(self.fed)
        at = at or placement.topology.silos[0]
        scores = []
        for piece, start in enumerate(range(0, placement.size, rows)):
            fed.begin(piece)
            ids = torch.arange(start, min(start + rows, placement.size))
            scores.append(self._scores(fed, state, Step(*fed.minibatch(ids)), at))
        return torch.cat(scores)

    def _check_fits(self, placement: Placement) -> None:
        """Rows to predict must come from the silos and in the shapes of the training rows."""
        silos = placement.topology.silos
        if silos != tuple(self.shapes.width):
            raise DataError(f"trained on silos {list(self.shapes.width)}, not on {list(silos)}")
        for silo, (shape, _) in self.shapes.features.items():
            if placement.x[silo].shape[1:] != shape:
                got = tuple(placement.x[silo].shape[1:])
                raise DataError(f"silo {silo}: features of shape {got}, trained on {shape}")

    def _scores(self, fed: Fabric, state: Any, step: Step, at: str) -> Tensor:
        got: AtHubs[Rows] = self.algorithm.predict(fed, state, step)
        value, mask = got.get(at, "predict")
        assert bool(mask.all())
        return value.detach().cpu()

    def loss(self, placement: Placement | None = None) -> float:
        """Mean loss over all rows; where silos train alone, the mean over silos."""
        placement = placement or self.placement
        labels = self.task.loss.labels(placement.labels(), self.shapes.dtype)
        hubs = placement.topology.silos if not self.algorithm.joint else [None]
        losses = [self.task.loss.rows(self.predict(placement, hub), labels).mean() for hub in hubs]
        return float(torch.stack(losses).mean())

    def export(self, silo: str) -> nn.Module:
        """A hub's block as a module of its own (Remark 1)."""
        thetas = self.algorithm.blocks(self.fed, self._trained())
        return self.fed.parts.value[silo].block.with_params(thetas[silo].block)

    def model(self) -> JointModel:
        """The whole model as one module over {silo: features} (Remark 1)."""
        if not self.algorithm.joint:
            raise ModelError("silos that trained alone have no joint model: export their blocks")
        thetas = self.algorithm.blocks(self.fed, self._trained())
        return JointModel(self.fed.parts.value, thetas)

    def _trained(self) -> Any:
        if self.state is None:
            raise SettingError("nothing is trained yet: call train(rounds) first")
        return self.state

    # Stopping and going on

    def snapshot(self) -> Snapshot:
        """The state, out of the engine; `restore` takes it in any engine."""
        fields = self._trained()._asdict()
        state = {name: tree.copy(self.fed.read(value)) for name, value in fields.items()}
        return Snapshot(self.round, state)

    def restore(self, snapshot: Snapshot) -> Run:
        """Go on from there: the next rounds are those of an uninterrupted run."""
        fields = {}
        for name, values in snapshot.state.items():
            at_clients = any(isinstance(party, Client) for party in values)
            place: Callable[[Any], Any] = (
                self.fed.place_clients if at_clients else self.fed.place_hubs
            )
            fields[name] = place(tree.copy(dict(values)))
        self.state, self.round = self.algorithm.State(**fields), snapshot.round
        return self

    def facts(self, holders: Mapping[str, int] | None = None) -> Facts:
        """What the bill of a round depends on."""
        clients = {silo: len(names) for silo, names in self.placement.topology.clients.items()}
        thetas = {j: part.initial(self.fed.streams) for j, part in self.fed.parts.value.items()}
        return Facts(
            clients,
            holders or clients,
            self.placement.size,
            {silo: tree.nbytes(theta) for silo, theta in thetas.items()},
            tree.nbytes(next(iter(thetas.values())).head),
            self.shapes,
        )


def reference(
    task: Task, shapes: Any, placement: Placement, waits: Waits | None = None, **options: Any
) -> PartyEngine:
    """The reference engine: the party engine hosting everyone over in-memory mailboxes."""
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


def _device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"device {name}: torch finds no GPU here")
    return device
