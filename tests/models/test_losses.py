"""Losses are torch's, row by row, with any settings; what does not fit is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import TDCD, VAFL, Alone, Run, SplitNN, Task, errors, partition
from fedloom.config.sections import Stopping
from fedloom.core import tree
from fedloom.data.federated import Federated
from fedloom.models.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    Huber,
    Loss,
    OwnLoss,
    Poisson,
    Quantile,
    loss_of,
)

ROWS = 60


def numbers(goal, size=3.0, classes=3, seed=0):
    """Scores and labels in double precision."""
    draw = torch.Generator().manual_seed(seed)
    width = {"classes": classes, "binary": 1, "number": 2}[goal]
    scores = size * torch.randn(ROWS, width, dtype=torch.float64, generator=draw)
    if goal == "number":
        return scores, torch.randint(6, (ROWS, 2), generator=draw).double()
    labels = torch.randint(classes if goal == "classes" else 2, (ROWS,), generator=draw)
    return scores, labels.double() if goal == "binary" else labels


def weighted(classes, smoothing):
    weights = tuple(0.5 + k for k in range(classes))
    return weights, CrossEntropy(class_weights=weights, label_smoothing=smoothing)


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def check_gradients(loss, scores, labels):
    """Its own, autograd's, and those of one row at a time."""
    fresh = scores.clone().requires_grad_()
    loss.rows(fresh, labels).sum().backward()
    same(loss.gradients(scores, labels), fresh.grad)
    same(Loss.gradients(loss, scores, labels), fresh.grad)
    alone = [loss.gradients(scores[i : i + 1], labels[i : i + 1]) for i in range(5)]
    same(torch.cat(alone), fresh.grad[:5])


@pytest.mark.parametrize("size", [1.0, 300.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("classes", [3, 20])
def test_weighted_and_smoothed_classes(classes, smoothing, size):
    weights, loss = weighted(classes, smoothing)
    scores, labels = numbers("classes", size, classes)
    wanted = F.cross_entropy(
        scores,
        labels,
        torch.tensor(weights, dtype=torch.float64),
        label_smoothing=smoothing,
        reduction="none",
    )
    for made in (loss, loss.to(torch.float64, torch.device("cpu"))):
        same(made.rows(scores, labels), wanted)
        check_gradients(made, scores, labels)
    smooth = CrossEntropy(label_smoothing=smoothing)
    plain = F.cross_entropy(scores, labels, label_smoothing=smoothing, reduction="none")
    same(smooth.rows(scores, labels), plain)
    check_gradients(smooth, scores, labels)


@pytest.mark.parametrize("size", [1.0, 300.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_two_classes_are_those_of_two_scores(smoothing, size):
    """One logit z means what the logits 0 and z mean."""
    scores, labels = numbers("binary", size)
    two = torch.cat([torch.zeros_like(scores), scores], 1)
    for weights in (None, (0.5, 4.0), (0.0, 1.0)):
        loss = BinaryCrossEntropy(class_weights=weights, label_smoothing=smoothing)
        tensor = None if weights is None else torch.tensor(weights, dtype=torch.float64)
        wanted = F.cross_entropy(
            two, labels.long(), tensor, label_smoothing=smoothing, reduction="none"
        )
        same(loss.rows(scores, labels), wanted)
        check_gradients(loss, scores, labels)
    by_torch = nn.BCEWithLogitsLoss(reduction="none", pos_weight=torch.tensor(4.0))
    found = BinaryCrossEntropy(class_weights=(1.0, 4.0)).rows(scores, labels)
    same(found, by_torch(scores[:, 0], labels))


@pytest.mark.parametrize(
    ("loss", "by_torch"),
    [
        (Huber(), nn.HuberLoss(reduction="none")),
        (Huber(delta=0.3), nn.HuberLoss(reduction="none", delta=0.3)),
        (Poisson(), nn.PoissonNLLLoss(reduction="none")),
        (Quantile(0.9), lambda z, y: torch.maximum(0.9 * (y - z), -0.1 * (y - z))),
        (Quantile(), lambda z, y: 0.5 * (y - z).abs()),
    ],
)
def test_losses_of_numbers(loss, by_torch):
    scores, labels = numbers("number")
    same(loss.rows(scores, labels), by_torch(scores, labels).sum(1))
    check_gradients(loss, scores, labels)
    one, flat = scores[:, :1], labels[:, 0]  # labels of one number have no second axis
    same(loss.rows(one, flat), by_torch(one[:, 0], flat))


def data(goal, clients=(2, 3), seed=0, size=90):
    draw = torch.Generator().manual_seed(seed)
    x = {f"s{j}": torch.randn(size, 3, generator=draw) for j in range(len(clients))}
    if goal == "number":
        labels = (x["s0"][:, 0] + 1).clamp(min=0).round()
    else:
        three = (x["s0"][:, 0] > 0).long() + (x["s0"][:, 1] > 1).long()
        labels = three if goal == "classes" else (three == 2).float()
    rows = partition(x, labels, {f"s{j}": k for j, k in enumerate(clients)})
    return Federated("made up", goal, rows)


def hinge(scores, labels):
    return (1 - (2 * labels - 1) * scores).clamp(min=0)[:, 0]


LOSSES = [
    ("classes", {"name": "cross-entropy", "class_weights": "balanced", "label_smoothing": 0.1}),
    ("classes", nn.CrossEntropyLoss(reduction="none", weight=torch.tensor([1.0, 2.0, 3.0]))),
    ("binary", {"name": "binary-cross-entropy", "class_weights": [1, 9], "label_smoothing": 0.1}),
    ("binary", hinge),
    ("number", {"name": "huber", "delta": 0.5}),
    ("number", {"name": "quantile", "quantile": 0.8}),
    ("number", "poisson"),
    ("number", nn.SmoothL1Loss(reduction="none")),
]
RULES = [
    TDCD(local_steps=2, lr=0.05, batch=30),
    VAFL(lr=0.05, batch=30, local_steps=2),
    SplitNN(lr=0.05, batch=30),
    Alone(lr=0.05, batch=30, local_steps=2, combined=True),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize(("goal", "loss"), LOSSES)
def test_engines_agree(goal, loss, rule):
    rows = data(goal)
    if isinstance(rule, SplitNN):
        task = Task.of(rows, "mlp", hidden=[4], loss=loss, embedding=3, head="linear")
    else:
        task = Task.of(rows, "mlp", hidden=[4], loss=loss)
    made = {"precision": "float64", "seed": 1}
    fast = Run(rule, task, rows, **made).fit(2)
    slow = Run(rule, task, rows, engine="reference", **made).fit(2)
    blocks = [run.algorithm.blocks(run.fed, run.state) for run in (fast, slow)]
    assert tree.largest_difference(*blocks) < 1e-12
    assert list(fast.ledger) == list(slow.ledger)
    torch.testing.assert_close(fast.predict("train"), slow.predict("train"), rtol=0, atol=1e-12)
    start = Run(rule, task, rows, **made)
    moved = tree.largest_difference(
        start.algorithm.blocks(start.fed, start.algorithm.start(start.fed)), blocks[0]
    )
    assert moved > 1e-3


@pytest.mark.parametrize(("goal", "loss"), LOSSES)
def test_one_client_is_torch(goal, loss):
    """All rows at one client, in each step: SGD of the joined network with torch's loss, divided by
    the number of rows."""
    rows = data(goal, clients=(1,))
    task = Task.of(rows, "linear", loss=loss)
    rule = TDCD(local_steps=4, lr=0.1, batch=rows.train.size)
    run = Run(rule, task, rows, precision="float64")
    start = run.algorithm.blocks(run.fed, run.algorithm.start(run.fed))["s0"].block
    fresh = run.fed.parts.value["s0"].block.with_params(start)
    step = torch.optim.SGD(fresh.parameters(), lr=0.1)
    x, y, made = rows.train.x["s0"].double(), rows.train.labels(), task.loss
    for _ in range(4):
        step.zero_grad()
        z = fresh(x)
        if isinstance(made, CrossEntropy):
            weight = torch.tensor(made.class_weights, dtype=torch.float64)
            total = F.cross_entropy(z, y, weight, label_smoothing=0.1, reduction="sum")
        elif isinstance(made, BinaryCrossEntropy):
            two = torch.cat([torch.zeros_like(z), z], 1)
            weight = torch.tensor([1.0, 9.0], dtype=torch.float64)
            total = F.cross_entropy(two, y.long(), weight, label_smoothing=0.1, reduction="sum")
        elif isinstance(made, Huber):
            total = F.huber_loss(z[:, 0], y.double(), delta=0.5, reduction="sum")
        elif isinstance(made, Quantile):
            total = torch.maximum(0.8 * (y - z[:, 0]), -0.2 * (y - z[:, 0])).sum()
        elif isinstance(made, Poisson):
            total = F.poisson_nll_loss(z[:, 0], y.double(), reduction="sum")
        elif goal == "classes":
            total = F.cross_entropy(z, y, torch.tensor([1.0, 2, 3]).double(), reduction="sum")
        elif goal == "binary":
            total = hinge(z, y[:, None]).sum()
        else:
            total = F.smooth_l1_loss(z[:, 0], y.double(), reduction="sum")
        (total / len(y)).backward()
        step.step()
    trained = run.fit(1).algorithm.blocks(run.fed, run.state)["s0"].block
    wanted = {name: value.detach() for name, value in fresh.named_parameters()}
    assert tree.largest_difference(trained, wanted) < 1e-12


def test_balanced_weights_are_those_of_the_training_labels():
    rows = data("classes")
    task = Task.of(rows, loss={"name": "cross-entropy", "class_weights": "balanced"})
    counts = torch.bincount(rows.train.labels()).double()
    wanted = counts.sum() / (3 * counts)
    same(torch.tensor(task.loss.class_weights, dtype=torch.float64), wanted)
    scores, labels = torch.randn(90, 3, dtype=torch.float64), rows.train.labels()
    by_torch = F.cross_entropy(scores, labels, wanted)  # divided by the sum of the rows' weights
    same(task.loss.rows(scores, labels).mean(), by_torch)  # which is here the number of rows
    named = Federated("named", "classes", rows.train, classes=("a", "b", "c"))
    loss = {"name": "cross-entropy", "class_weights": {"c": 3, "a": 1, "b": 0}}
    assert Task.of(named, loss=loss).loss.class_weights == (1.0, 0.0, 3.0)


def test_own_losses_in_single_precision_and_on_disk(tmp_path):
    from fedloom import load_model

    rows = data("classes")
    loss = nn.CrossEntropyLoss(reduction="none", weight=torch.tensor([1.0, 2, 3]).double())
    run = Run(TDCD(lr=0.1, batch=30), Task.of(rows, loss=loss), rows).fit(1)
    assert run.task.loss.goal == "classes"
    assert "accuracy" in run.evaluate("train")
    assert loss.weight.dtype == torch.float64  # the user's own module is left as it is
    run.save(tmp_path / "model")
    with pytest.raises(errors.ModelError, match="a loss of your own is not saved as code"):
        load_model(tmp_path / "model")
    again = load_model(tmp_path / "model", loss=loss)
    assert again.evaluate(rows.train) == pytest.approx(run.evaluate("train"))


@pytest.mark.parametrize(
    "loss",
    [
        {"name": "huber", "delta": 0.5},
        {"name": "binary-cross-entropy", "class_weights": (1.0, 2.0), "label_smoothing": 0.1},
    ],
)
def test_a_saved_model_keeps_the_settings_of_its_loss(loss, tmp_path):
    from fedloom import load_model

    rows = data("number" if loss["name"] == "huber" else "binary")
    run = Run(TDCD(lr=0.1, batch=30), Task.of(rows, loss=loss), rows).fit(1)
    assert load_model(run.save(tmp_path / "model")).loss == run.task.loss


def constant(labels, loss, rounds, lr):
    """The one score that a model learns which knows nothing but its bias."""
    rows = partition({"s0": torch.zeros(len(labels), 1)}, labels, {"s0": 2})
    known = Federated("constant", "number", rows)
    task = Task.of(known, loss=loss)
    rule = TDCD(local_steps=1, lr=lr, batch=len(labels))
    run = Run(rule, task, known, precision="float64", metrics=["mae"]).fit(rounds)
    return run, float(run.predict("train")[0])


@pytest.mark.parametrize("seed", range(3))
def test_what_losses_of_numbers_learn(seed):
    """So many labels are below a quantile; the mean of counts is their mean."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.rand(500, generator=draw)
    for level in (0.1, 0.5, 0.9):
        _, score = constant(labels, {"name": "quantile", "quantile": level}, 60, 0.2)
        assert float((labels <= score).double().mean()) == pytest.approx(level, abs=0.02)
    counts = torch.poisson(torch.full((500,), 3.0), generator=draw)
    run, score = constant(counts, "poisson", 60, 0.1)
    mean = float(counts.double().mean())
    assert float(torch.tensor(score).exp()) == pytest.approx(mean, rel=1e-6)
    found = run.evaluate("train")  # of counts, not of their logarithms
    assert found["mse"] == pytest.approx(float(counts.double().var(correction=0)), rel=1e-6)
    assert found["mae"] == pytest.approx(float((counts - mean).abs().mean()), rel=1e-5)


def test_early_stopping_judges_counts_and_not_their_logarithms():
    rows = data("number", size=200).with_validation(0.3)
    run = Run(TDCD(lr=0.1, batch=50), Task.of(rows, loss="poisson"), rows, precision="float64")
    run.fit(6, every=2, stop=Stopping(metric="mse"))
    by_round = {record.round: record.validation["mse"] for record in run.records}
    assert run.best.value == pytest.approx(by_round[run.best.round], rel=1e-6)
    wrong = (run.predict("validation")[:, 0] - rows.validation.labels()).square().mean()
    assert abs(float(wrong) - run.best.value) > 0.01


def test_silos_alone_predict_the_mean():
    scores = [torch.tensor([[0.0]]), torch.tensor([[1.0]])]
    assert float(Huber().combine(scores)) == 0.5
    assert float(Quantile().combine(scores)) == 0.5
    counts = float(Poisson().values(Poisson().combine(scores)))
    assert counts == pytest.approx((1 + 2.718281828) / 2)
    assert float(CrossEntropy(label_smoothing=0.1).combine(scores)) == 1.0
    assert float(OwnLoss(hinge, "number").combine(scores)) == 0.5


BINARY, CLASSES, NUMBER = "binary-cross-entropy", "cross-entropy", "number"


@pytest.mark.parametrize(
    ("goal", "loss", "why"),
    [
        ("number", {"name": "huber", "class_weights": "balanced"}, "are for losses of classes"),
        ("number", {"name": "huber", "delta": 0}, "delta must be above 0, not 0"),
        ("number", {"name": "huber", "dleta": 1}, "unknown key 'dleta'; did you mean 'delta'"),
        ("number", {"name": "squared", "delta": 1}, "squared has no settings"),
        ("number", {"delta": 1}, 'say its "name"'),
        ("number", {"name": "hubert"}, "unknown loss 'hubert'; did you mean 'huber'"),
        ("number", {"name": "quantile", "quantile": 1.0}, "must be above 0 and below 1, not 1.0"),
        ("binary", {"name": BINARY, "class_weights": [1, -1]}, "at least 0, not -1"),
        ("binary", {"name": BINARY, "class_weights": [0, 0]}, "at least one must be above 0"),
        ("binary", {"name": BINARY, "class_weights": [1, 2, 3]}, "3 numbers for 2 classes"),
        ("binary", {"name": BINARY, "class_weights": {"yes": 2}}, "there is no class 'yes'"),
        ("binary", {"name": BINARY, "class_weights": {"1": 2}}, "none for class '0'"),
        ("binary", {"name": BINARY, "class_weights": "balance"}, "did you mean 'balanced'"),
        ("classes", {"name": CLASSES, "label_smoothing": 1}, "at least 0 and below 1, not 1"),
        ("binary", nn.BCEWithLogitsLoss(), r'BCEWithLogitsLoss\(reduction="none"\)'),
        ("number", nn.Bilinear(1, 1, 1), "has parameters of its own"),
        ("binary", lambda z, y: z.sum(), "a number for each of 5 rows"),
        ("binary", lambda z, y: (z - z.mean())[:, 0], "changes with the rows beside it"),
        ("binary", lambda z, y: z.detach()[:, 0], "gradient by the scores is not finite, or zero"),
        ("binary", lambda z, y: z[:, 0].abs().sqrt().log() / 0, "NaN or infinity"),
        ("binary", lambda z, y: z[:, 1], "it fails for scores"),
        ("binary", lambda z, y: 3.0, "not float"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(goal, loss, why):
    rows = data(goal)
    with pytest.raises((errors.SettingError, errors.ModelError), match=why):
        Run(TDCD(), Task.of(rows, loss=loss), rows)


def test_labels_that_do_not_fit():
    rows = data("number")
    rows.train.labels()[0] = -1.0
    with pytest.raises(errors.DataError, match="counts must not be negative"):
        Run(TDCD(), Task.of(rows, loss="poisson"), rows)
    few = data("classes")
    lacking = Federated("lacking", "classes", few.train, classes=("a", "b", "c", "d"))
    with pytest.raises(errors.DataError, match="no training row is of class 'd'; give numbers"):
        Task.of(lacking, loss={"name": "cross-entropy", "class_weights": "balanced"})
    blocks = {silo: nn.Linear(3, 3) for silo in few.train.topology.silos}
    task = Task(blocks, {"name": "cross-entropy", "class_weights": "balanced"})
    with pytest.raises(errors.ModelError, match=r"Task\.of works them out"):
        Run(TDCD(), task, few)


def test_a_loss_is_made_from_a_table():
    assert loss_of({"name": "huber", "delta": 2}) == Huber(delta=2)
    made = loss_of({"name": "cross-entropy", "class_weights": [1, 2]})
    assert made.class_weights == (1, 2)
    assert hash(made) == hash(CrossEntropy(class_weights=(1, 2)))
