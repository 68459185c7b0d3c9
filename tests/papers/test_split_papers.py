"""FedBCD, SplitNN, FedAvg and FedProx against what the papers say they are, written by hand."""

import copy

import pytest
import torch
from torch import nn

from fedloom import InverseSqrt, Run, Task, mlp, partition
from fedloom import linear as make_linear
from fedloom.algorithms import FedAvg, FedBCD, FedProx, SplitNN, SplitNNU
from tests.helpers.plain_split import plain_fedbcd, plain_fedprox, plain_splitnn, plain_u_shape
from tests.papers.test_tdcd_papers import (
    LOSSES,
    ROUNDS,
    TOLERANCE,
    drawn,
    initial,
    largest,
    series,
    shards_of,
    table,
)

ONE, SOME = [1, 1, 1], [[3, 1, 2, 0], [1, 1, 4], [1, 2]]  # clients of each silo


def cut(x, y, clients):
    return partition(x, y, dict(zip(x, clients, strict=False)), seed=4)


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("clients", [ONE, SOME], ids=["one-client", "clients"])
@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("updates", ["fresh-own", "frozen-gradient"])
@pytest.mark.parametrize(("problem", "minibatch"), [(series, "reused"), (table, "fresh")])
def test_fedbcd(problem, minibatch, updates, order, clients, engine):
    x, y, blocks, loss = problem()
    rows = cut(x, y, clients)
    algorithm = FedBCD(
        local_steps=3,
        lr=InverseSqrt(0.3, 5),
        batch=11,
        minibatch=minibatch,
        order=order,
        updates=updates,
        prox=0.4,
        labels_at=list(x)[1] if updates == "frozen-gradient" else None,
    )
    run = Run(algorithm, Task(blocks, loss), rows, engine=engine, precision="float64", seed=9)
    wanted = plain_fedbcd(
        initial(run),
        shards_of(rows),
        dict(enumerate(y)),
        LOSSES[loss],
        *drawn(run),
        sequential=order == "sequential",
        frozen=updates == "frozen-gradient",
        prox=0.4,
    )
    run.fit(ROUNDS)
    assert largest(run, wanted) < TOLERANCE


def split_task(middle):
    """Three silos, a regression, and a top of two parts."""
    x, y, _, loss = table()
    blocks = {s: mlp(2 + j, [4], 2 + j) for j, s in enumerate(x)}
    total = sum(range(2, 2 + len(x)))
    if middle:
        return (
            x,
            y,
            Task(blocks, loss, middle=mlp(total, [5], 4), head=make_linear(4, 1), combine="concat"),
        )
    return x, y, Task(blocks, loss, head=mlp(total, [5], 1), combine="concat")


def head_of(run):
    part = next(iter(run.fed.parts.value.values()))
    return part.head.with_params(part.initial(run.fed.streams).head)


def apart(actual, wanted):
    return max(
        float((a - b).detach().abs().max())
        for a, b in zip(actual.parameters(), wanted.parameters(), strict=True)
    )


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize(("kind", "clients"), [(SplitNN, ONE), (SplitNN, SOME), (SplitNNU, ONE)])
@pytest.mark.parametrize("q", [1, 3])
def test_splitnn(q, kind, clients, engine):
    """With one client a silo the server's middle and the last layers are one top."""
    x, y, learn = split_task(middle=kind is SplitNNU)
    rows = cut(x, y, clients)
    rows = rows.with_server() if kind is SplitNNU else rows
    algorithm = kind(local_steps=q, lr=InverseSqrt(0.3, 5), batch=11, labels_at="b")
    run = Run(algorithm, learn, rows, engine=engine, precision="float64", seed=9)
    blocks, top = plain_splitnn(
        initial(run),
        head_of(run),
        "b",
        shards_of(rows),
        dict(enumerate(y)),
        LOSSES["squared"],
        *drawn(run),
    )
    run.fit(ROUNDS)
    assert largest(run, blocks) < TOLERANCE
    assert apart(run.model().head, top) < TOLERANCE


@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_the_u_shape_with_a_minibatch_for_each_step(engine):
    x, y, learn = split_task(middle=True)
    rows = cut(x, y, ONE).with_server()
    algorithm = SplitNNU(
        local_steps=3, lr=InverseSqrt(0.3, 5), batch=11, minibatch="fresh", labels_at="b"
    )
    run = Run(algorithm, learn, rows, engine=engine, precision="float64", seed=9)
    middle, last = head_of(run)
    plain = plain_u_shape(initial(run), middle, last, x, y, LOSSES["squared"], *drawn(run))
    run.fit(ROUNDS)
    blocks, *head = plain
    assert largest(run, blocks) < TOLERANCE
    assert apart(run.model().head, nn.Sequential(*head)) < TOLERANCE


@pytest.mark.parametrize("kind", [SplitNN, SplitNNU])
def test_splitnn_is_sgd_on_the_joined_network(kind):
    """K = Q = 1: one optimiser over one network."""
    x, y, learn = split_task(middle=kind is SplitNNU)
    rows = cut(x, y, ONE).with_server()
    run = Run(kind(lr=0.1, batch=16, labels_at="c"), learn, rows, precision="float64", seed=6)
    blocks, top = nn.ModuleDict(initial(run)), head_of(run)
    optimiser = torch.optim.SGD([*blocks.parameters(), *top.parameters()], lr=0.1)
    for (batch,) in drawn(run)[0]:
        optimiser.zero_grad()
        joint = torch.cat([blocks[silo](x[silo][batch]) for silo in x], 1)
        LOSSES["squared"](top(joint), y[batch]).backward()
        optimiser.step()
    run.fit(ROUNDS)
    assert largest(run, dict(blocks.items())) < TOLERANCE
    assert apart(run.model().head, top) < TOLERANCE


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("minibatch", ["reused", "fresh"])
@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_fedavg_and_fedprox(mu, minibatch, engine):
    x, y, _, loss = table(("only",))
    rows = partition(x, y, {"only": [3, 1, 2, 0]}, seed=4)
    settings = {"local_steps": 4, "lr": InverseSqrt(0.3, 5), "batch": 11, "minibatch": minibatch}
    algorithm = FedProx(**settings, mu=mu) if mu else FedAvg(**settings)
    learn = Task({"only": mlp(2, [4], 1)}, loss)
    run = Run(algorithm, learn, rows, engine=engine, precision="float64", seed=9)
    hub = plain_fedprox(
        initial(run)["only"],
        shards_of(rows)["only"],
        dict(enumerate(y)),
        LOSSES[loss],
        *drawn(run),
        mu,
    )
    run.fit(ROUNDS)
    assert largest(run, {"only": hub}) < TOLERANCE


def test_the_plain_loops_move():
    """The comparison means something: a round changes every parameter."""
    x, y, learn = split_task(middle=False)
    run = Run(SplitNN(lr=0.3, batch=11), learn, cut(x, y, ONE), precision="float64", seed=9)
    before = copy.deepcopy(head_of(run))
    run.fit(1)
    assert apart(run.model().head, before) > 1e-4
