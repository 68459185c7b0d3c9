"""A run: algorithm, task and data, trained round by round by an engine.

data -> placement -> task -> algorithm -> engine -> state, on one screen.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from ..algorithms.contract import Algorithm
from ..algorithms.verification.costs import Facts
from ..core import tree
from ..core.arithmetic import Precision, device_of, dtype_of
from ..core.checked import checked
from ..core.errors import HaltedWarning, ModelError, SettingError, nearest
from ..core.extras import lacking
from ..core.placed import AtClients
from ..core.rng import Secrets, Streams
from ..core.settings import at_least
from ..data.federated import Federated, check_data
from ..data.placement import Placement
from ..engines.execute.executor import CALLS
from ..engines.limits import DEFAULT, Limits
from ..engines.multiprocess.engine import SpreadEngine
from ..engines.multiprocess.ranks import Ranks
from ..engines.party.reference import reference
from ..engines.stacked.engine import StackedEngine
from ..fabric.accounts import Books
from ..fabric.engine import Engine
from ..fabric.ledger import Ledger
from ..fabric.releases import Releases
from ..fabric.schedule import Everyone, Recorded, Schedule
from ..fabric.simclock.clock import Clock, Network, Times
from ..models.library import Maker
from ..models.task import JointModel, Task, split_head
from ..records.metrics import HEADLINE, Metrics, check_metrics
from ..records.record import Record
from ..records.snapshot import Snapshot
from .evaluator import RowChoice, Viewer
from .export import How, Model
from .loop import play
from .progress import Bar

EngineName = Literal["stacked", "reference"]


class Run:
    """One training run in this process, on data with test rows or on a placement alone.

    `engine`: "stacked" (fast) or "reference" (every party by itself, slow, obviously right).
    `chunk`: clients run at once by the stacked engine (None: by their size), `replay`: calls after
    which it traces local work (0: never), `compile`: whether it compiles it, `executor`: what
    executes it, by name, `limits`: its thresholds; see docs/speed.md. `precision`: "tf32" and
    "bf16" keep weights in float32. `network`: links and speeds for `time`. `metrics`: registered
    ones to measure besides the usual. `ranks`: processes to share the clients' work with; see
    docs/several-processes.md. `secrets` of real parties, to compute what they would.
    After an error, `state`, `round` and `time` are those of the last complete round.
    """

    @checked("data")
    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        data: Federated | Placement,
        *,
        seed: int = 0,
        engine: EngineName = "stacked",
        schedule: Schedule | None = None,
        precision: Precision = "float32",
        device: str | torch.device = "cpu",
        chunk: Annotated[int | None, at_least(1)] = None,
        replay: Annotated[int, at_least(0)] = CALLS,
        compile: bool = False,
        executor: str | None = None,
        limits: Limits = DEFAULT,
        network: Network | None = None,
        metrics: Sequence[str] = (),
        ranks: Ranks | None = None,
        secrets: Secrets | None = None,
    ):
        check_data("Run", data, Federated, Placement)
        self.data = data if isinstance(data, Federated) else None
        placement = data.train if isinstance(data, Federated) else data
        task = algorithm.trains(task)
        self.algorithm, self.task, self.placement = algorithm, task, placement
        check_metrics(metrics, task.loss.goal)
        self.metrics = tuple(metrics)
        self.halted: str | None = None  # why it ended before the rounds it was asked for
        self.shapes = task.shapes(placement, dtype_of(precision))
        algorithm.admit(task, placement)
        if ranks is not None:
            device = ranks.device(str(device))
        self._options: dict[str, Any] = {"seed": seed, "device": device_of(device)}
        if secrets is not None:
            if engine != "reference":
                raise SettingError(
                    'secrets: noise is named by what was received, to the bit: engine="reference"'
                )
            self._options["secrets"] = secrets
        self._options["precision"] = precision
        self._ranks = ranks
        self._kind = engine
        self._stacked: dict[str, Any] = {"chunk": chunk, "replay": replay, "compile": compile}
        self._stacked |= {"executor": executor, "limits": limits}
        self.schedule = schedule or Everyone()
        self.schedule.check(placement.topology.clients)
        self.network = network
        self.fed = self.engine(placement, self.schedule, self._fresh_books())
        self.round = 0
        self.state: Any = None
        self.records: list[Record] = []
        self.wall = 0.0  # seconds spent on rounds
        self._broken = False
        self._viewer = Viewer(self)

    def engine(
        self,
        placement: Placement,
        schedule: Schedule,
        books: Books | None = None,
        on_demand: bool = False,
    ) -> Engine:
        """One more engine for this run, on these rows; with the accounts of the run so far, if it
        goes on with them. `on_demand`: hubs compute what is asked for."""
        options = {**self._options, "schedule": schedule, "books": books, "on_demand": on_demand}
        if self._kind == "stacked":
            options |= self._stacked
            if isinstance(before := getattr(self, "fed", None), StackedEngine):
                options["store"] = before.store
            if self._ranks is not None:
                return SpreadEngine(self.task, self.shapes, placement, ranks=self._ranks, **options)
            return StackedEngine(self.task, self.shapes, placement, **options)
        if self._kind == "reference" and self._ranks is not None:
            raise SettingError("engine: only stacked can be spread over processes, not reference")
        return reference(self.task, self.shapes, placement, **options)

    @property
    def test(self) -> Placement | None:
        """The test rows, where the data have any."""
        return None if self.data is None else self.data.test

    @property
    def headline(self) -> str | None:
        """The metric to judge it by."""
        goal = self.task.loss.goal
        return None if goal is None else HEADLINE[goal]

    @checked()
    def fit(
        self,
        rounds: Annotated[int, at_least(0)],
        *,
        every: Annotated[int | None, at_least(1)] = None,
        progress: bool | None = None,
        on_round: Callable[[Run], None] | None = None,
    ) -> Run:
        """Go on until `rounds` rounds are done in all. `every` so many rounds, and at the start and
        the end, the model is evaluated and a record kept in `records`. `progress`: show a bar
        (None: where there is a terminal or a notebook, if `every` is given)."""
        if self._broken:
            self.fed = self.engine(self.placement, self.schedule, self.fed.books)
        if every is not None and not self.records:
            self.add_record()
        self._broken = True
        show = progress if progress is not None else (every is not None and Bar.wanted())
        with Bar(rounds, self.round, show, self.headline) as bar:
            began = time.perf_counter()
            for done, state in play(self.fed, self.algorithm, rounds, self.state, self.round):
                self.round, self.state = done, state
                self.wall += time.perf_counter() - began
                if every is not None and (done % every == 0 or done == rounds):
                    bar.say(self.add_record())
                bar.step(done)
                if on_round is not None:
                    on_round(self)
                began = time.perf_counter()
        self._broken = False
        if self.round < rounds:
            self._halt(every)
        return self

    def _halt(self, every: int | None) -> None:
        """The algorithm ended the run: say why, and keep a record of how it stands."""
        self.halted = self.algorithm.halts(self.fed, self.round)
        if self.round == 0:
            raise SettingError(f"{self.halted}: nothing would be trained")
        if every is not None and self.records[-1].round < self.round:
            self.add_record()
        warnings.warn(str(self.halted), HaltedWarning, stacklevel=4)

    def _fresh_books(self) -> Books:
        return Books(Releases(self.placement.size), clock=self._clock())

    def _clock(self, saved: Mapping[str, Any] | None = None) -> Clock | None:
        if self.network is None:
            return None
        start = None if saved is None else Times.from_json(saved)
        streams, visits = Streams(self._options["seed"]), self.algorithm.asynchronous
        return Clock(self.network, self.placement.topology, streams, start, visits)

    # What came of it

    @property
    def ledger(self) -> Ledger:
        """Messages and bytes so far."""
        return self.fed.ledger

    @property
    def record(self) -> Recorded:
        """Who answered so far; as a schedule, it replays this run."""
        return self.fed.record

    @property
    def time(self) -> float | None:
        """Virtual time so far, at the latest hub; None without a network."""
        return None if self.fed.clock is None else self.fed.clock.done.latest

    @checked("rows")
    def predict(
        self,
        rows: RowChoice | None = None,
        at: str | None = None,
        *,
        client: str | None = None,
        at_a_time: Annotated[int | None, at_least(1)] = None,
    ) -> Tensor:
        """Joint scores of rows, in the order of their ids, as the hub `at` gets them (all hubs get
        the same, except where silos train alone).

        `rows`: "test" (as if none are said), "train", "all", numbers of rows among all, or a
        placement. A run on a placement alone predicts its rows, if none are said. `client`: by that
        client's own model, where clients have such. `at_a_time`: so many rows (None: by size)."""
        known = next(iter(self.placement.topology.clients.values()))
        if client is not None and client not in known:
            raise SettingError(f"predict: there is no client {client!r}{nearest(client, known)}")
        if at is not None and at not in self.shapes.width:
            raise SettingError(f"predict: there is no silo {at!r}{nearest(at, self.shapes.width)}")
        usual: RowChoice = "train" if self.test is None else "test"
        placement = self._viewer.rows(usual if rows is None else rows)
        scores = self._viewer.scores(placement, at_a_time, client)
        return scores[at] if at in scores else next(iter(scores.values()))

    def loss(self, rows: RowChoice = "train") -> float:
        """Mean loss over rows, chosen as in `predict`; where silos train alone, the mean over
        silos. What is trained is that of the training rows."""
        return self._viewer.loss(self._viewer.rows(rows))

    def evaluate(self, rows: RowChoice = "test") -> Metrics:
        """Metrics of rows, chosen as in `predict`; means over silos that train alone. Where clients
        have models of their own, `local_...` is the mean over these."""
        return self._viewer.means(self._viewer.rows(rows))

    @checked()
    def add_record(self, at_a_time: Annotated[int | None, at_least(1)] = None) -> Record:
        """Evaluate the model as it stands, and keep the record."""
        self.records.append(self._viewer.record(self.test, at_a_time))
        return self.records[-1]

    @checked()
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

    def trained(self) -> Model:
        """What was learned, out of the run: it predicts, is saved and loaded."""
        thetas, parts = self.algorithm.blocks(self.fed, self._trained()), self.fed.parts.value
        how: How = "joint" if self.algorithm.joint else "combined"
        heads = {
            j: None if part.head is None else part.head.with_params(thetas[j].head)
            for j, part in parts.items()
        }
        head, data = self.task.head, self.data
        return Model(
            how="alone" if self.algorithm.predicts_alone else how,
            blocks={j: part.block.with_params(thetas[j].block) for j, part in parts.items()},
            heads=heads,
            combine=self.task.combine,
            widths=self.shapes.width,
            loss=self.task.loss,
            makers={j: _maker(block.source) for j, block in self.task.blocks.items()},
            head_maker=None if head is None else _maker(head.source),
            classes=() if data is None else data.classes,
            columns={} if data is None else data.columns,
            preparation=None if data is None else data.preparation,
            facts={"algorithm": type(self.algorithm).__name__, "rounds": self.round},
        )

    @checked()
    def save(self, folder: str | PathLike[str]) -> Path:
        """Save what was learned; `fedloom.load_model` takes it from there."""
        return self.trained().save(folder)

    def _repr_png_(self) -> bytes | None:
        """In a notebook, the curve so far."""
        if not self.records or lacking("report", "a figure"):
            return None
        from ..report.notebook import png

        return png(self.records, type(self.algorithm).__name__, self.headline)

    def __repr__(self) -> str:
        losses = [(record.train_loss, record.round) for record in self.records]
        last = "".join(f", loss {loss:.4g} (round {of})" for loss, of in losses[-1:])
        silos = len(self.placement.topology.silos)
        return f"<Run of {type(self.algorithm).__name__}, {silos} silos, round {self.round}{last}>"

    def _trained(self) -> Any:
        if self.state is None:
            raise SettingError("nothing is trained yet: call fit(rounds) first")
        return self.state

    # Stopping and going on

    def snapshot(self) -> Snapshot:
        """The run so far, out of the engine; `restore` takes it in any engine."""
        fields = self._trained()._asdict()
        state = {name: tree.copy(self.fed.read(value)) for name, value in fields.items()}
        ledger, record = Ledger.merged([self.fed.ledger]), Recorded.merged([self.fed.record])
        clock = None if self.fed.clock is None else self.fed.clock.done.to_json()
        return Snapshot(self.round, state, ledger, record, clock, self.fed.releases.to_json())

    @checked()
    def restore(self, snapshot: Snapshot) -> Run:
        """Go on from there: the next rounds are those of an uninterrupted run."""
        ledger, record = Ledger.merged([snapshot.ledger]), Recorded.merged([snapshot.record])
        releases = Releases.from_json(self.placement.size, snapshot.releases)
        books = Books(releases, ledger, record, self._clock(snapshot.clock))
        self.fed = self.engine(self.placement, self.schedule, books)
        self.records = [record for record in self.records if record.round <= snapshot.round]
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

    def blank(self) -> dict[str, dict[Any, Any]]:
        """The form of a snapshot's state."""
        fresh = self.algorithm.start(self.fed)._asdict()
        return {name: self.fed.read(value) for name, value in fresh.items()}

    def facts(self, holders: Mapping[str, int] | None = None, round: int | None = None) -> Facts:
        """What the cost of a round depends on: of one that was run, or of any."""
        clients = {silo: len(names) for silo, names in self.placement.topology.clients.items()}
        thetas = {j: part.initial(self.fed.streams) for j, part in self.fed.parts.value.items()}
        head = next(iter(thetas.values())).head
        return Facts(
            clients,
            holders or clients,
            self.placement.size,
            {silo: tree.nbytes(theta) for silo, theta in thetas.items()},
            tree.nbytes(head),
            self.shapes,
            self.placement.topology.clients,
            thetas,
            0 if self.task.middle is None else tree.nbytes(split_head(head)[0]),
            1 if round is None else round,
            () if round is None else tuple(self.record.visits.get(round, ())),
        )


def _maker(source: Any) -> Maker | None:
    return source if isinstance(source, Maker) else None


def _names(value: Any) -> Any:
    """Structure and shapes, whatever the precision."""
    return tree.signature(tree.map_tensors(lambda a: a.double(), value))
