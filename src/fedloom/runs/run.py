"""A run: algorithm, task and data, trained round by round by an engine.

data -> placement -> task -> algorithm -> engine -> state, on one screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from ..algorithms.contract import Algorithm
from ..algorithms.verification.costs import Facts
from ..config.sections import Stopping
from ..core.arithmetic import Precision, device_of, dtype_of
from ..core.checked import checked
from ..core.errors import ModelError, SettingError, nearest
from ..core.extras import lacking
from ..core.rng import Secrets
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
from ..fabric.simclock.clock import Network
from ..models.joint import JointModel
from ..models.task import Task
from ..models.threshold import HALF, Threshold
from ..records.metrics import HEADLINE, Metrics
from ..records.own_metrics import MetricLike, chosen_metrics
from ..records.predictions import Predictions
from ..records.record import Record
from ..records.snapshot import Snapshot
from ..records.thresholds import check_rows
from .callbacks import Callback
from .continuing import clock_of, snapshot_of, state_from
from .cost_facts import facts_of
from .evaluator import RowChoice, Viewer
from .export import Model, model_of
from .fitting import go, halt
from .progress import Bar
from .stopping import Best, Validated

EngineName = Literal["stacked", "reference"]


class Run:
    """One training run in this process, on data with test rows or on a placement alone.

    `engine`: "stacked" (fast) or "reference" (every party by itself, slow, obviously right).
    `chunk`: clients run at once by the stacked engine (None: by their size), `replay`: calls after
    which it traces local work (0: never), `compile`: whether it compiles it, `executor`: what
    executes it, by name, `limits`: its thresholds; see docs/speed.md. `precision`: "tf32" and
    "bf16" keep weights in float32. `network`: links and speeds for `time`. `metrics`: what
    to measure besides the usual: registered names, functions of labels and scores, or objects of
    torchmetrics. `threshold`: the probability above which a row is said to be of class 1, or a rule
    by which it is chosen on validation rows: "f1", "balanced", "accuracy" or {"missed": 5,
    "false_alarm": 1}. `ranks`: processes to share the clients' work with; see
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
        metrics: Sequence[MetricLike] = (),
        threshold: Threshold = HALF,
        ranks: Ranks | None = None,
        secrets: Secrets | None = None,
    ):
        check_data("Run", data, Federated, Placement)
        self.data = data if isinstance(data, Federated) else None
        placement = data.train if isinstance(data, Federated) else data
        task = algorithm.trains(task)
        self.algorithm, self.task, self.placement = algorithm, task, placement
        self.metrics = chosen_metrics(metrics, task.loss.goal)
        check_rows(threshold, task.loss.goal, self.validation)
        self.threshold = float(threshold) if isinstance(threshold, int | float) else threshold
        self.halted: str | None = None  # why it ended before the rounds it was asked for
        self.shapes = task.shapes(placement, dtype_of(precision))
        algorithm.admit(task, placement)
        if ranks is not None:
            device = ranks.device(str(device))
        self.seed = seed
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
        self.rows = placement.followed_by(self.validation)
        self._validated: Validated | None = None  # early stopping around the algorithm
        self._fitting = False
        self.fed = self.engine(self.rows, self.schedule, self._fresh_books())
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
    def validation(self) -> Placement | None:
        """The validation rows, where some were kept back."""
        return None if self.data is None else self.data.validation

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
        stop: Stopping | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Run:
        """Go on until `rounds` rounds are done in all. `every` so many rounds, and at the start and
        the end, the model is evaluated and a record kept in `records`. `progress`: show a bar
        (None: where there is a terminal or a notebook, if `every` is given). `stop`: when to end
        early, by the validation rows `every` so many rounds; the run then predicts with the model
        of the best evaluation. `callbacks`: your own code, at every round and record."""
        if stop is not None:
            self.stop_early(stop, every or 1, rounds)
        elif isinstance(self.played, Validated):
            self._validated = self.played.until(rounds)
        self.halted = None
        if self._broken:
            self.fed = self.engine(self.rows, self.schedule, self.fed.books)
        show = progress if progress is not None else (every is not None and Bar.wanted())
        self._broken = self._fitting = True
        try:
            with Bar(rounds, self.round, show, self.headline) as bar:
                go(self, rounds, every, bar, callbacks)
        finally:
            self._fitting = False
        self._broken = False
        if self.round < rounds and self.halted is None:
            halt(self, every)
        for callback in callbacks:
            callback.on_end(self)
        return self

    def stop_early(self, stop: Stopping, every: int, rounds: int) -> Run:
        """Evaluate the validation rows every so many rounds of these, and end by what is found; for
        a run that `restore` is to continue. `fit` does so itself."""
        goal, rows = self.task.loss.goal, self.rows
        holding = rows.validation, rows.labelled, rows.topology.server
        played = Validated(self.algorithm, stop, every, rounds, goal, *holding)
        if self.state is not None and not isinstance(self.played, Validated):
            self.state = played.around(self.fed, self.state)
        self._validated = played
        return self

    @property
    def played(self) -> Algorithm:
        """What its rounds are: the algorithm, perhaps with early stopping around it."""
        return self._validated or self.algorithm

    def renew_patience(self) -> None:
        """With early stopping, count evaluations anew; the best of them stays."""
        if isinstance(self.played, Validated):
            self.state = self.played.renewed(self.fed, self.state)

    @property
    def best(self) -> Best | None:
        """With early stopping, the best evaluation so far: of which round, and how good."""
        if self.state is None or not isinstance(self.played, Validated):
            return None
        return self.played.best(self.fed, self.state)

    @property
    def model_state(self) -> Any:
        """The algorithm's state that the run predicts with: after the last round. With early
        stopping, after that of the best evaluation, but for records on the way."""
        if self.state is None or not isinstance(self.played, Validated):
            return self.state
        if self._fitting:
            return self.played.own_state(self.state)
        return self.played.best_of(self.fed, self.state)

    def _fresh_books(self) -> Books:
        return Books(Releases(self.placement.size), clock=clock_of(self, None))

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

        `rows`: "test" (as if none are said), "train", "validation", "all", numbers of rows among
        all, or a placement. A run on a placement alone predicts its rows, if none are said.
        `client`: by that client's own model, where clients have such. `at_a_time`: so many rows
        (None: by size)."""
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

    def predictions(self, at_a_time: int | None = None) -> Predictions | None:
        """What it says of the test rows, beside their labels; None where it cannot be judged."""
        return None if self.test is None else self._viewer.predictions(self.test, at_a_time)

    @checked()
    def add_record(self, at_a_time: Annotated[int | None, at_least(1)] = None) -> Record:
        """Evaluate the model as it stands, and keep the record."""
        self.records.append(self._viewer.record(at_a_time))
        return self.records[-1]

    @checked()
    def export(self, silo: str) -> nn.Module:
        """A hub's block as a module of its own (Remark 1)."""
        thetas = self.algorithm.blocks(self.fed, self.trained_state)
        if silo not in thetas:
            raise SettingError(f"export: there is no silo {silo!r}{nearest(silo, thetas)}")
        return self.fed.parts.value[silo].block.with_params(thetas[silo].block)

    def model(self) -> JointModel:
        """The whole model as one module over {silo: features} (Remark 1)."""
        if not self.algorithm.joint:
            raise ModelError("silos that trained alone have no joint model: export their blocks")
        thetas = self.algorithm.blocks(self.fed, self.trained_state)
        return JointModel(self.fed.parts.value, thetas)

    def trained(self) -> Model:
        """What was learned, out of the run: it predicts, is saved and loaded."""
        return model_of(self)

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

    @property
    def trained_state(self) -> Any:
        """As `model_state`; SettingError before the first round."""
        if self.state is None:
            raise SettingError("nothing is trained yet: call fit(rounds) first")
        return self.model_state

    @property
    def model_round(self) -> int:
        """The round that the model is of."""
        best = None if self._fitting else self.best
        return self.round if best is None else best.round

    @property
    def model_threshold(self) -> float | dict[str, float]:
        """The probability above which the model says class 1; by silo where silos predict alone."""
        by_hub = self._viewer.thresholds()
        return by_hub if self.algorithm.predicts_alone else next(iter(by_hub.values()))

    # Stopping and going on

    def snapshot(self) -> Snapshot:
        """The run so far, out of the engine; `restore` takes it in any engine."""
        return snapshot_of(self)

    @checked()
    def restore(self, snapshot: Snapshot) -> Run:
        """Go on from there: the next rounds are those of an uninterrupted run."""
        ledger, record = Ledger.merged([snapshot.ledger]), Recorded.merged([snapshot.record])
        releases = Releases.from_json(self.placement.size, snapshot.releases)
        books = Books(releases, ledger, record, clock_of(self, snapshot.clock))
        self.fed = self.engine(self.rows, self.schedule, books)
        self.records = [record for record in self.records if record.round <= snapshot.round]
        self.state, self.round = state_from(self, snapshot), snapshot.round
        return self

    def blank(self) -> dict[str, dict[Any, Any]]:
        """The form of a snapshot's state."""
        fresh = self.played.start(self.fed)._asdict()
        return {name: self.fed.read(value) for name, value in fresh.items()}

    def facts(self, holders: Mapping[str, int] | None = None, round: int | None = None) -> Facts:
        """What the cost of a round depends on: of one that was run, or of any."""
        return facts_of(self, holders, round)
