"""Thresholds: the best by a rule, on the rows that they are chosen on, and on no others."""

import numpy as np
import pytest
import sklearn.metrics
import torch

from fedloom import TDCD, Alone, Partition, Run, Task, errors, load_dataset, load_model
from fedloom.config.sections import Stopping
from fedloom.models.threshold import check_threshold
from fedloom.records.thresholds import choose_threshold

RULES = ["f1", "balanced", "accuracy", {"missed": 5.0}, {"missed": 1.0, "false_alarm": 3.0}]


def worth(rule, labels, predicted):
    if isinstance(rule, dict):
        missed = int(((labels == 1) & (predicted == 0)).sum())
        alarms = int(((labels == 0) & (predicted == 1)).sum())
        return -rule["missed"] * missed - rule.get("false_alarm", 1.0) * alarms
    if rule == "f1":
        return sklearn.metrics.f1_score(labels, predicted, zero_division=0)
    if rule == "balanced":
        return sklearn.metrics.balanced_accuracy_score(labels, predicted)
    return sklearn.metrics.accuracy_score(labels, predicted)


def scored(seed, rows=40, ties=False):
    draw = np.random.default_rng(seed)
    labels = (draw.random(rows) < 0.3).astype(int)
    labels[:2] = 0, 1
    scores = draw.normal(size=rows) + labels
    return torch.tensor(labels), torch.tensor(scores.round() if ties else scores)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_best_of_all(rule, ties):
    for seed in range(5):
        labels, scores = scored(seed, ties=ties)
        chances = scores.sigmoid()
        cuts = [0.0, *chances.tolist(), 1.0]
        best = max(worth(rule, labels.numpy(), (chances > cut).int().numpy()) for cut in cuts)
        chosen = choose_threshold(labels, scores, rule)
        assert 0 < chosen < 1
        found = worth(rule, labels.numpy(), (chances > chosen).int().numpy())
        assert found == pytest.approx(best, abs=1e-12)
        assert float((chances - chosen).abs().min()) > 1e-6  # between rows, not on one


def test_of_equally_good_ones_that_nearest_to_a_half():
    labels, apart = torch.tensor([0, 0, 1, 1]), torch.tensor([-9.0, -1.0, 3.0, 9.0])
    low, high = apart.double().sigmoid()[1:3].tolist()
    assert choose_threshold(labels, apart, "f1") == pytest.approx((low + high) / 2)
    same = torch.zeros(4)  # either all rows or none: a quarter, or three
    assert choose_threshold(labels, same, "f1") == 0.25
    assert choose_threshold(labels, same, {"missed": 0.1}) == 0.75
    assert choose_threshold(labels, apart * float("nan"), "f1") == 0.5
    huge = torch.tensor([-1e4, -1e3, 1e3, 1e4])
    assert 0 < choose_threshold(labels, huge, "balanced") < 1


@pytest.fixture(scope="module")
def data():
    made = load_dataset("synthetic", rows=600, noise=1.0)
    return Partition(silos=2, clients=[2, 3], seed=1).place(made)


def run_on(data, rule=None, **more):
    rule = rule or TDCD(local_steps=3, lr=0.3, batch=50)
    return Run(rule, Task.of(data, loss=None), data, seed=1, **more)


def test_test_rows_are_judged_and_never_looked_at(data, tmp_path):
    held = data.with_validation(0.25)
    run = run_on(held, threshold={"missed": 8.0}).fit(6, every=3)
    scores, labels = run.predict("validation"), held.validation.labels()
    wanted = choose_threshold(labels, scores, {"missed": 8.0})
    assert run.records[-1].threshold == wanted != 0.5
    predicted = (run.predict().double().sigmoid()[:, 0] > wanted).long()
    truth = held.test.labels()
    found = run.records[-1].metrics
    assert found["accuracy"] == pytest.approx(float((predicted == truth).double().mean()))
    assert found["f1"] == pytest.approx(sklearn.metrics.f1_score(truth, predicted))
    plain = run_on(held).fit(6, every=3)
    assert plain.records[-1].threshold is None
    assert "threshold" not in plain.records[-1].to_json()
    assert plain.records[-1].metrics["auroc"] == found["auroc"]
    assert plain.records[-1].metrics["recall"] < found["recall"]
    model = load_model(run.save(tmp_path / "model"))
    assert model.threshold == wanted
    assert torch.equal(model.decide(run.predict()), predicted)
    assert model.evaluate(held.test) == pytest.approx(found)
    for other in held.test.y.values():  # other test labels, the same threshold
        other[:] = 1 - other
    again = run_on(held, threshold={"missed": 8.0}).fit(6, every=3)
    assert again.records[-1].threshold == wanted
    assert again.records[-1].metrics["accuracy"] == pytest.approx(1 - found["accuracy"])


def test_a_number_needs_no_rows(data):
    run = run_on(data, threshold=0.9).fit(2, every=2)
    assert run.records[-1].threshold == 0.9
    assert run.evaluate()["recall"] < run_on(data).fit(2).evaluate()["recall"]


def test_silos_alone_have_a_threshold_each(data):
    held = data.with_validation(0.25)
    run = run_on(held, Alone(local_steps=3, lr=0.3, batch=50), threshold="f1").fit(4, every=4)
    chosen = run.records[-1].threshold
    assert set(chosen) == set(held.train.topology.silos)
    model = run.trained()
    for silo, own in chosen.items():
        scores = run.predict("validation", silo)
        assert own == choose_threshold(held.validation.labels(), scores, "f1")
        chances = scores.double().sigmoid()[:, 0]
        assert torch.equal(model.decide(scores, silo), (chances > own).long())
    with pytest.raises(errors.SettingError, match="decide alone: at=None"):
        model.decide(scores)


def test_the_model_that_is_kept_has_its_own(data):
    """With early stopping: that of the best round, not of the last."""
    held = data.with_validation(0.25)
    rule = TDCD(local_steps=3, lr=4.0, batch=50)
    stop = Stopping(patience=3)
    run = run_on(held, rule, threshold="balanced").fit(12, every=1, stop=stop)
    best = run.records[run.best.round]
    assert run.best.round < run.round
    assert best.threshold != run.records[-1].threshold
    assert run.trained().threshold == run.model_threshold == best.threshold


@pytest.mark.parametrize(
    ("threshold", "why"),
    [
        ("f1", r"the best F1 is sought on validation rows, and there are none: set `validation`"),
        ({"missed": 2}, r"the lowest cost \(2 for a missed row, 1 for a false alarm\) is sought"),
        ("f2", "did you mean|known: accuracy, balanced, f1"),
        (1.0, "above 0 and below 1, not 1.0"),
        (0, "above 0 and below 1, not 0"),
        ({"mised": 1.0}, "no cost 'mised'; did you mean 'missed'"),
        ({"false_alarm": 1.0}, "say what a `missed` row"),
        ({"missed": 0.0}, "missed must be above 0, not 0"),
    ],
)
def test_what_cannot_be_is_said_before_training(data, threshold, why):
    with pytest.raises(errors.SettingError, match=why):
        run_on(data, threshold=threshold)


def test_only_two_classes_have_one(data):
    three = Partition(silos=2).place(load_dataset("synthetic", goal="classes", rows=60))
    with pytest.raises(errors.SettingError, match="only two classes have one, not the goal class"):
        run_on(three, TDCD(batch=10), threshold=0.3)
    held = data.with_validation(0.25)
    for y in held.validation.y.values():
        y[:] = 1
    with pytest.raises(errors.DataError, match="all validation rows are of one class"):
        run_on(held, threshold="f1")
    check_threshold(0.3)
