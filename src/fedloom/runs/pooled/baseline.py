"""A baseline on the pooled rows, from its name to its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ...config.sections import PooledName
from ...core.arithmetic import Precision, device_of, dtype_of
from ...core.checked import checked
from ...core.errors import SettingError
from ...core.extras import need
from ...core.registry import losses
from ...data.dataset import LOSSES, Goal
from ...data.federated import Federated, check_data
from ...data.placement import Placement
from ...models.task import Task
from ...records.metrics import HEADLINE, Metrics, metrics
from ...records.own_metrics import MetricLike, chosen_metrics
from ...records.predictions import Predictions, digest_of
from ...records.record import Record
from . import analyst, network
from .fitted import Fitted

WRONG: Mapping[tuple[str, bool], str] = {
    (
        "logistic",
        True,
    ): "logistic regression is for classes, and the labels are numbers: name ridge",
    ("ridge", False): "ridge regression is for numbers, and the labels are classes: name logistic",
}  # by the name, and whether labels are numbers


class Pooled:
    """What can be learned from everybody's rows in one place, without a federation.

    `name`: "best-pooled" (the task's network, trained to convergence with Adam), "logistic" or
    "ridge" (regression with cross-validated regularisation), or "boosting" (gradient boosting),
    the last three by scikit-learn. Training rows, test rows and metrics are those of a `Run`."""

    halted: str | None = None  # as a run has it

    @checked("data")
    def __init__(
        self,
        name: PooledName,
        task: Task,
        data: Federated,
        *,
        seed: int = 0,
        precision: Precision = "float32",
        device: str | torch.device = "cpu",
        metrics: Sequence[MetricLike] = (),
    ):
        check_data("Pooled", data, Federated)
        goal = task.loss.goal
        if name != "best-pooled":
            need("data", f"the baseline {name}")
            if goal is None:
                raise SettingError(
                    "a loss of your own does not say whether labels are classes or numbers: leave "
                    f"{name} out, or name best-pooled"
                )
            if (why := WRONG.get((name, goal == "number"))) is not None:
                raise SettingError(why)
        self.name, self.task, self.data = name, task, data
        self.metrics = chosen_metrics(metrics, goal)
        self.records: list[Record] = []
        self._shapes = task.shapes(data.train, dtype_of(precision))
        self._precision: Precision = precision
        self._device, self._seed = device_of(device), seed
        self._fitted: Fitted | None = None

    @property
    def headline(self) -> str | None:
        """The metric to judge it by."""
        goal = self.task.loss.goal
        return None if goal is None else HEADLINE[goal]

    def fit(self, on_epoch: Callable[[int], None] = lambda done: None) -> Pooled:
        """Train it, and keep a record. `on_epoch` is called with the epochs that are done."""
        began, train = time.perf_counter(), self.data.train
        if self.name == "best-pooled":
            given = (self._seed, self._precision, self._device, on_epoch)
            self._fitted = network.fit(self.task, self._shapes, train, *given)
        else:
            width, goal = self._shapes.scores, self._goal
            self._fitted = analyst.fit(self.name, goal, width, train, self._seed)
            on_epoch(1)
        wall = time.perf_counter() - began
        self.records = [self._record(self._fitted, wall)]
        return self

    def predict(self, rows: Literal["test", "train"] | Placement = "test") -> Tensor:
        """Scores of rows, in the order of their ids, in the form that the loss takes."""
        if self._fitted is None:
            raise SettingError("nothing is trained yet: call fit() first")
        return self._fitted.scores(self._rows(rows))

    def evaluate(self, rows: Literal["test", "train"] | Placement = "test") -> Metrics:
        """Metrics of rows."""
        placement = self._rows(rows)
        return metrics(self._goal, self._values(placement), placement.labels(), self.metrics)

    def _values(self, rows: Placement) -> Tensor:
        """Predictions: of numbers, in their own unit."""
        scores = self.predict(rows)
        return self.task.loss.values(scores) if self.name == "best-pooled" else scores

    def predictions(self) -> Predictions | None:
        """Of the test rows, where there are any and they can be judged."""
        test = self.data.test
        if test is None or self.task.loss.goal is None:
            return None
        rows = digest_of(test.ids, test.labels())
        values, more = {"pooled": self._values(test)}, (metric.name for metric in self.metrics)
        return Predictions(self._goal, test.labels(), values, rows, tuple(more))

    @property
    def _goal(self) -> Goal:
        if self.task.loss.goal is None:
            raise SettingError("a loss of your own has no metrics: use predict")
        return self.task.loss.goal

    def _rows(self, which: Literal["test", "train"] | Placement) -> Placement:
        if isinstance(which, Placement):
            return which
        if which == "test" and self.data.test is None:
            raise SettingError("there are no test rows: choose others (rows='train')")
        test = self.data.test
        return test if which == "test" and test is not None else self.data.train

    def _record(self, fitted: Fitted, wall: float) -> Record:
        goal, loss = self.task.loss.goal, self.task.loss
        if self.name != "best-pooled" and goal is not None:
            loss = losses[LOSSES[goal]]()  # what scikit-learn's scores are made for
        train = self.data.train
        scores = fitted.scores(train)
        loss = loss.to(scores.dtype, torch.device("cpu"))
        labels = loss.labels(train.labels(), scores.dtype)
        judged = self.predictions()
        return Record(
            round=fitted.epochs,
            iteration=fitted.steps,
            time=None,
            wall=wall,
            bytes={},
            train_loss=float(loss.rows(scores, labels).mean()),
            metrics=self.evaluate() if judged is not None else {},
            notes={"pooled": self.name, **fitted.notes},
            intervals=None if judged is None else judged.intervals(),
        )

    def __repr__(self) -> str:
        return f"<baseline {self.name}{'' if self._fitted else ', not trained'}>"
