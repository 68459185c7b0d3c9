"""What a run predicts, and how good that is: never part of its messages, ledger or clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from ..records.metrics import HEADLINE, Metrics, metrics
from ..records.predictions import Predictions, digest_of
from ..records.record import Record

if TYPE_CHECKING:
    from .run import Run

RowChoice = Literal["test", "train", "all"] | Placement | Sequence[int] | Tensor | npt.NDArray[Any]

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
        train, test = self._run.placement, self._run.test
        word = which if isinstance(which, str) else ""
        if word == "train":
            return train
        if word == "test":
            if test is None:
                raise SettingError(
                    "there are no test rows: choose others (rows='train', or a placement)"
                )
            return test
        if self._all is None:
            self._all = train if test is None else train.joined(test)
        return self._all if word == "all" else self._all.take(_numbers(which, self._all.size))

    def scores(
        self, placement: Placement, at_a_time: int | None = None, client: str | None = None
    ) -> dict[str, Tensor]:
        """What every hub predicts for all rows, in the order of their ids; one hub's where all
        predict the same. `at_a_time`: so many rows (None: by their size). `client`: by that
        client's own model."""
        run = self._run
        rows = at_a_time or (MANY if run.fed.is_light(MANY) else FEW)
        state = run.state if run.state is not None else run.algorithm.start(run.fed)
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
        loss = self._run.task.loss
        labels = loss.labels(placement.labels(), self._run.shapes.dtype)
        scores = self.scores(placement, at_a_time).values()
        return float(torch.stack([loss.rows(z, labels).mean() for z in scores]).mean())

    def metrics(self, placement: Placement, at_a_time: int | None = None) -> dict[str, Metrics]:
        """Metrics at every hub that predicts for itself."""
        goal, more = self._run.task.loss.goal, self._run.metrics
        if goal is None:
            return {}
        labels = placement.labels()
        return {
            hub: metrics(goal, scores, labels, more)
            for hub, scores in self.scores(placement, at_a_time).items()
        }

    def predictions(self, placement: Placement, at_a_time: int | None = None) -> Predictions | None:
        """Scores beside labels; None where a loss of your own has no metrics."""
        goal = self._run.task.loss.goal
        if goal is None:
            return None
        scores, labels = self.scores(placement, at_a_time), placement.labels()
        rows = digest_of(placement.ids, labels)
        return Predictions(goal, labels, scores, rows, self._run.metrics)

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
            by_client[client] = {f"local_{name}": metrics(goal, scores, placement.labels())[name]}
        return mean_of(by_client)

    def record(self, test: Placement | None, at_a_time: int | None = None) -> Record:
        """The run as it stands."""
        run = self._run
        by_hub = {} if test is None else self.metrics(test, at_a_time)
        alone = run.algorithm.predicts_alone
        notes = {} if run.state is None else run.algorithm.notes(run.fed, run.state)
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
        )

    def _of(self, placement: Placement, personal: bool, rows: int) -> Seen:
        """`personal`: the state has something of every client, who therefore must be there."""
        key = id(placement)
        if key not in self._seen or self._seen[key].placement is not placement:
            fitting = self._fitting(placement)
            if not personal and self._run.fed.is_light(rows):
                fitting = fitting.pooled()
            fed = self._run.engine(fitting, Everyone(), on_demand=True)  # mostly one hub's is asked
            self._seen[key] = Seen(placement, fed, {})
            while len(self._seen) > 2:  # training and test rows
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
    wanted = "'test', 'train', 'all', a placement or numbers of rows"
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
