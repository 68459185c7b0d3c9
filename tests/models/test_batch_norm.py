"""BatchNorm in blocks: statistics of a client's own rows that count, running ones in the model."""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

from fedloom import (
    TDCD,
    HyFEMAvg,
    Run,
    Task,
    TDCDPrivateLabels,
    load_model,
    mlp,
    partition,
    resnet18,
)
from fedloom.core import tree
from fedloom.core.errors import ModelError
from fedloom.core.gradients import grad
from fedloom.engines.execute.compiled import compiler
from fedloom.engines.layers.rules import ON_CPU, ReplacedLayers
from fedloom.fabric.schedule import Moment, Scripted
from fedloom.models.block import Block
from fedloom.models.check import check_block
from fedloom.models.training_layers import batch_norm
from fedloom.privacy.settings import Privacy
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


# One layer


def pairs():
    draw = torch.Generator().manual_seed(0)
    for given, shape in (
        (nn.BatchNorm1d(4), (6, 4)),
        (nn.BatchNorm1d(4, affine=False, momentum=None), (6, 4, 3)),
        (nn.BatchNorm2d(4, eps=1e-2), (6, 4, 3, 2)),
        (nn.BatchNorm3d(4, momentum=0.3), (6, 4, 2, 2, 2)),
    ):
        yield given.double(), torch.randn(shape, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("extra", [0, 1, 5])
def test_a_layer_is_torchs_own_and_padding_changes_nothing(extra):
    for layer, x in pairs():
        block = Block(layer)
        params = {name: a.double() for name, a in block.initial(0).items()}
        for _ in range(3):
            padded = torch.cat([x, 100 * x[:1].expand(extra, *x.shape[1:])])
            counts = torch.arange(len(padded)) < len(x)
            out, after = block.in_training(params, padded, counts)
            assert (out[: len(x)] - layer(x)).abs().max() < 1e-12
            params |= after
        for name, wanted in layer.state_dict().items():
            assert (params[name] - wanted).abs().max() < 1e-12, name
        assert (block(params, x) - layer.eval()(x)).abs().max() < 1e-12
        exported = block.with_params(params)
        assert type(exported) is type(layer)
        assert torch.equal(exported.state_dict()["num_batches_tracked"], torch.tensor(3))
        assert (exported(x) - layer(x)).abs().max() < 1e-12


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_use_the_running_statistics(rows):
    """Where torch refuses; an image has many numbers of a channel."""
    for layer, x in pairs():
        block = Block(layer)
        params = {name: a.double() for name, a in block.initial(0).items()}
        params["running_mean"] = torch.arange(4.0, dtype=torch.float64)
        counts = torch.arange(len(x)) < rows
        out, after = block.in_training(params, x, counts)
        if rows and x.ndim > 2:
            layer(x[:1])
            assert (after["running_mean"] - params["running_mean"]).abs().max() > 0
            assert after["num_batches_tracked"] == 1
            continue
        assert (out - block(params, x)).abs().max() < 1e-12
        assert all(torch.equal(after[name], params[name]) for name in after)


@pytest.mark.parametrize("clients", [None, 3])
@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 5), (6, 4, 3, 3)])
def test_the_rule_on_a_cpu_is_the_layer(shape, clients):
    """Values, statistics and gradients; channels last, too; where all, some or no rows count."""
    draw = torch.Generator().manual_seed(1)
    lead = () if clients is None else (clients,)
    kind = {"generator": draw, "dtype": torch.float64}
    x, by = (torch.randn(*lead, *shape, **kind) for _ in range(2))
    if len(shape) == 4 and clients:
        x = x.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2)
    others = [torch.rand(*lead, 4, **kind) + 0.5 for _ in range(4)]

    def of_client(x, counts, mean, var, weight, bias, by):
        def loss(x, weight, bias):
            y, *more = batch_norm(x, counts, mean, var, weight, bias, 1e-5)
            return (y * by).sum(), (y.detach(), *more)

        return grad(loss, (0, 1, 2), has_aux=True)(x, weight, bias)

    work = of_client if clients is None else vmap(of_client)
    for most in (6, 3, 1, 0):
        counts = (torch.arange(6) < most).expand(*lead, 6).clone()
        if clients:
            counts[0] = True
        wanted = work(x, counts, *others, by)
        with ReplacedLayers(ON_CPU):
            got = work(x, counts, *others, by)
        for a, b in zip(tree.tensors(got), tree.tensors(wanted), strict=True):
            assert (a - b).abs().max() < 1e-12


# A run


def test_an_absent_client_changes_nothing_in_its_silo():
    _, _, placement = federation()
    out = placement.topology.clients["b"][1]
    away = Scripted({Moment(round): {"b": [out]} for round in range(ROUNDS)})
    rows = {client.name: at for client, at in placement.held("b").items()}[out]
    for engine in ("stacked", "reference"):
        runs = []
        for change in (1.0, -7.0):
            x = {silo: a.clone() for silo, a in placement.x.items()}
            x["b"][rows] *= change
            changed = type(placement)(**{**vars(placement), "x": x})
            algorithm = TDCD(local_steps=2, lr=0.2, batch=30)
            task = Task(BLOCKS, "cross-entropy")
            run = Run(algorithm, task, changed, engine=engine, schedule=away, precision="float64")
            runs.append(run.fit(ROUNDS))
        first, second = (run.algorithm.blocks(run.fed, run.state) for run in runs)
        for silo, theta in first.items():
            for name, a in theta.block.items():
                assert torch.equal(a, second[silo].block[name]), (silo, name)


def test_what_was_trained_is_saved_with_its_statistics(tmp_path):
    draw = torch.Generator().manual_seed(0)
    x = {j: torch.randn(40, 1, 8, 8, generator=draw) for j in "ab"}
    placement = partition(x, torch.randint(3, (40,), generator=draw), {"a": 2, "b": 3})
    task = Task(dict.fromkeys("ab", resnet18(1, 3, 4, norm="batch")), "cross-entropy")
    run = Run(TDCD(local_steps=2, lr=0.05, batch=20), task, placement).fit(2)
    model = load_model(run.save(tmp_path / "model"))
    assert (model.predict(x) - run.predict()).abs().max() < 1e-5
    assert not torch.equal(run.export("a").norm.running_mean, torch.zeros(4))


def test_native_refuses_it_by_name(caplog):
    x, y, _ = federation()
    task = Task({"a": table}, "cross-entropy")
    rows = partition({"a": x["a"]}, y, {"a": 3})
    options = {"precision": "float64", "seed": 1}
    with caplog.at_level(logging.WARNING, "fedloom"):
        fast = Run(TDCD(local_steps=2, batch=20), task, rows, executor="native", **options).fit(2)
    assert "a block has BatchNorm or dropout" in caplog.text
    plain = Run(TDCD(local_steps=2, batch=20), task, rows, engine="reference", **options).fit(2)
    assert (fast.predict() - plain.predict()).abs().max() < TOLERANCE


@pytest.mark.parametrize("executor", ["plain", "compiled"])
def test_executors_agree(executor, monkeypatch):
    """`compiled`: what is given to torch's compiler is run as it was traced."""
    monkeypatch.setattr(compiler, "compiled", lambda graph, fake, recordings: graph)
    x, y, _ = federation()
    blocks = {"b": lambda: nn.Sequential(image(), nn.Dropout(0.2)), "a": table}
    rows = partition({j: x[j] for j in blocks}, y, {"b": 4, "a": 3})
    algorithm = TDCD(local_steps=4, lr=0.05, batch=40)
    task, common = Task(blocks, "cross-entropy"), {"precision": "float64", "seed": 1}
    fast = Run(algorithm, task, rows, executor=executor, chunk=2, **common).fit(12)
    right = Run(algorithm, task, rows, engine="reference", **common).fit(12)
    assert (fast.predict() - right.predict()).abs().max() < TOLERANCE
    if executor == "compiled":
        entries = fast.fed.executors["compiled"].compiler.replayer.entries.values()
        assert any(entry.replay is not None for entry in entries)


# What is refused


class Own(nn.BatchNorm1d):
    """A norm with a forward of its own."""


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), Own(3)), "layer 1 is Own in train mode.*nn.BatchNorm1d"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)),
            "layer 1 is BatchNorm1d without running statistics.*track_running_stats=True",
        ),
        (
            nn.Sequential(
                nn.Unflatten(1, (2, 2)), nn.Flatten(0, 1), nn.BatchNorm1d(2), nn.Linear(2, 3)
            ),
            "rows",
        ),
        (
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm2d(3)),
            "layer 1 .BatchNorm2d. is for tensors of 4",
        ),
    ],
)
def test_norms_that_cannot_be_trained_are_named(module, message):
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ModelError, match=message):
        check_block(Block(module), rows, torch.float32, "silo a's block")


def test_who_does_not_train_it_says_so():
    _, _, placement = federation()
    task = Task(BLOCKS, "cross-entropy")
    head = Task(
        BLOCKS, "cross-entropy", head=lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    )
    for algorithm, what, message in (
        (TDCD(), head, r"the head: layer 1 \(BatchNorm1d\) is in train mode"),
        (HyFEMAvg(), task, r"silo a's block: layer 1 \(BatchNorm1d\).*and HyFEMAvg does not know"),
    ):
        with pytest.raises(ModelError, match=message):
            Run(algorithm, what, placement)
    private = Privacy("trained", 2.0, 0.02, gradient_clip=2.0, gradient_noise=0.02)
    with pytest.raises(
        ModelError, match=r"privacy: silo a's layer body.1 \(BatchNorm1d\) mixes a client's rows"
    ):
        Run(TDCD(batch=20, privacy=private), task, placement)


def test_frozen_layers_stay_as_they_are():
    frozen = table()
    frozen[1].eval()
    block = Block(frozen)
    assert [name for name in block.statistics if name.startswith("1.")] == []
    assert [name for name in block.statistics if name.startswith("4.")]
    assert mlp(4, [5], 3, norm="batch")()[1].training
