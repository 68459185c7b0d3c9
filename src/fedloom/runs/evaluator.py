"""What a run predicts, and how good that is: never part of its messages, ledger or clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..algorithms.contract import Step
from ..core import tree
from ..core.errors import DataError, SettingError
from ..core.placed import AtClients
from ..core.settings import shown
from ..core.topology import Topology
from ..data.placement import Placement
from ..fabric.engine import Engine
from ..fabric.schedule import Everyone
from ..models.threshold import HALF
from ..records.metrics import HEADLINE, LOSS, Metrics, metrics
from ..records.predictions import Predictions, digest_of
from ..records.record import Record
from ..records.thresholds import choose_threshold

if TYPE_CHECKING:
    from .run import Run

RowChoice = (
    Literal["test", "train", "validation", "all"]
    | Placement
    | Sequence[int]
    | Tensor
    | npt.NDArray[Any]
)

FEW, MANY = 2**12, 2**16  # rows predicted at a time
KEPT = 2**25  # bytes of a placement's features up to which its minibatches are kept, too


class Seen(NamedTuple):
    """A placement that was evaluated: its engine, and minibatches by their first and last row."""

    placement: Placement
    fed: Engine
    steps: dict[tuple[int, int], Step]

    def step(self, start: int, end: int) -> Step:
        step = self.steps.get((start, end)) or Step(*self.fed.minibatch(torch.arange(start, end)))
        if tree.nbytes(dict(self.placement.x)) <= KEPT:
            self.steps[start, end] = step
        return step


class Viewer:
    """Predictions of one run. The engine of a placement is kept for the next evaluation of it."""

    def __init__(self, run: Run):
        self._run = run
        self._seen: dict[int, Seen] = {}
        self._all: Placement | None = None

    def rows(self, which: RowChoice) -> Placement:
        """The rows that are chosen; numbers are those of all rows in the order of their ids."""
        if isinstance(which, Placement):
            return which
        train, test, held = self._run.placement, self._run.test, self._run.validation
        word = which if isinstance(which, str) else ""
        if word == "train":
            return train
        if word == "test":
            if test is None:
                raise SettingError(
                    "there are no test rows: choose others (rows='train', or a placement)"
                )
            return test
        if word == "validation":
            if held is None:
                raise SettingError(
                    "there are no validation rows: keep some back (data.with_validation(0.15), or "
                    "`validation` in [data]), or choose other rows"
                )
            return held
        if self._all is None:
            others = [rows for rows in (test, held) if rows is not None]
            self._all = reduce(Placement.joined, others, train)
        return self._all if word == "all" else self._all.take(_numbers(which, self._all.size))

    def scores(
        self, placement: Placement, at_a_time: int | None = None, client: str | None = None
    ) -> dict[str, Tensor]:
        """What every hub predicts for all rows, in the order of their ids; one hub's where all
        predict the same. `at_a_time`: so many rows (None: by their size). `client`: by that
        client's own model."""
        run = self._run
        rows = at_a_time or (MANY if run.fed.is_light(MANY) else FEW)
        state = run.model_state
        state = run.algorithm.start(run.fed) if state is None else state
        seen = self._of(placement, any(isinstance(part, AtClients) for part in state), rows)
        fed = seen.fed
        hubs = fed.silos if run.algorithm.predicts_alone else fed.silos[:1]
        pieces: dict[str, list[Tensor]] = {hub: [] for hub in hubs}
        for piece, start in enumerate(range(0, placement.size, rows)):
            fed.begin(piece)
            step = seen.step(start, min(start + rows, placement.size))
            if client is None:
                got = run.algorithm.predict(fed, state, step)
            else:
                got = run.algorithm.predict_as(fed, state, step, client)
            for hub in hubs:
                value, mask = got.get(hub, "predict")
                assert bool(mask.all())
                pieces[hub].append(value.detach().cpu())
        return {hub: torch.cat(parts) for hub, parts in pieces.items()}

    def loss(self, placement: Placement, at_a_time: int | None = None) -> float:
        """Mean loss over all rows; where silos predict alone, the mean over silos."""
        dtype = self._run.shapes.dtype
        loss = self._run.task.loss.to(dtype, torch.device("cpu"))
        labels = loss.labels(placement.labels(), dtype)
        scores = self.scores(placement, at_a_time).values()
        return float(torch.stack([loss.rows(z, labels).mean() for z in scores]).mean())

    def metrics(self, placement: Placement, at_a_time: int | None = None) -> dict[str, Metrics]:
        """Metrics at every hub that predicts for itself."""
        loss, more = self._run.task.loss, self._run.metrics
        if loss.goal is None:
            return {}
        labels, thresholds = placement.labels(), self.thresholds(at_a_time)
        return {
            hub: metrics(loss.goal, loss.values(scores), labels, more, thresholds[hub])
            for hub, scores in self.scores(placement, at_a_time).items()
        }

    def thresholds(self, at_a_time: int | None = None) -> dict[str, float]:
        """The probability above which a row is said to be of class 1, at every hub that predicts
        for itself: the run's, or by its rule for the validation rows as the model stands."""
        run = self._run
        rule, held = run.threshold, run.validation
        if isinstance(rule, float):
            return dict.fromkeys(run.fed.silos, rule)
        assert held is not None  # checked before training
        labels = held.labels()
        return {
            hub: choose_threshold(labels, scores, rule)
            for hub, scores in self.scores(held, at_a_time).items()
        }

    def predictions(self, placement: Placement, at_a_time: int | None = None) -> Predictions | None:
        """Predictions beside labels; None where a loss of your own has no metrics."""
        loss = self._run.task.loss
        if loss.goal is None:
            return None
        labels, scores = placement.labels(), self.scores(placement, at_a_time)
        return Predictions(
            loss.goal,
            labels,
            {hub: loss.values(z) for hub, z in scores.items()},
            digest_of(placement.ids, labels),
            tuple(metric.name for metric in self._run.metrics),
            thresholds={hub: self.thresholds(at_a_time)[hub] for hub in scores},
        )

    def means(self, placement: Placement, at_a_time: int | None = None) -> Metrics:
        """Metrics over all hubs that predict; where clients have models of their own, also
        `local_...`: the goal's headline metric, judged on all rows, in the mean over clients."""
        return {**mean_of(self.metrics(placement, at_a_time)), **self._local(placement, at_a_time)}

    def _local(self, placement: Placement, at_a_time: int | None) -> Metrics:
        run = self._run
        goal = run.task.loss.goal
        if goal is None or not run.algorithm.personal:
            return {}
        (names,), name = run.placement.topology.clients.values(), HEADLINE[goal]
        by_client = {}
        for client in names:
            (scores,) = self.scores(placement, at_a_time, client).values()
            values = run.task.loss.values(scores)
            by_client[client] = {f"local_{name}": metrics(goal, values, placement.labels())[name]}
        return mean_of(by_client)

    def record(self, at_a_time: int | None = None) -> Record:
        """The run as it stands."""
        run = self._run
        test, held = run.test, run.validation
        by_hub = {} if test is None else self.metrics(test, at_a_time)
        alone = run.algorithm.predicts_alone
        state, best = run.model_state, run.best
        notes = {} if state is None else run.algorithm.notes(run.fed, state)
        return Record(
            round=run.round,
            iteration=run.round * getattr(run.algorithm, "local_steps", 1),
            time=run.time,
            wall=run.wall,
            bytes=run.ledger.by_tier(),
            train_loss=self.loss(run.placement, at_a_time),
            metrics={} if test is None else {**mean_of(by_hub), **self._local(test, at_a_time)},
            by_silo=by_hub if alone and by_hub else None,
            notes=notes or None,
            privacy=run.algorithm.spending(run.fed),
            validation=None if held is None else self._validation(held, at_a_time),
            best=None if best is None else best.round,
            threshold=self._threshold(),
        )

    def _validation(self, held: Placement, at_a_time: int | None) -> Metrics:
        return {LOSS: self.loss(held, at_a_time), **self.means(held, at_a_time)}

    def _threshold(self) -> float | dict[str, float] | None:
        """For a record, unless it is a half."""
        if self._run.threshold == HALF:
            return None
        return self._run.model_threshold

    def _of(self, placement: Placement, personal: bool, rows: int) -> Seen:
        """`personal`: the state has something of every client, who therefore must be there."""
        key = id(placement)
        if key not in self._seen or self._seen[key].placement is not placement:
            fitting = self._fitting(placement)
            if not personal and self._run.fed.is_light(rows):
                fitting = fitting.pooled()
            fed = self._run.engine(fitting, Everyone(), on_demand=True)  # mostly one hub's is asked
            self._seen[key] = Seen(placement, fed, {})
            while len(self._seen) > 3:  # training, validation and test rows
                del self._seen[next(iter(self._seen))]
        return self._seen[key]

    def _fitting(self, placement: Placement) -> Placement:
        """Rows to predict, from the silos and in the shapes of the training rows."""
        shapes = self._run.shapes
        silos, clients = list(shapes.width), placement.topology.clients
        if set(clients) != set(silos):
            raise DataError(f"trained on silos {silos}, not on {list(clients)}")
        for silo, (shape, _) in shapes.features.items():
            if placement.x[silo].shape[1:] != shape:
                got = tuple(placement.x[silo].shape[1:])
                raise DataError(f"silo {silo}: features of shape {got}, trained on {shape}")
        server = self._run.placement.topology.server
        order = Topology({silo: clients[silo] for silo in silos}, server)
        return replace(placement, topology=order)


def _numbers(which: Any, size: int) -> Tensor:
    """Numbers of rows, or the rows that a mask has."""
    wanted = "'test', 'train', 'validation', 'all', a placement or numbers of rows"
    if isinstance(which, str) or not isinstance(which, Sequence | Tensor | np.ndarray):
        raise SettingError(f"rows: {wanted} are expected, not {shown(which)}")
    try:
        numbers = torch.as_tensor(which if isinstance(which, Tensor) else np.asarray(which)).cpu()
    except (TypeError, ValueError) as problem:
        raise SettingError(f"rows: {wanted} are expected ({problem})") from None
    if numbers.dtype == torch.bool and numbers.shape == (size,):
        numbers = numbers.nonzero()[:, 0]
    if not numbers.numel():
        raise SettingError("rows: no rows are chosen")
    if numbers.ndim != 1 or numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise SettingError(f"rows: {wanted} are expected, not {shown(which)}")
    if int(numbers.min()) < 0 or int(numbers.max()) >= size:
        raise SettingError(f"rows: numbers from 0 to {size - 1} are expected")
    if len(numbers.unique()) < len(numbers):
        raise SettingError("rows: a number is there twice")
    return numbers.long()


def mean_of(by_name: Mapping[str, Metrics]) -> Metrics:
    """Metric by metric over silos; None where a silo has none."""
    means: dict[str, Any] = {}
    for name in next(iter(by_name.values()), {}):
        values = [own[name] for own in by_name.values()]
        known = [value for value in values if value is not None]
        means[name] = sum(known) / len(known) if len(known) == len(values) else None
    return means
