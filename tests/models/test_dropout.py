"""Dropout in blocks: masks named by seed, silo, round, row, step and layer."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import TDCD, Central, Run, Task, TDCDPrivateLabels, partition
from fedloom.core import tree
from fedloom.core.errors import ModelError
from fedloom.core.rng import Streams
from fedloom.engines.limits import Limits
from fedloom.models.block import Block
from fedloom.models.check import check_block
from fedloom.models.dropout import number_of, of_step, row_keys
from fedloom.privacy.settings import Privacy

ROWS, CLASSES, TOLERANCE = 60, 3, 1e-10


def table():
    return nn.Sequential(
        nn.Dropout(0.2), nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES)
    )


def image():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.Dropout2d(0.3),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


BLOCKS = {"a": table, "b": image}


def federation(clients=([3, 1, 0, 2], [1, 2])):
    draw = torch.Generator().manual_seed(1)
    shapes = {"a": (4,), "b": (1, 4, 4)}
    x = {j: torch.randn(ROWS, *s, generator=draw, dtype=torch.float64) for j, s in shapes.items()}
    y = (x["a"].sum(1) + x["b"].sum((1, 2, 3))).sign().long() + 1
    return x, y, partition(x, y, dict(zip(x, clients, strict=True)), seed=4)


def blocks_of(run):
    return run.algorithm.blocks(run.fed, run.state)


@pytest.mark.parametrize("kind", [TDCD, TDCDPrivateLabels])
@pytest.mark.parametrize("settings", [{}, {"minibatch": "fresh"}, {"local_steps": 1}])
def test_engines_chunks_and_resumed_runs_agree(kind, settings):
    _, _, placement = federation()
    algorithm = kind(**{"local_steps": 3, "lr": 0.2, "batch": 20, **settings})
    task = Task(BLOCKS, "cross-entropy")
    common = {"precision": "float64", "seed": 2}
    right = Run(algorithm, task, placement, engine="reference", **common).fit(4)
    for options in ({"chunk": 1}, {"chunk": 2}, {"limits": Limits(few_rows=0)}, {"replay": 1}):
        fast = Run(algorithm, task, placement, **options, **common).fit(4)
        assert tree.largest_difference(blocks_of(fast), blocks_of(right)) < TOLERANCE, options
    stopped = Run(algorithm, task, placement, **common).fit(2).snapshot()
    again = Run(algorithm, task, placement, **common).restore(stopped).fit(4)
    straight = Run(algorithm, task, placement, **common).fit(4)
    assert tree.largest_difference(blocks_of(again), blocks_of(straight)) == 0
    other = Run(algorithm, task, placement, **{**common, "seed": 3}).fit(4)
    assert tree.largest_difference(blocks_of(other), blocks_of(right)) > 1e-3


def test_shared_labels_or_not_the_masks_are_the_same():
    _, _, placement = federation()
    settings = {"local_steps": 3, "lr": 0.2, "batch": 20}
    runs = [
        Run(kind(**settings), Task(BLOCKS, "cross-entropy"), placement, precision="float64").fit(3)
        for kind in (TDCD, TDCDPrivateLabels)
    ]
    assert tree.largest_difference(*map(blocks_of, runs)) < TOLERANCE


def test_one_client_and_one_step_are_the_joined_network():
    """With the masks written by hand; and the pooled baseline has the same."""
    x, y, placement = federation(([1], [1]))
    settings = {"local_steps": 1, "lr": 0.2, "batch": 20}
    task, common = Task(BLOCKS, "cross-entropy"), {"precision": "float64", "seed": 5}
    run = Run(TDCD(**settings), task, placement, **common)
    start = {j: p.initial(run.fed.streams).block for j, p in run.fed.parts.value.items()}
    rows = torch.from_numpy(run.fed.streams.common("minibatch", 0, 0).sample(ROWS, 20))
    a, b = (block.in_training for block in (Block(table), Block(image)))
    keys = {j: of_step(row_keys(number_of(Streams(5), j, 0), rows), 0) for j in x}
    params = {j: {n: v.clone().requires_grad_() for n, v in start[j].items()} for j in x}
    every = torch.ones(20, dtype=torch.bool)
    scores = (
        a(params["a"], x["a"][rows], every, keys=keys["a"])[0]
        + b(params["b"], x["b"][rows], every, keys=keys["b"])[0]
    )
    F.cross_entropy(scores, y[rows]).backward()
    run.fit(1)
    for j, theta in blocks_of(run).items():
        for name, value in theta.block.items():
            if params[j][name].grad is not None:
                wanted = params[j][name].detach() - 0.2 * params[j][name].grad
                assert (value - wanted).abs().max() < TOLERANCE
    pooled = Run(Central(**settings), task, placement, **common).fit(3)
    apart = tree.largest_difference(blocks_of(pooled), blocks_of(run.fit(3)))
    assert apart < TOLERANCE


# One layer


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout(0.3), (400, 7, 3)),
        (nn.Dropout1d(0.3), (4000, 7, 3)),
        (nn.Dropout2d(0.3), (4000, 7, 2, 2)),
        (nn.Dropout3d(0.3), (4000, 7, 1, 2, 1)),
    ],
)
def test_masks_are_as_torch_draws_them(layer, shape):
    """The share that is kept, within 4.5 standard deviations; its scale; channels as a whole."""
    block, x = Block(nn.Sequential(layer)), torch.ones(shape)
    keys = row_keys(number_of(Streams(0), "a", 0), torch.arange(shape[0]))
    every = torch.ones(len(x), dtype=torch.bool)
    out, _ = block.in_training({}, x, every, keys=keys)
    assert torch.equal(block({}, x), x)
    assert set(out.unique().tolist()) == {0.0, float(torch.tensor(1.0) * (1 / 0.7))}
    by_channel = out.flatten(2).amax(2) if layer.__class__ is not nn.Dropout else out
    assert torch.equal(
        out != 0,
        (by_channel != 0)
        .reshape(*by_channel.shape, *[1] * (x.ndim - by_channel.ndim))
        .expand(shape),
    )
    kept = (by_channel != 0).double()
    assert abs(float(kept.mean()) - 0.7) < 4.5 * (0.21 / kept.numel()) ** 0.5
    flat = kept.flatten(1)
    for at in (0, 1):  # neither rows nor neighbours in a row agree more than by chance
        one, other = flat.narrow(at, 0, flat.shape[at] - 1), flat.narrow(at, 1, flat.shape[at] - 1)
        together = float(((one - 0.7) * (other - 0.7)).mean()) / 0.21
        assert abs(together) < 4.5 / one.numel() ** 0.5


def test_steps_layers_and_uses_have_masks_of_their_own():
    same = nn.Dropout(0.5)
    block = Block(nn.Sequential(same, same, nn.Dropout(0.5)))
    x, every = torch.ones(2000, 1), torch.ones(2000, dtype=torch.bool)
    keys = row_keys(3, torch.arange(2000))
    out, _ = block.in_training({}, x, every, keys=keys)
    assert abs(float((out != 0).double().mean()) - 1 / 8) < 4.5 * (7 / 64 / 2000) ** 0.5
    single = Block(nn.Sequential(nn.Dropout(0.5)))
    first, second = (single.in_training({}, x, every, keys=of_step(keys, q))[0] for q in (0, 1))
    assert abs(float(((first != 0) == (second != 0)).double().mean()) - 0.5) < 4.5 / 2 / 2000**0.5
    some = torch.tensor([5, 3, 3])
    again, _ = single.in_training({}, x[some], every[some], keys=keys[some])
    out, _ = single.in_training({}, x, every, keys=keys)
    assert torch.equal(again, out[some])


def test_what_is_refused_is_named():
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout2d(0.2))
    with pytest.raises(
        ModelError, match=r"layer 1 \(Dropout2d\) is for tensors of 4 axes, not of 2"
    ):
        check_block(Block(module), rows, torch.float32, "silo a's block")
    _, _, placement = federation()
    head = Task(
        {"a": table, "b": image},
        "cross-entropy",
        head=lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1)),
    )
    with pytest.raises(ModelError, match=r"the head: layer 1 \(Dropout\) is in train mode"):
        Run(TDCD(batch=20), head, placement)
    frozen = Privacy("frozen", 2.0, 1.0)
    task = Task(
        {"a": table, "b": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3))}, "cross-entropy"
    )
    with pytest.raises(ModelError, match=r"silo a's layer body.0 \(Dropout\) has a new mask"):
        Run(TDCD(batch=20, privacy=frozen), task, placement)
