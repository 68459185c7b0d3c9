"""Replayed work gives the same bits; what cannot be traced is called."""

import sys

import pytest
import torch
from torch import Tensor, nn

from fedloom import TDCD, Run, Task, linear, mlp
from fedloom.core import tree
from fedloom.engines.execute.tracing.replay import Replayer
from fedloom.engines.limits import Limits
from tests.engines.stacked.test_chunks import federation, learnt

QUICK = Limits(traced_seconds=0.0)  # traces also what takes no time


MODELS = {
    "linear": lambda: Task({"s0": linear(5), "s1": linear(5)}, "squared"),
    "mlp": lambda: Task({"s0": mlp(5, [6], 3), "s1": mlp(5, [4], 3)}, "cross-entropy"),
    "head": lambda: Task({"s0": mlp(5, [6], 3), "s1": linear(5, 3)}, "squared", head=linear(3)),
}


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("linear", {}),
        ("mlp", {"minibatch": "fresh", "l2": 0.1, "weighting": "rows"}),
        ("head", {"local_steps": 1, "weighting": "rows"}),
    ],
)
def test_replay_gives_the_same_bits(model, settings):
    """Ragged clients, a few of them without rows in a minibatch."""
    data = federation((5,), classes=3 if model == "mlp" else 0)
    rule = TDCD(**{"local_steps": 3, "lr": 0.1, "batch": 17, **settings})
    played = Run(rule, MODELS[model](), data, replay=3, precision="float64", limits=QUICK)
    called = Run(rule, MODELS[model](), data, replay=0, precision="float64")
    assert tree.largest_difference(learnt(played, 16), learnt(called, 16)) == 0
    entries = played.fed.executors["traced"].replayer.entries.values()
    count = len(played.fed._plan.alike)
    assert sum(entry.replay is not None for entry in entries) >= 2 * count  # embed and sgd
    assert any(sum(entry.known.values()) > 1 for entry in entries)  # of several sizes


class ChangesItsOwn(nn.Module):
    """Computes something twice and changes one of them in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        first, second = self.linear(x), self.linear(x)
        first.add_(1.0)
        return first * second


def test_what_changes_in_place_is_called():
    data, rule = federation((5,), classes=3), TDCD(local_steps=3, lr=0.05, batch=17)
    task = Task({"s0": ChangesItsOwn, "s1": ChangesItsOwn}, "cross-entropy")
    played, called = (
        Run(rule, task, data, replay=calls, precision="float64", limits=QUICK) for calls in (3, 0)
    )
    assert tree.largest_difference(learnt(played, 16), learnt(called, 16)) == 0


def test_replay_is_the_reference():
    data = federation((5,), classes=3)
    rule = TDCD(local_steps=3, lr=0.1, batch=17)
    fast = Run(rule, MODELS["mlp"](), data, replay=2, precision="float64", limits=QUICK)
    slow = Run(rule, MODELS["mlp"](), data, engine="reference", precision="float64")
    assert tree.largest_difference(learnt(fast, 12), learnt(slow, 12)) < 1e-12


def test_what_cannot_be_traced_is_called():
    calls = []

    def branching(a: Tensor) -> Tensor:
        calls.append(1)
        return a + 1 if float(a.sum()) > 0 else a - 1

    replayer = Replayer(1)
    for number in (1.0, -1.0, 2.0, -2.0, 3.0):
        result = replayer("branching", branching, [torch.tensor([number])])
        assert result.tolist() == [number + (1 if number > 0 else -1)]
    assert len(calls) >= 5


def test_without_what_traces_it_is_called(monkeypatch):
    trace = "fedloom.engines.execute.tracing.trace"
    monkeypatch.setitem(sys.modules, trace, None)  # as if torch had moved on
    replayer = Replayer(1)
    for _ in range(4):
        assert replayer("plus", torch.add, [torch.ones(2), torch.ones(2)]).tolist() == [2.0, 2.0]


def test_what_fails_when_replayed_is_called():
    replayer = Replayer(1)
    for _ in range(4):
        replayer("plus", torch.add, [torch.ones(2), torch.ones(2)])
    (entry,) = replayer.entries.values()
    assert entry.replay is not None

    def fails(*tensors):
        raise RuntimeError("a view of strides that it was not traced with, say")

    entry.replay = fails
    assert replayer("plus", torch.add, [torch.ones(2), torch.ones(2)]).tolist() == [2.0, 2.0]
    assert entry.replay is None


def test_other_constants_are_other_functions():
    def plus(a: Tensor, by: float) -> Tensor:
        return a + by

    replayer = Replayer(1)
    for _ in range(4):
        for by in (1.0, 2.0):
            assert float(replayer("plus", plus, [torch.zeros(()), by])) == by


def test_other_sizes_are_not_taken_for_granted():
    def mean(a: Tensor) -> Tensor:
        return a.sum() / a.shape[0]

    replayer = Replayer(2)
    for size in (3, 3, 3, 3, 5, 1, 7, 8, 9, 2, 3):
        assert float(replayer("mean", mean, [torch.ones(size)])) == 1.0


def test_trees_come_apart_and_together():
    value = {"a": (torch.ones(2), None), "b": [torch.zeros(1), "text", 3]}
    tensors, form = tree.apart(value)
    again = tree.joined(form, tensors)
    assert tree.apart(again)[1] == form
    assert again["b"][1:] == ["text", 3]
    assert tree.apart({"a": (torch.ones(2), 4)})[1] != tree.apart({"a": (torch.ones(2), 5)})[1]


def test_large_numbers_are_finite():
    large = torch.full((9,), 3e38)
    assert tree.is_finite({"a": large})
    assert tree.is_finite(torch.full((9,), 1.7e308, dtype=torch.float64))
    assert not tree.is_finite({"a": large, "b": torch.tensor([1.0, float("inf"), -float("inf")])})
