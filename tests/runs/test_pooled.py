"""Baselines on the pooled rows, against scikit-learn and torch themselves."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Partition, Pooled, Task, load_dataset
from fedloom.core import extras
from fedloom.core.errors import SettingError
from fedloom.models.losses import Squared
from fedloom.runs.pooled import network
from fedloom.runs.pooled.analyst import PENALTIES, STRENGTHS


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(network, "EPOCHS", 60)


def federated(name, silos=3, **more):
    return Partition(silos=silos, clients=2, **more).place(load_dataset(name))


def table(rows):
    return np.concatenate([x.double().numpy() for x in rows.x.values()], 1)


def pooled(name, data, seed=0):
    return Pooled(name, Task.of(data, "linear"), data, seed=seed).fit()


def test_ridge_is_scikit_learns():
    from sklearn.linear_model import RidgeCV
    from sklearn.metrics import mean_squared_error, r2_score

    data = federated("diabetes")
    x, y = table(data.train), data.train.labels().double().numpy()
    mean, spread = x.mean(0), x.std(0)
    model = RidgeCV(alphas=PENALTIES).fit((x - mean) / spread, y)
    expected = model.predict((table(data.test) - mean) / spread)
    found = pooled("ridge", data)
    np.testing.assert_allclose(found.predict()[:, 0], expected, rtol=1e-10)
    truth = data.test.labels().double().numpy()
    (record,) = found.records
    assert record.metrics["r2"] == pytest.approx(r2_score(truth, expected))
    assert record.metrics["mse"] == pytest.approx(mean_squared_error(truth, expected))
    assert record.notes == {"pooled": "ridge", "alpha": model.alpha_}
    fitted = model.predict((x - mean) / spread)
    assert record.train_loss == pytest.approx(((fitted - y) ** 2).mean() / 2)


@pytest.mark.parametrize("name", ["breast-cancer", "wine"])
def test_logistic_is_scikit_learns(name):
    """Two classes and three; the strength by a loop over folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss, roc_auc_score
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data = federated(name)
    x, y = table(data.train), data.train.labels().long().numpy()

    def model(strength):
        return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))

    losses = {}
    for strength in STRENGTHS:
        folds = StratifiedKFold(5, shuffle=True, random_state=7).split(x, y)
        losses[strength] = np.mean(
            [log_loss(y[b], model(strength).fit(x[a], y[a]).predict_proba(x[b])) for a, b in folds]
        )
    best = min(losses, key=losses.get)
    expected = model(best).fit(x, y).predict_proba(table(data.test))
    found = pooled("logistic", data, seed=7)
    scores, truth = found.predict(), data.test.labels().long().numpy()
    said = scores.sigmoid() if name == "breast-cancer" else scores.softmax(1)
    np.testing.assert_allclose(said, expected[:, -said.shape[1] :], atol=1e-8)
    (record,) = found.records
    assert record.notes == {"pooled": "logistic", "C": best}
    assert record.metrics["accuracy"] == pytest.approx((expected.argmax(1) == truth).mean())
    if name == "breast-cancer":
        assert record.metrics["auroc"] == pytest.approx(roc_auc_score(truth, expected[:, 1]))


@pytest.mark.parametrize("name", ["breast-cancer", "wine", "diabetes"])
def test_boosting_is_scikit_learns(name):
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    data = federated(name)
    x, y, z = table(data.train), data.train.labels().numpy(), table(data.test)
    scores = pooled("boosting", data, seed=3).predict()
    if name == "diabetes":
        model = HistGradientBoostingRegressor(random_state=3).fit(x, y.astype(float))
        np.testing.assert_allclose(scores[:, 0], model.predict(z), rtol=1e-6)
        return
    said = scores.sigmoid() if name == "breast-cancer" else scores.softmax(1)
    expected = HistGradientBoostingClassifier(random_state=3).fit(x, y.astype(int)).predict_proba(z)
    np.testing.assert_allclose(said, expected[:, -said.shape[1] :], atol=1e-8)


def test_labels_in_one_silo_only_will_do():
    found = [
        pooled("ridge", data)
        for data in (federated("diabetes"), federated("diabetes", labels_at="b"))
    ]
    assert torch.equal(found[0].predict(), found[1].predict())


def test_best_pooled_is_plain_torch():
    """The epochs of its better step size, again in a plain loop."""
    data = federated("diabetes")
    task = Task.of(data, "mlp", hidden=[4])
    found = Pooled("best-pooled", task, data, seed=1, precision="float64").fit()
    (record,) = found.records
    x = {j: a.double() for j, a in data.train.x.items()}
    y = data.train.labels().double()
    centre, spread = y.mean(), y.std(correction=0)
    shapes = task.shapes(data.train, torch.float64)
    model = network.Scaled(task, shapes, 1, y, torch.device("cpu"))
    nets = nn.ModuleList(model.joint.blocks)
    fitting, validation = network._split(len(y), 1)
    assert len(validation) == record.notes["validation_rows"] == round(0.2 * len(y))
    assert sorted([*fitting.tolist(), *validation.tolist()]) == list(range(len(y)))
    optimizer = torch.optim.Adam(nets.parameters(), lr=record.notes["lr"])

    def out(rows):
        return centre + spread * sum(net(x[j][rows]) for net, j in zip(nets, x, strict=True))[:, 0]

    losses = []
    for epoch in range(1, record.round + 1):
        for rows in network._minibatches(fitting, 1, record.notes["lr"], epoch):
            optimizer.zero_grad()
            ((out(rows) - y[rows]) ** 2 / 2).mean().backward()
            optimizer.step()
        with torch.no_grad():
            losses.append(float(((out(validation) - y[validation]) ** 2 / 2).mean()))
    assert losses[-1] == min(losses)  # the best epoch is kept
    with torch.no_grad():
        loss = ((out(torch.arange(len(y))) - y) ** 2 / 2).mean()
        test = {j: a.double() for j, a in data.test.x.items()}
        joint = sum(net(test[j]) for net, j in zip(nets, x, strict=True))
    assert record.train_loss == pytest.approx(float(loss), rel=1e-9)
    torch.testing.assert_close(found.predict(), centre + spread * joint, rtol=1e-9, atol=1e-9)


def test_best_pooled_learns_labels_of_any_unit():
    data = federated("diabetes")
    big = {j: None if y is None else 1e5 + 2e4 * y for j, y in data.train.y.items()}
    large = replace(data, train=replace(data.train, y=big), test=None)
    task = Task.of(data, "linear")
    small = Pooled("best-pooled", task, data).fit()
    found = Pooled("best-pooled", task, large).fit()
    assert found.records[0].metrics == {}
    assert found.evaluate("train")["r2"] == pytest.approx(small.evaluate("train")["r2"], abs=0.01)


def test_with_a_head_over_a_concatenation():
    data = federated("breast-cancer")
    options = {"hidden": [4], "embedding": 3, "head": "linear", "combine": "concat"}
    found = Pooled("best-pooled", Task.of(data, "mlp", **options), data).fit()
    assert found.records[0].metrics["auroc"] > 0.97
    low, high = found.predictions().intervals()["auroc"]
    assert low < found.records[0].metrics["auroc"] < high


def test_it_is_the_same_again_and_another_with_another_seed():
    data = federated("wine")
    task = Task.of(data, "linear")
    first, again, other = (Pooled("best-pooled", task, data, seed=s).fit() for s in (0, 0, 1))
    assert torch.equal(first.predict(), again.predict())
    assert not torch.equal(first.predict(), other.predict())


class Own(Squared):
    goal = None


def test_what_does_not_fit_is_refused_before_training(monkeypatch):
    numbers, classes = federated("diabetes"), federated("wine")
    with pytest.raises(SettingError, match="labels are numbers: name ridge"):
        pooled("logistic", numbers)
    with pytest.raises(SettingError, match="labels are classes: name logistic"):
        pooled("ridge", classes)
    with pytest.raises(SettingError, match="did you mean 'ridge'"):
        pooled("rigde", numbers)
    with pytest.raises(SettingError, match="leave ridge out, or name best-pooled"):
        Pooled("ridge", Task.of(numbers, "linear", loss=Own()), numbers)
    assert Pooled("best-pooled", Task.of(numbers, "linear", loss=Own()), numbers).headline is None
    with pytest.raises(SettingError, match="nothing is trained yet"):
        Pooled("ridge", Task.of(numbers, "linear"), numbers).predict()
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(SettingError, match=r"the baseline ridge needs .*fedloom\[data\]"):
        pooled("ridge", numbers)
