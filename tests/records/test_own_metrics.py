"""Metrics that are functions of labels and scores, or objects as torchmetrics has them."""

import numpy as np
import pytest
import sklearn.metrics
import torch

from fedloom import TDCD, Partition, Run, Task, errors, load_dataset
from fedloom.core.registry import metrics as registered
from fedloom.records.metrics import metrics
from fedloom.records.own_metrics import chosen_metrics


class Brier:
    """As torchmetrics has them: batches add up until `reset`."""

    higher_is_better = False

    def __init__(self):
        self.seen = []

    def update(self, predicted, labels):
        self.seen.append((predicted - labels).square())

    def compute(self):
        return torch.cat(self.seen).mean()

    def reset(self):
        self.seen = []


def largest(labels, scores):
    assert labels.shape == scores.shape
    return scores.max()


@pytest.fixture(scope="module")
def run():
    data = Partition(silos=2, clients=2).place(load_dataset("synthetic", rows=200))
    given = [sklearn.metrics.roc_auc_score, Brier(), largest, "auprc"]
    return Run(TDCD(lr=0.1, batch=30), Task.of(data), data, metrics=given).fit(2, every=1)


def test_they_are_measured_beside_the_usual_ones(run):
    scores, labels = run.predict().double(), run.test.labels()
    for found in (run.records[-1].metrics, run.evaluate()):
        assert found["roc_auc_score"] == pytest.approx(found["auroc"])
        brier = (scores[:, 0].sigmoid() - labels).square().mean()
        assert found["Brier"] == pytest.approx(float(brier))
        assert found["largest"] == pytest.approx(float(scores.max()))
    brier = next(metric for metric in run.metrics if metric.name == "Brier")
    assert brier.smaller_is_better
    assert run.trained().evaluate(run.test, more=[largest])["largest"] == found["largest"]
    assert "largest" not in set(registered)


def test_what_they_are_given():
    draw, seen = np.random.default_rng(0), {}

    def look(labels, scores):
        seen["rows"] = labels, scores
        return 0.0

    for goal, width, labels in (
        ("classes", 3, draw.integers(0, 3, 20)),
        ("number", 1, draw.normal(size=20)),
        ("number", 2, draw.normal(size=(20, 2))),
    ):
        scores = draw.normal(size=(20, width))
        given = chosen_metrics([look], goal)
        metrics(goal, torch.tensor(scores), torch.tensor(labels), given)
        found_labels, found_scores = seen["rows"]
        assert np.array_equal(found_labels, labels)
        assert np.array_equal(found_scores, scores[:, 0] if width == 1 else scores)


def test_an_object_of_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
    labels, scores = torch.randint(3, (50,)), torch.randn(50, 3)
    kinds = torchmetrics.classification
    given = [kinds.MulticlassAccuracy(3, average="micro"), kinds.MulticlassAUROC(3)]
    found = metrics("classes", scores, labels, chosen_metrics(given, "classes"))
    assert found["MulticlassAccuracy"] == pytest.approx(found["accuracy"], abs=1e-6)
    assert found["MulticlassAUROC"] == pytest.approx(found["auroc"], abs=1e-6)


def accuracy(labels, scores):
    return 0.0


@pytest.mark.parametrize(
    ("given", "goal", "why"),
    [
        ([lambda labels, scores: 0.0], "binary", "a function without a name"),
        ([Brier], "binary", "a name or a function is expected, not the class Brier"),
        ([3], "binary", "a name or a function is expected, not 3"),
        ([accuracy], "binary", "metric accuracy: there is another of this name"),
        ([Brier(), Brier()], "binary", "metric Brier: there is another of this name"),
        ([largest], None, "not for a loss of your own"),
        (["mse"], "binary", "metric mse is for number, not for the goal binary"),
    ],
)
def test_what_is_refused(given, goal, why):
    with pytest.raises(errors.SettingError, match=why):
        chosen_metrics(given, goal)


def test_one_that_fails_names_itself():
    def fails(labels, scores):
        raise ZeroDivisionError("nothing to divide")

    def words(labels, scores):
        return "high"

    for function in (fails, words):
        given = chosen_metrics([function], "binary")
        with pytest.raises(errors.SettingError, match=f"the metric {function.__name__} failed"):
            metrics("binary", torch.zeros(2, 1), torch.tensor([0, 1]), given)


def test_numbers_and_counts():
    draw = np.random.default_rng(1)
    counts, means = draw.poisson(2.0, 50), draw.gamma(2.0, size=50)
    more = ("mae", "poisson-deviance")
    found = metrics("number", torch.tensor(means)[:, None], torch.tensor(counts), more)
    assert found["mae"] == pytest.approx(sklearn.metrics.mean_absolute_error(counts, means))
    wanted = sklearn.metrics.mean_poisson_deviance(counts, means)
    assert found["poisson-deviance"] == pytest.approx(wanted)
    below = metrics("number", -torch.tensor(means)[:, None], torch.tensor(counts), more)
    assert below["poisson-deviance"] is None
