"""What the registered algorithms promise beyond the battery."""

import pytest
import torch
import torch.nn.functional as F

from fedloom import TDCD, Alone, Central, Run, Task, TDCDPrivateLabels, linear, mlp, partition
from fedloom.algorithms import (
    Cosine,
    DelayBound,
    FedBCD,
    InverseSqrt,
    InverseTime,
    SplitNN,
    StepDecay,
)
from fedloom.algorithms.shared.step_sizes import Constant
from fedloom.core import tree
from fedloom.core.registry import algorithms
from fedloom.testing import placement, task
from fedloom.testing.samples import examples_of


def test_what_is_registered():
    assert list(algorithms) == [
        "alone",
        "central",
        "fedavg",
        "fedbcd",
        "fedprox",
        "hyfem-avg",
        "hyfem-prox",
        "splitnn",
        "splitnn-async",
        "splitnn-u",
        "tdcd",
        "tdcd-private-labels",
        "vafl",
    ]
    with pytest.raises(ValueError, match="unknown algorithm 'tdc'; did you mean 'tdcd'"):
        algorithms["tdc"]


@pytest.mark.parametrize("minibatch", ["reused", "fresh"])
def test_private_labels_cost_more_for_the_same_model(minibatch):
    settings = {"local_steps": 3, "lr": 0.2, "batch": 12, "minibatch": minibatch}
    shared = Run(TDCD(**settings), task(), placement(), precision="float64").fit(4)
    for holder in shared.placement.topology.silos:
        private = Run(
            TDCDPrivateLabels(**settings, labels_at=holder),
            task(),
            placement(),
            precision="float64",
        ).fit(4)
        a, b = (run.algorithm.blocks(run.fed, run.state) for run in (shared, private))
        assert tree.largest_difference(a, b) < 1e-14
        assert private.ledger.total() > shared.ledger.total()
        assert private.ledger.total("bottom") > shared.ledger.total("bottom")
        assert private.loss() == pytest.approx(shared.loss(), abs=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [
        TDCDPrivateLabels(batch=10, labels_at="birch"),
        FedBCD(batch=10, labels_at="birch", updates="frozen-gradient"),
        SplitNN(batch=10, labels_at="birch"),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_private_labels_need_none_elsewhere_and_never_send_them(algorithm):
    """In no message is there a tensor of whole numbers, or the label of a single row: here no
    number is another's by chance."""
    draw = torch.Generator().manual_seed(2)
    x = {silo: torch.randn(36, 2, generator=draw, dtype=torch.float64) for silo in "ab"}
    x["birch"], y = x.pop("a"), torch.randn(36, generator=draw, dtype=torch.float64)
    hidden = partition(x, y, {"b": [1, 2, 0, 3], "birch": 2}, labels_at=["birch"])
    assert hidden.y["b"] is None
    learn = Task(dict.fromkeys(hidden.x, linear(2)), "squared")
    run = Run(algorithm, learn, hidden, engine="reference", precision="float64")
    sent, send = [], run.fed._transport.send
    run.fed._transport.send = lambda message: sent.append(message) or send(message)
    run.fit(2)
    assert len(sent) > 20
    labels = set(hidden.labels().tolist())
    for message in sent:
        for tensor in tree.tensors(message.payload):
            assert not labels & set(tensor.flatten().tolist()), message.kind


def table(loss):
    draw = torch.Generator().manual_seed(3)
    x = {silo: torch.randn(60, 3, generator=draw, dtype=torch.float64) for silo in "ab"}
    total = x["a"].sum(1) + x["b"].sum(1)
    y = {"squared": total, "binary-cross-entropy": (total > 0).double()}[loss]
    return x, partition(x, y, {"a": 3, "b": 2}), Task(dict.fromkeys("ab", linear(3)), loss)


@pytest.mark.parametrize(
    ("loss", "combine"), [("squared", torch.mean), ("binary-cross-entropy", torch.sum)]
)
def test_lone_silos_and_their_combination(loss, combine):
    x, rows, learn = table(loss)
    settings = {"local_steps": 4, "lr": 0.1, "batch": 30}
    lone = Run(Alone(**settings), learn, rows, precision="float64").fit(5)
    own = [lone.export(silo)(x[silo]).detach() for silo in "ab"]
    for silo, scores in zip("ab", own, strict=True):
        assert torch.allclose(lone.predict(at=silo), scores, atol=1e-12)
    together = Run(Alone(**settings, combined=True), learn, rows, precision="float64").fit(5)
    wanted = combine(torch.stack(own), 0)
    for silo in "ab":
        assert torch.allclose(together.predict(at=silo), wanted, atol=1e-12)
    assert {entry.tier for entry in lone.ledger} == {"bottom"}
    losses = [learn.loss.rows(scores, rows.labels().double()).mean() for scores in own]
    assert lone.loss() == pytest.approx(float(sum(losses) / 2), rel=1e-12)
    assert float(losses[0]) != pytest.approx(float(losses[1]), rel=1e-3)
    with pytest.raises(ValueError, match="no joint model"):
        lone.model()


def test_the_federation_beats_its_lone_silos_and_nears_the_pool():
    """A target that no silo can explain alone."""
    _, rows, learn = table("squared")
    settings = {"local_steps": 5, "lr": 0.1, "batch": 30}
    joint = Run(TDCD(**settings), learn, rows).fit(60).loss()
    pool = Run(Central(**settings), learn, rows).fit(60).loss()
    lone = Run(Alone(**settings), learn, rows).fit(60).loss()
    assert joint < 0.05 * lone
    assert pool < 0.05 * lone


def test_ridge_reaches_the_minimum():
    """Full batch, Q = 1, clients weighted by rows: gradient descent on the ridge objective."""
    draw = torch.Generator().manual_seed(5)
    x = {silo: torch.randn(80, 3, generator=draw, dtype=torch.float64) for silo in "ab"}
    y = torch.randn(80, generator=draw, dtype=torch.float64)
    rows = partition(x, y, {"a": [1, 3], "b": 5})
    learn = Task(dict.fromkeys("ab", linear(3, bias=False)), "squared")
    algorithm = TDCD(local_steps=1, lr=0.4, batch=None, l2=0.3, weighting="rows")
    run = Run(algorithm, learn, rows, precision="float64").fit(200)
    pooled = torch.cat(list(x.values()), 1)
    exact = torch.linalg.solve(
        pooled.T @ pooled / 80 + 0.3 * torch.eye(6).double(), pooled.T @ y / 80
    )
    weights = torch.cat([run.export(silo).weight[0] for silo in "ab"])
    assert torch.allclose(weights, exact, atol=1e-10)


@pytest.mark.parametrize("algorithm", [TDCD, TDCDPrivateLabels, Central, Alone])
def test_single_precision_agrees_too(algorithm):
    for example in examples_of(algorithm):
        a, b = (
            Run(example, task(), placement(), engine=engine).fit(3)
            for engine in ("stacked", "reference")
        )
        assert a.fed.dtype == torch.float32
        difference = tree.largest_difference(
            example.blocks(a.fed, a.state), example.blocks(b.fed, b.state)
        )
        assert difference < 1e-5
        assert list(a.ledger) == list(b.ledger)


def test_thousands_of_phones():
    """One person a client, participants only: what is computed and sent follows the rows drawn."""
    size = 3000
    draw = torch.Generator().manual_seed(1)
    x = {silo: torch.randn(size, 4, generator=draw) for silo in "ab"}
    y = (x["a"].sum(1) + x["b"].sum(1) > 0).long()
    rows = partition(x, y, {"a": size, "b": size})
    learn = Task(dict.fromkeys("ab", mlp(4, [8], 2)), "cross-entropy")
    algorithm = TDCD(local_steps=5, lr=0.5, batch=100, weighting="participants")
    run = Run(algorithm, learn, rows)
    before = run.loss()
    run.fit(40)
    assert run.loss() < 0.6 * before
    messages = {entry.kind: entry.messages for entry in run.ledger if entry.round == 0}
    assert messages["model"] == messages["update"] == 200
    accuracy = (run.predict().argmax(1) == run.placement.labels()).float().mean()
    assert accuracy > 0.9


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (Constant(0.3), {0: 0.3, 7: 0.3}),
        (StepDecay(0.4, 0.5, 3), {0: 0.4, 2: 0.4, 3: 0.2, 5: 0.2, 6: 0.1}),
        (InverseSqrt(0.6, 4.0), {0: 0.6, 12: 0.3, 32: 0.2}),
        (Cosine(0.9, 10), {0: 0.9, 5: 0.45, 10: 0.0, 11: 0.0}),
        (Cosine(0.9, 6, 0.1), {0: 0.9, 2: 0.7, 3: 0.5, 4: 0.3, 6: 0.1, 60: 0.1}),
        (DelayBound(2.0, 3.0, 100, 0.05), {0: 0.005, 9: 0.005}),
        (DelayBound(2.0, 3.0, 100, 9.0), {0: 1 / 32, 9: 1 / 32}),
        (InverseTime(2.0, 5.0, 4.0), {0: 0.4, 5: 0.2, 15: 0.1}),
    ],
    ids=str,
)
def test_rules_of_step_sizes(rule, wanted):
    assert {t: rule(t) for t in wanted} == pytest.approx(wanted)


def test_step_sizes_reach_the_clients():
    """A step size that falls to nothing after the first round leaves the model where it is."""

    class Once:
        def __call__(self, t):
            return 0.2 if t < 3 else 0.0

    run = Run(TDCD(local_steps=3, lr=Once(), batch=12), task(), placement(), precision="float64")
    first = run.fit(1).snapshot()
    run.fit(3)
    moved = tree.largest_difference(first.state["theta"], run.snapshot().state["theta"])
    assert moved == 0.0


def test_labels_of_several_outputs():
    x = {"a": torch.randn(20, 3)}
    y = torch.randn(20, 2)
    run = Run(
        TDCD(local_steps=1, batch=None, lr=0.1),
        Task({"a": linear(3, 2)}, "squared"),
        partition(x, y, {"a": 2}),
    ).fit(1)
    assert run.loss() == pytest.approx(float(F.mse_loss(run.predict(), y)), rel=1e-5)
