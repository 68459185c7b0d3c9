"""Metrics, against numbers worked out by hand and scikit-learn's."""

import numpy as np
import pytest
import sklearn.metrics
import torch

from fedloom.core.errors import SettingError
from fedloom.core.registry import metrics as registered
from fedloom.records.metrics import NAMES, Scored, metric, metrics, smaller_is_better
from fedloom.records.own_metrics import chosen_metrics


def test_binary_by_hand():
    scores = torch.tensor([[2.0], [-1.0], [-2.0], [0.5], [-3.0]])
    found = metrics("binary", scores, torch.tensor([1, 1, 1, 0, 0]))
    wanted = {"accuracy": 0.4, "f1": 0.4, "precision": 1 / 2, "recall": 1 / 3, "auroc": 4 / 6}
    assert found == pytest.approx({**wanted, "auprc": (1 + 2 / 3 + 3 / 4) / 3})
    assert set(found) == set(NAMES["binary"])


def test_classes_by_hand():
    scores = torch.eye(7)[[0, 1, 2, 3]] + torch.arange(7.0) * 0.01
    labels = torch.tensor([0, 1, 2, 4])
    found = metrics("classes", scores, labels)
    assert set(found) == set(NAMES["classes"])
    assert found["accuracy"] == 0.75
    assert found["top5"] == 1.0  # class 4 is the fourth best of row 3
    ranked = torch.arange(7.0, 0.0, -1.0).expand(7, 7)  # class c is the c-th best but one
    assert metrics("classes", ranked, torch.arange(7))["top5"] == 5 / 7
    few = metrics("classes", torch.randn(9, 3), torch.arange(9) % 3)
    assert "top5" not in few  # with three classes it would always be 1


def test_auroc_of_classes_is_a_mean_over_classes():
    draw = np.random.default_rng(0)
    z, y = draw.normal(size=(300, 4)), draw.integers(0, 4, 300)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    wanted = sklearn.metrics.roc_auc_score(y, p, multi_class="ovr", average="macro")
    found = metrics("classes", torch.tensor(z), torch.tensor(y))["auroc"]
    assert found == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_they_are_scikit_learns(classes, ties):
    """Also where many rows score the same, and a class has no rows or is never said."""
    draw = np.random.default_rng(classes)
    for rows in (3, 40, 500):
        scores = draw.normal(size=(rows, 1 if classes == 2 else classes))
        scores = scores.round() if ties else scores
        labels = draw.integers(0, max(2, classes - 1), rows)
        labels[:2] = 0, 1
        goal = "binary" if classes == 2 else "classes"
        found = metrics(goal, torch.tensor(scores), torch.tensor(labels))
        scored = Scored(goal, scores, labels)
        average = "binary" if classes == 2 else "macro"
        precision, recall, f1, _ = sklearn.metrics.precision_recall_fscore_support(
            labels, scored.predicted, average=average, zero_division=0
        )
        known = {"precision": precision, "recall": recall, "f1": f1}
        known["accuracy"] = sklearn.metrics.accuracy_score(labels, scored.predicted)
        for name, score in (
            ("auroc", sklearn.metrics.roc_auc_score),
            ("auprc", sklearn.metrics.average_precision_score),
        ):
            known[name] = np.mean([score(positive, odds) for positive, odds in scored.by_class])
        known = {name: float(value) for name, value in known.items()}
        assert {name: found[name] for name in known} == pytest.approx(known, abs=1e-13)
    numbers, wanted = draw.normal(size=(2, 50, 3))
    found = metrics("number", torch.tensor(numbers), torch.tensor(wanted))
    assert found["r2"] == pytest.approx(sklearn.metrics.r2_score(wanted, numbers), abs=1e-13)
    assert found["mse"] == pytest.approx(sklearn.metrics.mean_squared_error(wanted, numbers))


def test_rows_without_an_order_have_no_area():
    scores = torch.tensor([[float("nan")], [1.0], [0.0]])
    found = metrics("binary", scores, torch.tensor([1, 1, 0]))
    assert found["auroc"] is None
    assert found["auprc"] is None
    assert found["accuracy"] == pytest.approx(2 / 3)


def test_numbers_by_hand():
    found = metrics("number", torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0]))
    assert found == pytest.approx({"r2": 0.5, "mse": 1 / 3})


def test_what_is_undefined_is_none():
    assert metrics("binary", torch.randn(5, 1), torch.ones(5))["auroc"] is None
    assert metrics("number", torch.randn(5, 1), torch.ones(5))["r2"] is None
    half = torch.stack([torch.arange(5.0), torch.ones(5)], 1)
    assert metrics("number", torch.randn(5, 2), half)["r2"] is None
    assert metrics("number", torch.randn(0, 1), torch.ones(0)) == {}


@pytest.fixture
def register():
    """The decorator; what it registers is forgotten after the test."""
    with registered.scratch():
        yield metric


def test_a_metric_of_ones_own(register):
    @register("largest", "classes", "number", smaller_is_better=True)
    def largest(rows: Scored) -> float | None:
        """The largest score."""
        return rows.scores.max()

    @register("undefined", "classes")
    def undefined(rows):
        return float("nan")

    scores, labels = torch.tensor([[1.0, 3.0], [2.0, 0.0]]), torch.tensor([1, 1])
    found = metrics("classes", scores, labels, ("largest", "undefined"))
    assert list(found)[-2:] == ["largest", "undefined"]
    assert found["largest"] == 3.0
    assert found["undefined"] is None
    assert metrics("number", torch.ones(3, 1), torch.ones(3), ["largest"])["largest"] == 1.0
    assert registered["largest"].about == "The largest score."
    assert smaller_is_better("largest")
    assert not smaller_is_better("accuracy")
    assert not smaller_is_better("of a plugin that is not here")


def test_metrics_that_cannot_be(register):
    @register("fails", "binary")
    def fails(rows):
        return rows.nothing

    @register("words", "binary")
    def words(rows):
        return "high"

    with pytest.raises(SettingError, match=r"the metric fails failed \(AttributeError: .*nothing"):
        metrics("binary", torch.zeros(2, 1), torch.tensor([0, 1]), ["fails"])
    with pytest.raises(SettingError, match="the metric words failed"):
        metrics("binary", torch.zeros(2, 1), torch.tensor([0, 1]), ["words"])
    with pytest.raises(SettingError, match="metric fails is for binary, not for the goal number"):
        chosen_metrics(["mse", "fails"], "number")
    with pytest.raises(SettingError, match="not for a loss of your own"):
        chosen_metrics(["fails"], None)
    with pytest.raises(SettingError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        chosen_metrics(["acuracy"], "binary")
    for goals in ((), ("clases",)):
        with pytest.raises(SettingError, match="metric odd: name its goals"):
            register("odd", *goals)(fails.compute)
    with pytest.raises(SettingError, match="'accuracy' is registered already"):
        register("accuracy", "binary")(fails.compute)
