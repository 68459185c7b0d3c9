"""A run: algorithm, task and data, trained round by round by an engine.

data -> placement -> task -> algorithm -> engine -> state, on one screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import tree
from .algorithms.base import Algorithm, Facts, Step
from .data.placement import Placement
from .engines.party import PartyEngine
from .engines.stacked import StackedEngine
from .engines.waits import Waits
from .errors import DataError, ModelError, SettingError, nearest
from .federation.fabric import Fabric
from .federation.ledger import Ledger
from .federation.placed import AtClients, AtHubs, Rows
from .federation.schedule import Everyone, Recorded, Schedule
from .federation.topology import Topology
from .models.task import JointModel, Task
from .transports.memory import MemoryTransport

EngineName = Literal["stacked", "reference"]
Precision = Literal["float32", "float64"]


@dataclass(frozen=True)
class Snapshot:
    """A run after so many rounds, out of its engine: {field: {party: tree}}, what was sent and who
    dropped out until then."""

    round: int
    state: Mapping[str, Mapping[Any, Any]]
    ledger: Ledger
    record: Recorded


def play(
    fed: Fabric, algorithm: Algorithm, rounds: int, state: Any = None, first: int = 0
) -> Iterator[tuple[int, Any]]:
    """The loop, in one place: yields (rounds done, state) after every round. A party that stops
    before the end, for whatever reason, tells the others."""
    try:
        fed.warm_up(algorithm.warm_up)
        if state is None:
            state = algorithm.start(fed)
        for round in range(first, rounds):
            fed.begin(round)
            state = algorithm.round(fed, state, algorithm.draw(fed))
            fed.check_state(state)
            fed.end()
            yield round + 1, state
        fed.finish()
    except (Exception, GeneratorExit) as problem:
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
        if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
            raise SettingError(f"chunk must be a whole number of at least 1, not {chunk!r}")
        self.algorithm, self.task, self.placement = algorithm, task, placement
        self.shapes = task.shapes(placement, getattr(torch, precision))
        algorithm.check(task, placement)
        self._options: dict[str, Any] = {"seed": seed, "device": _device(device)}
        self._kind, self._chunk = engine, chunk
        self.schedule = schedule or Everyone()
        self.schedule.check(placement.topology.clients)
        self.fed = self._engine(placement, self.schedule)
        self.round = 0
        self.state: Any = None
        self._broken = False

    def _engine(self, placement: Placement, schedule: Schedule) -> Fabric:
        options = {**self._options, "schedule": schedule}
        if self._kind == "stacked":
            return StackedEngine(self.task, self.shapes, placement, chunk=self._chunk, **options)
        if self._kind == "reference":
            return reference(self.task, self.shapes, placement, **options)
        raise SettingError(f"engine must be stacked or reference, not {self._kind!r}")

    def train(self, rounds: int, on_round: Callable[[Run], None] | None = None) -> Run:
        """Go on until `rounds` rounds are done in all."""
        if self._broken:
            self._rebuild(self.fed.ledger, self.fed.record)
        self._broken = True
        going = play(self.fed, self.algorithm, rounds, self.state, self.round)
        for done, state in going:
            self.round, self.state = done, state
            if on_round is not None:
                on_round(self)
        self._broken = False
        return self

    def _rebuild(self, ledger: Ledger, record: Recorded) -> None:
        """A fresh engine with the accounts so far."""
        self.fed = self._engine(self.placement, self.schedule)
        self.fed.ledger, self.fed.record = ledger, record

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
        placement = self._fitting(placement or self.placement)
        fed = self._engine(placement, Everyone())
        state = self.state if self.state is not None else self.algorithm.start(self.fed)
        at = at or placement.topology.silos[0]
        scores = []
        for piece, start in enumerate(range(0, placement.size, rows)):
            fed.begin(piece)
            ids = torch.arange(start, min(start + rows, placement.size))
            scores.append(self._scores(fed, state, Step(*fed.minibatch(ids)), at))
        return torch.cat(scores)

    def _fitting(self, placement: Placement) -> Placement:
        """Rows to predict, from the silos and in the shapes of the training rows."""
        silos, clients = list(self.shapes.width), placement.topology.clients
        if set(clients) != set(silos):
            raise DataError(f"trained on silos {silos}, not on {list(clients)}")
        for silo, (shape, _) in self.shapes.features.items():
            if placement.x[silo].shape[1:] != shape:
                got = tuple(placement.x[silo].shape[1:])
                raise DataError(f"silo {silo}: features of shape {got}, trained on {shape}")
        order = Topology({silo: clients[silo] for silo in silos}, placement.topology.server)
        return replace(placement, topology=order)

    def _scores(self, fed: Fabric, state: Any, step: Step, at: str) -> Tensor:
        got: AtHubs[Rows] = self.algorithm.predict(fed, state, step)
        value, mask = got.get(at, "predict")
        assert bool(mask.all())
        return value.detach().cpu()

    def loss(self, placement: Placement | None = None) -> float:
        """Mean loss over all rows; where silos train alone, the mean over silos."""
        placement = placement or self.placement
        labels = self.task.loss.labels(placement.labels(), self.shapes.dtype)
        hubs = placement.topology.silos if self.algorithm.predicts_alone else [None]
        losses = [self.task.loss.rows(self.predict(placement, hub), labels).mean() for hub in hubs]
        return float(torch.stack(losses).mean())

    def export(self, silo: str) -> nn.Module:
        """A hub's block as a module of its own (Remark 1)."""
        thetas = self.algorithm.blocks(self.fed, self._trained())
        if silo not in thetas:
            raise SettingError(f"export: there is no silo {silo!r}{nearest(silo, thetas)}")
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
        """The run so far, out of the engine; `restore` takes it in any engine."""
        fields = self._trained()._asdict()
        state = {name: tree.copy(self.fed.read(value)) for name, value in fields.items()}
        ledger = Ledger.merged([self.fed.ledger])
        return Snapshot(self.round, state, ledger, Recorded.merged([self.fed.record]))

    def restore(self, snapshot: Snapshot) -> Run:
        """Go on from there: the next rounds are those of an uninterrupted run."""
        self._rebuild(Ledger.merged([snapshot.ledger]), Recorded.merged([snapshot.record]))
        fields = {}
        for name, fresh in self.algorithm.start(self.fed)._asdict().items():
            wanted = self.fed.read(fresh)
            saved = dict(snapshot.state.get(name, {}))
            if {party: _names(v) for party, v in saved.items()} != {
                party: _names(v) for party, v in wanted.items()
            }:
                raise SettingError(f"the snapshot's {name} is not that of this algorithm and task")
            values = tree.map_tensors(lambda a, like: a.to(like, copy=True), saved, wanted)
            at_clients = isinstance(fresh, AtClients)
            fields[name] = (self.fed.place_clients if at_clients else self.fed.place_hubs)(values)
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


def _names(value: Any) -> Any:
    """Structure and shapes, whatever the precision."""
    spec, shapes = tree.signature(tree.map_tensors(lambda a: a.double(), value))
    return spec, shapes


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise SettingError(f"device: {name!r}; known are cpu, cuda and cuda:0, ...") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"device {name}: torch finds no GPU here")
    return device
