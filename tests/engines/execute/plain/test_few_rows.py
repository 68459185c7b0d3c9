"""Local steps of clients with fewer rows than columns, compared with plain steps."""

from functools import partial

import pytest
import torch
from torch import nn

from fedloom import TDCD, Run, Task, lstm, mlp, partition
from fedloom.algorithms.shared.local import local_sgd
from fedloom.core import tree
from fedloom.core.gradients import steps_by
from fedloom.core.placed import Batch, Rows
from fedloom.core.registry import algorithms
from fedloom.engines.execute.plain import few_rows
from fedloom.engines.execute.tracing.replay import Replayer
from fedloom.engines.limits import Limits
from fedloom.engines.stacked import sizing
from fedloom.models.block import Block
from fedloom.models.library import linear
from fedloom.models.task import Theta

QUICK = Limits(traced_seconds=0.0)


@pytest.fixture
def taken(monkeypatch):
    """Has an entry for each time that steps were computed by products of rows."""
    times, steps = [], few_rows.steps

    def counting(*args):
        times.append(1)
        return steps(*args)

    monkeypatch.setattr(few_rows, "steps", counting)
    return times


def federation(shape, classes=0, rows=60, clients=(7, 13)):
    draw = torch.Generator().manual_seed(0)
    x = {f"s{j}": torch.randn(rows, *shape, generator=draw) for j in range(len(clients))}
    y = torch.randn(rows, generator=draw)
    if classes:
        y = torch.randint(classes, (rows,), generator=draw)
    return partition(x, y, {f"s{j}": k for j, k in enumerate(clients)})


def both(rule, task, data, rounds=4, **options):
    """The models that two engines learn."""
    runs = (
        Run(rule, task, data, precision="float64", limits=QUICK, **options),
        Run(rule, task, data, precision="float64", engine="reference"),
    )
    fast, slow = (run.fed.read(run.fit(rounds).state.theta) for run in runs)
    return tree.largest_difference(fast, slow)


BLOCKS = {
    "linear": ((30,), linear(30), "squared"),
    "several outputs, no bias": ((30,), linear(30, 4, bias=False), "cross-entropy"),
    "mlp": ((30,), mlp(30, [6], 4), "cross-entropy"),
    "images": ((2, 5, 3), mlp(30, [6, 5], 4, flatten=True), "cross-entropy"),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("settings", [{}, {"l2": 0.3}, {"weighting": "rows"}], ids=str)
@pytest.mark.parametrize("replay", [0, 1])
def test_they_learn_what_plain_steps_do(taken, name, settings, replay):
    shape, block, loss = BLOCKS[name]
    data = federation(shape, 4 if loss == "cross-entropy" else 0)
    rule = TDCD(local_steps=4, lr=0.1, batch=17, **settings)  # some clients have no row
    assert both(rule, Task(dict.fromkeys(data.x, block), loss), data, replay=replay) < 1e-12
    assert taken


@pytest.mark.parametrize("name", ["splitnn", "fedbcd"])
def test_other_algorithms_too(taken, name):
    data = federation((30,), 4)
    rule = algorithms[name](local_steps=3, lr=0.1, batch=17)
    assert both(rule, Task(dict.fromkeys(data.x, mlp(30, [6], 4)), "cross-entropy"), data) < 1e-12
    assert taken


@pytest.mark.parametrize(
    "rule",
    [
        TDCD(local_steps=3, lr=0.1, batch=60),  # more rows than half the columns
        TDCD(local_steps=3, lr=0.1, batch=17, minibatch="fresh"),
        TDCD(local_steps=1, lr=0.1, batch=17),  # one step of all rows
    ],
    ids=["many rows", "fresh", "one step"],
)
def test_others_take_plain_steps(taken, rule):
    data = federation((10,), 4)
    assert both(rule, Task(dict.fromkeys(data.x, mlp(10, [6], 4)), "cross-entropy"), data) < 1e-12
    assert not taken


def test_a_layer_along_another_axis_takes_plain_steps(taken):
    """nn.Linear of rows that are no vectors goes along their last axis."""
    data = federation((3, 12))
    block = partial(nn.Sequential, nn.Linear(12, 2), nn.Flatten(), nn.Linear(6, 1))
    task = Task({silo: block() for silo in data.x}, "squared")
    assert both(TDCD(local_steps=3, lr=0.1, batch=17), task, data) < 1e-12
    assert not taken


def test_the_reference_takes_plain_steps(taken):
    data = federation((30,))
    task = Task(dict.fromkeys(data.x, linear(30)), "squared")
    Run(TDCD(local_steps=3, batch=17), task, data, engine="reference").fit(1)
    assert not taken


def test_a_client_without_a_row_that_counts_stays(taken):
    """Whatever its gradient is: here NaN, from rows whose counterparts are missing."""
    x, start = torch.randn(40, 6), Theta({"weight": torch.ones(1, 6)}, {})
    rows = partition({"a": x}, torch.randn(40), {"a": 20})
    part = Run(TDCD(batch=3), Task({"a": linear(6, bias=False)}, "squared"), rows).fed.part
    rest = Rows(torch.full((2, 1), torch.nan), torch.zeros(2, dtype=torch.bool))
    batch = Batch(x[:2], torch.zeros(2), torch.ones(2, dtype=torch.bool))
    with steps_by(few_rows.FewRows()):
        after = local_sgd(part.values["a"], start, rest, batch, torch.full((3,), 0.1), 0.5)
    assert taken
    assert torch.equal(after.block["weight"], start.block["weight"])


class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) * 2


def tied():
    first = nn.Linear(3, 3)
    second = nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, second)


def hooked():
    layer = nn.Linear(3, 2)
    layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return nn.Sequential(layer)


def still():
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    return layer


@pytest.mark.parametrize(
    ("module", "first"),
    [
        (nn.Linear(3, 2), ("weight", False)),
        (nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), ("1.weight", True)),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU()), ("0.weight", False)),
        (nn.Sequential(nn.Flatten(2), nn.Linear(3, 2)), None),
        (nn.Sequential(nn.Tanh(), nn.Linear(3, 2)), None),
        (nn.Sequential(), None),
        (nn.Sequential(nn.Flatten()), None),
        (Doubled(), None),
        (tied(), None),
        (hooked(), None),
        (still(), None),
        (lstm(3, 5, 1), None),
    ],
    ids=str,
)
def test_which_blocks_begin_with_a_linear_layer(module, first):
    assert Block(module).first == first


def test_what_is_traced_for_some_sizes_stays_beside_that_for_others():
    called = []

    def f(a):
        called.append(a.shape[0])
        return a.sum(0) if a.shape[0] > 5 else a.prod(0)

    replayer = Replayer(2)
    sizes = [2, 3, 4, 8, 9, 10, 3, 9, 2, 8] * 6
    for rows in sizes:
        a = torch.rand(rows, 2) + 1
        expected = a.sum(0) if rows > 5 else a.prod(0)
        torch.testing.assert_close(replayer("f", f, [a]), expected)
    called.clear()
    for rows in sizes:
        replayer("f", f, [torch.rand(rows, 2)])
    assert not called


def test_rows_come_in_fours_where_products_are_of_matrices():
    data = federation((30,), 4)
    cost = {
        name: Run(TDCD(batch=9), Task(dict.fromkeys(data.x, block), loss), data).fed._sizing["s0"]
        for name, block, loss in (
            ("mlp", mlp(30, [64], 4), "cross-entropy"),
            ("linear", linear(30, 4), "cross-entropy"),
        )
    }
    assert [cost["mlp"].width(rows) for rows in (0, 1, 3, 4, 5, 9)] == [2, 2, 4, 4, 8, 12]
    assert [cost["linear"].width(rows) for rows in (0, 1, 4, 5, 9)] == [1, 1, 4, 5, 9]
    assert sizing.in_fours(7) == 8
