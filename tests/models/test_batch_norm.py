"""BatchNorm in blocks: statistics of a client's own rows that count, running ones in the model."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import TDCD, Run, Task, TDCDPrivateLabels, partition
from tests.helpers.plain_norms import plain_tdcd_with_norms

ROUNDS, ROWS, CLASSES = 4, 60, 3
TOLERANCE = 1e-10


def table():
    return nn.Sequential(
        nn.Linear(4, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, CLASSES),
        nn.BatchNorm1d(CLASSES),
    )


def image(momentum=0.2):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4, momentum=momentum),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def series():
    return nn.Sequential(
        nn.Conv1d(2, 3, 2),
        nn.BatchNorm1d(3, affine=False, eps=1e-3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(9, CLASSES),
    )


BLOCKS = {"a": table, "b": image, "c": series}


def federation(clients=([3, 1, 0, 2], [1, 2], [2, 1, 1]), seed=4):
    draw = torch.Generator().manual_seed(1)
    shapes = {"a": (4,), "b": (1, 4, 4), "c": (2, 4)}
    x = {j: torch.randn(ROWS, *s, generator=draw, dtype=torch.float64) for j, s in shapes.items()}
    y = (x["a"].sum(1) + x["b"].sum((1, 2, 3)) + x["c"].sum((1, 2))).sign().long() + 1
    return x, y, partition(x, y, dict(zip(x, clients, strict=True)), seed=seed)


def drawn(run, rounds=ROUNDS):
    q, fresh = run.algorithm.local_steps, run.algorithm.minibatch == "fresh"
    size = run.algorithm.batch or ROWS
    return [
        [
            run.fed.streams.common("minibatch", r, s).sample(ROWS, size).tolist()
            for s in range(q if fresh else 1)
        ]
        for r in range(rounds)
    ]


def initial(run):
    modules = {}
    for silo, part in run.fed.parts.value.items():
        modules[silo] = part.block.with_params(part.initial(run.fed.streams).block).train()
    return modules


def largest(run, modules):
    worst = 0.0
    for silo, module in modules.items():
        state = run.export(silo).state_dict()
        for name, wanted in module.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                worst = max(worst, float((state[name] - wanted).abs().max()))
    return worst


@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_one_client_is_torchs_own_training_of_the_joined_network(engine):
    x, y, placement = federation(([1], [1], [1]))
    algorithm = TDCD(local_steps=1, lr=0.3, batch=20, l2=0.01)
    blocks = {**BLOCKS, "b": lambda: image(momentum=None)}  # a mean over all minibatches
    run = Run(
        algorithm, Task(blocks, "cross-entropy"), placement, engine=engine, precision="float64"
    )
    modules = initial(run)
    every = [p for module in modules.values() for p in module.parameters()]
    optimiser = torch.optim.SGD(every, lr=0.3, weight_decay=0.01)
    for (rows,) in drawn(run):
        optimiser.zero_grad()
        F.cross_entropy(sum(modules[j](x[j][rows]) for j in x), y[rows]).backward()
        optimiser.step()
    run.fit(ROUNDS)
    assert largest(run, modules) < TOLERANCE
    for silo, module in modules.items():
        counts = [n for n in module.state_dict() if n.endswith("num_batches_tracked")]
        assert all(int(run.export(silo).state_dict()[name]) == ROUNDS for name in counts)
    with torch.no_grad():
        scores = sum(module.eval()(x[silo]) for silo, module in modules.items())
        exported = sum(run.export(silo)(x[silo]) for silo in modules)
    assert (run.predict("train") - scores).abs().max() < TOLERANCE
    assert (exported - scores).abs().max() < TOLERANCE
    assert (run.model()(x) - scores).abs().max() < TOLERANCE


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("minibatch", ["reused", "fresh"])
@pytest.mark.parametrize("kind", [TDCD, TDCDPrivateLabels])
def test_many_clients_are_a_plain_loop(kind, minibatch, engine):
    _, y, placement = federation()
    algorithm = kind(local_steps=3, lr=0.2, batch=11, minibatch=minibatch, l2=0.01)
    run = Run(
        algorithm, Task(BLOCKS, "cross-entropy"), placement, engine=engine, precision="float64"
    )
    shards = {
        silo: [{int(i): a for i, a in zip(s.ids, s.x, strict=True)} for s in shards.values()]
        for silo, shards in placement.shards().items()
    }
    wanted = plain_tdcd_with_norms(
        initial(run),
        shards,
        dict(enumerate(y)),
        F.cross_entropy,
        drawn(run),
        [[0.2] * 3] * ROUNDS,
        l2=0.01,
    )
    assert largest(run.fit(ROUNDS), wanted) < TOLERANCE
