"""TDCD against what the papers say it is, each side written by hand here."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import TDCD, InverseSqrt, Run, Task, lstm, mlp, partition
from fedloom import linear as make_linear
from fedloom.fabric.schedule import Moment, Scripted
from tests.helpers.plain_tdcd import plain_tdcd

ROUNDS, ROWS = 4, 60
TOLERANCE = 1e-10


def series(silos=("left", "right")):
    draw = torch.Generator().manual_seed(1)
    x = {s: torch.randn(ROWS, 5, 3, generator=draw, dtype=torch.float64) for s in silos}
    y = (sum(v.sum((1, 2)) for v in x.values()) > 0).long()
    return x, y, {silo: lstm(3, 4, 1) for silo in silos}, "binary-cross-entropy"


def table(silos=("a", "b", "c")):
    draw = torch.Generator().manual_seed(2)
    x = {
        s: torch.randn(ROWS, 2 + j, generator=draw, dtype=torch.float64)
        for j, s in enumerate(silos)
    }
    y = sum(v.sum(1) for v in x.values()) + torch.randn(ROWS, generator=draw, dtype=torch.float64)
    return x, y, {s: make_linear(2 + j, 1) for j, s in enumerate(silos)}, "squared"


LOSSES = {
    "squared": lambda z, y: 0.5 * (z.squeeze(-1) - y).square().mean(),
    "binary-cross-entropy": lambda z, y: F.binary_cross_entropy_with_logits(
        z.squeeze(-1), y.double()
    ),
    "cross-entropy": F.cross_entropy,
}


def drawn(run, rounds=ROUNDS):
    """The minibatches and step sizes of a run, as a hub would read them off the common stream."""
    q, fresh = run.algorithm.local_steps, run.algorithm.minibatch == "fresh"
    rows, lrs = [], []
    for r in range(rounds):
        streams = [run.fed.streams.common("minibatch", r, s) for s in range(q if fresh else 1)]
        size = run.algorithm.batch or ROWS
        rows.append([stream.sample(ROWS, size).tolist() for stream in streams])
        rule = run.algorithm.lr if callable(run.algorithm.lr) else (lambda t: run.algorithm.lr)
        lrs.append([rule(r * q + step) for step in range(q)])
    return rows, lrs


def initial(run):
    """The modules that hubs start from."""
    return {
        silo: part.block.with_params(part.initial(run.fed.streams).block)
        for silo, part in run.fed.parts.value.items()
    }


def shards_of(placement):
    return {
        silo: [{int(i): x for i, x in zip(s.ids, s.x, strict=True)} for s in shards.values()]
        for silo, shards in placement.shards().items()
    }


def largest(run, modules):
    models = [dict(run.export(silo).named_parameters()) for silo in modules]
    wanted = [dict(module.named_parameters()) for module in modules.values()]
    return max(
        float((f[name] - w[name]).detach().abs().max())
        for f, w in zip(models, wanted, strict=True)
        for name in f
    )


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("minibatch", ["reused", "fresh"])
@pytest.mark.parametrize("problem", [series, table])
def test_against_a_plain_loop(problem, minibatch, engine):
    x, y, blocks, loss = problem()
    clients = dict(zip(x, ([3, 1, 2, 0], [1, 1, 4], [1, 2]), strict=False))
    placement = partition(x, y, clients, seed=4)
    algorithm = TDCD(local_steps=3, lr=InverseSqrt(0.3, 5), batch=11, minibatch=minibatch)
    run = Run(algorithm, Task(blocks, loss), placement, engine=engine, precision="float64", seed=9)
    rows, lrs = drawn(run)
    wanted = plain_tdcd(
        initial(run),
        shards_of(placement),
        dict(enumerate(y)),
        LOSSES[loss],
        rows,
        lrs,
        fresh=minibatch == "fresh",
    )
    run.fit(ROUNDS)
    assert largest(run, wanted) < TOLERANCE


def test_one_silo_is_local_sgd_with_averaging():
    """N = 1 (FedAvg): each client takes Q steps on its rows, the hub averages."""
    x, y, _, _ = table(("only",))
    placement = partition(x, y, {"only": [1, 2, 3]}, seed=1)
    blocks = {"only": mlp(2, [4], 1)}
    algorithm = TDCD(local_steps=5, lr=0.1, batch=20, l2=0.2)
    run = Run(algorithm, Task(blocks, "squared"), placement, precision="float64", seed=2)
    rows, _ = drawn(run)
    hub = initial(run)["only"]
    for (batch,) in rows:
        models = []
        for shard in placement.shards()["only"].values():
            in_batch = torch.tensor([int(i) in batch for i in shard.ids])
            model = copy.deepcopy(hub)
            for _ in range(5 if bool(in_batch.any()) else 0):
                model.zero_grad()
                penalty = 0.1 * sum(p.square().sum() for p in model.parameters())
                (
                    LOSSES["squared"](model(shard.x[in_batch]), shard.y[in_batch]) + penalty
                ).backward()
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.1 * p.grad
            models.append(model)
        with torch.no_grad():
            for p, *copies in zip(hub.parameters(), *(m.parameters() for m in models), strict=True):
                p.copy_(sum(copies) / len(copies))
    run.fit(ROUNDS)
    assert largest(run, {"only": hub}) < TOLERANCE


def test_one_client_a_silo_is_parallel_fedbcd():
    """K = 1: every party takes Q steps with its own embedding fresh and the others' stale."""
    x, y, blocks, loss = series(("a", "b", "c"))
    placement = partition(x, y, dict.fromkeys(x, 1))
    algorithm = TDCD(local_steps=4, lr=0.2, batch=16)
    run = Run(algorithm, Task(blocks, loss), placement, precision="float64", seed=5)
    rows, _ = drawn(run)
    parties = initial(run)
    for (batch,) in rows:
        with torch.no_grad():
            stale = {silo: parties[silo](x[silo][batch]) for silo in x}
        for silo, module in parties.items():
            others = sum(stale[j] for j in x if j != silo)
            optimiser = torch.optim.SGD(module.parameters(), lr=0.2)
            for _ in range(4):
                optimiser.zero_grad()
                LOSSES[loss](module(x[silo][batch]) + others, y[batch]).backward()
                optimiser.step()
    run.fit(ROUNDS)
    assert largest(run, parties) < TOLERANCE


def test_one_client_one_step_is_central_sgd():
    """K = Q = 1: SGD on the sum model."""
    x, y, blocks, loss = table()
    placement = partition(x, y, dict.fromkeys(x, 1))
    run = Run(
        TDCD(local_steps=1, lr=0.1, batch=16),
        Task(blocks, loss),
        placement,
        precision="float64",
        seed=6,
    )
    rows, _ = drawn(run)
    model = nn.ModuleDict(initial(run))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in rows:
        optimiser.zero_grad()
        LOSSES[loss](sum(model[silo](x[silo][batch]) for silo in x), y[batch]).backward()
        optimiser.step()
    run.fit(ROUNDS)
    assert largest(run, dict(model.items())) < TOLERANCE


@pytest.mark.parametrize("weighting", ["uniform", "participants", "rows"])
def test_weightings_by_hand(weighting):
    """One round of one silo: the mean over all clients, over those with rows, by rows."""
    x, y, _, _ = table(("only",))
    placement = partition(x, y, {"only": [8, 6, 1, 0]}, seed=1)
    run = Run(
        TDCD(local_steps=1, lr=0.5, batch=5, weighting=weighting),
        Task({"only": make_linear(2)}, "squared"),
        placement,
        precision="float64",
        seed=3,
    )
    ((batch,),), _ = drawn(run, 1)
    start = initial(run)["only"]
    models, rows = [], []
    for shard in placement.shards()["only"].values():
        in_batch = torch.tensor([int(i) in batch for i in shard.ids], dtype=torch.bool)
        model = copy.deepcopy(start)
        if bool(in_batch.any()):
            LOSSES["squared"](model(shard.x[in_batch]), shard.y[in_batch]).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.5 * p.grad
        models.append(model)
        rows.append(int(in_batch.sum()))
    assert 0 in rows[:3]  # the draw leaves out one client that does hold rows
    weights = {
        "uniform": [1] * len(rows),
        "participants": [int(n > 0) for n in rows],
        "rows": rows,
    }[weighting]
    for name, p in start.named_parameters():
        copies = [dict(m.named_parameters())[name] for m in models]
        p.data = sum(w * c.detach() for w, c in zip(weights, copies, strict=True)) / sum(weights)
    run.fit(1)
    assert largest(run, {"only": start}) < TOLERANCE


@pytest.mark.parametrize("weighting", ["participants", "rows"])
def test_rows_that_do_not_count_give_no_weight(weighting):
    """Where a client of another silo is absent, its rows count nowhere; who has no others is left
    out of the mean, though it was spoken to. By listening."""
    x, y, blocks, loss = table()
    placement = partition(x, y, {"a": 12, "b": 3, "c": 3}, seed=4)
    gone = Scripted({Moment(0): {"b": ["0", "2"]}})
    rule = TDCD(local_steps=2, lr=0.1, batch=15, weighting=weighting)
    options = {"engine": "reference", "precision": "float64", "schedule": gone}
    run = Run(rule, Task(blocks, loss), placement, **options)
    counted, weights, send = {}, {}, run.fed._transport.send

    def listening(message):
        if message.kind == "rest":
            counted[message.to] = int(message.payload.mask.sum())
        if message.kind == "update":
            weights[message.source] = float(message.payload[1])
        send(message)

    run.fed._transport.send = listening
    run.fit(1)
    assert set(weights) == set(counted)
    assert 0 in counted.values()
    assert max(counted.values()) > 1
    weight_of = (lambda rows: rows) if weighting == "rows" else (lambda rows: int(rows > 0))
    assert weights == {client: weight_of(rows) for client, rows in counted.items()}


def test_shared_head_by_hand():
    """ICASSP's classifier on a concatenation: clients train their replica, hubs average them."""
    x, _, _, _ = table(("a", "b"))
    y = torch.arange(ROWS) % 3
    placement = partition(x, y, {"a": 2, "b": 3}, seed=2)
    task = Task(
        {"a": mlp(2, [3], 4), "b": make_linear(3, 5)},
        "cross-entropy",
        head=make_linear(9, 3),
        combine="concat",
    )
    run = Run(TDCD(local_steps=3, lr=0.3, batch=20), task, placement, precision="float64", seed=1)
    rows, _ = drawn(run)
    hubs = initial(run)
    part = run.fed.parts.value["a"]
    head = part.head.with_params(part.initial(run.fed.streams).head)
    for (batch,) in rows:
        with torch.no_grad():
            stale = {silo: hubs[silo](x[silo]) for silo in x}
        heads = []
        for silo in x:
            clients = []
            for shard in placement.shards()[silo].values():
                own_rows = [int(i) for i in shard.ids if int(i) in batch]
                both = copy.deepcopy(nn.ModuleList([hubs[silo], head]))
                optimiser = torch.optim.SGD(both.parameters(), lr=0.3)
                for _ in range(3 if own_rows else 0):
                    own = both[0](x[silo][own_rows])
                    pair = (
                        (own, stale["b"][own_rows]) if silo == "a" else (stale["a"][own_rows], own)
                    )
                    optimiser.zero_grad()
                    F.cross_entropy(both[1](torch.cat(pair, 1)), y[own_rows]).backward()
                    optimiser.step()
                clients.append(both)
            with torch.no_grad():
                mean = copy.deepcopy(clients[0])
                for p, *ps in zip(
                    mean.parameters(), *(c.parameters() for c in clients), strict=True
                ):
                    p.copy_(sum(ps) / len(ps))
            hubs[silo] = mean[0]
            heads.append(mean[1])
        with torch.no_grad():
            for p, *ps in zip(head.parameters(), *(h.parameters() for h in heads), strict=True):
                p.copy_(sum(ps) / len(ps))
    run.fit(ROUNDS)
    assert largest(run, hubs) < TOLERANCE
    trained = run.model().head
    for p, wanted in zip(trained.parameters(), head.parameters(), strict=True):
        assert torch.allclose(p, wanted, rtol=0, atol=TOLERANCE)


def test_joint_prediction_and_exports():
    """predict, the exported blocks and the joint module give the same scores (Remark 1)."""
    x, y, blocks, loss = table()
    placement = partition(x, y, {"a": 2, "b": 3, "c": 1}, seed=1)
    run = Run(TDCD(batch=20, lr=0.05), Task(blocks, loss), placement, precision="float64").fit(3)
    by_blocks = sum(run.export(silo)(x[silo]) for silo in x)
    assert torch.allclose(run.model()(x), by_blocks, atol=1e-12)
    assert torch.allclose(run.predict(), by_blocks, atol=1e-12)
    few = run.predict(at_a_time=7)
    assert torch.allclose(few, by_blocks, atol=1e-12)
    for silo, other in itertools.combinations(x, 2):
        assert torch.equal(run.predict(at=silo), run.predict(at=other))
