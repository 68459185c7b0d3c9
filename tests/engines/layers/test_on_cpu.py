"""Layers by our CPU operations: the same numbers as torch's, in another memory order."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

from fedloom import TDCD, Run, Task, linear, mlp, partition
from fedloom.core import tree
from fedloom.engines import layers
from fedloom.engines.layers import cpu, rules
from fedloom.engines.layers.rules import ON_CPU, ReplacedLayers
from fedloom.engines.stacked.axis import ChunkValue


class Functional(nn.Module):
    """A convolution by function, not by module."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 2, 3, 3))
        self.last = nn.Linear(8 * 3 * 2, 3)

    def forward(self, x):
        x = F.conv2d(x, self.weight, padding=1)
        return self.last(F.max_pool2d(F.relu(x), 2).flatten(1))


def images(clients, rows=120, shape=(2, 7, 5)):
    draw = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(rows, *shape, generator=draw)}
    return partition(x, torch.randint(3, (rows,), generator=draw), {"a": clients})


@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("steps", [1, 3])
def test_images_with_channels_last_are_the_reference(clients, steps):
    rule, task = TDCD(local_steps=steps, lr=0.1, batch=40), Task({"a": Functional}, "cross-entropy")
    fast, slow = (
        Run(rule, task, images(clients), engine=engine, precision="float64")
        for engine in ("stacked", "reference")
    )
    assert fast.fed._execution.rules == ON_CPU
    fast.fit(4)
    slow.fit(4)
    assert float((fast.predict() - slow.predict()).abs().max()) < 1e-12


def test_results_stay_with_their_channels_last():
    x, w = torch.randn(3, 6, 4, 8, 6), torch.randn(3, 5, 4, 3, 3)
    seen = []

    def layers(x, w):
        x = F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)), 2)
        seen.append(torch._C._functorch.get_unwrapped(x))
        return x

    with ReplacedLayers(ON_CPU):
        vmap(layers)(x, w)
    (inside,) = seen
    assert inside.shape == (6, 3, 5, 4, 3)  # rows, clients, channels, ...
    assert inside.flatten(1, 2).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), None])
def test_products_of_wide_layers(monkeypatch, known, dims):
    """By either library, with gradients."""
    if not known:
        monkeypatch.setattr(cpu, "has_mkldnn_product", lambda: False)
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(3, 40, 512, generator=draw), torch.randn(3, 256, 512, generator=draw)
    b = torch.randn(3, 256, generator=draw)

    def both(x, w, b):
        def loss(x, w, b):
            return F.linear(x, w, b).square().sum()

        return F.linear(x, w, b), torch.func.grad(loss, (0, 1, 2))(x, w, b)

    if dims is None:
        f, given = both, [a[0] for a in (x, w, b)]
    else:
        f, dims = vmap(both, (*dims, dims[1])), (*dims, dims[1])
        given = [a if at == 0 else a[0] for a, at in zip((x, w, b), dims, strict=True)]
    with ReplacedLayers(ON_CPU):
        results = tree.tensors(f(*given))
    expected = tree.tensors(f(*[a.double() for a in given]))
    for own, theirs in zip(results, expected, strict=True):
        assert own.dtype == torch.float32
        assert float((own - theirs).abs().max()) < 1e-5 * float(theirs.abs().max())


def test_a_wide_layer_has_the_other_library(monkeypatch):
    """In a run, if torch has the function; traced or not, with the same bits; not for a narrow
    layer."""
    used = []
    plain = cpu._mkldnn_product
    monkeypatch.setattr(cpu, "_mkldnn_product", lambda *a: used.append(a[0].shape) or plain(*a))
    draw = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(900, 400, generator=draw)}
    rows = partition(x, torch.randn(900, generator=draw), {"a": 3})
    rule, wide = (
        TDCD(local_steps=2, lr=0.001, batch=800),
        Task({"a": mlp(400, [300], 1)}, "squared"),
    )
    called, played = (Run(rule, wide, rows, replay=after) for after in (0, 2))
    assert torch.equal(called.fit(8).predict(), played.fit(8).predict())
    assert bool(used) == cpu.has_mkldnn_product()
    exact = Run(rule, wide, rows, engine="reference", precision="float64").fit(8).predict()
    assert float((called.predict() - exact).abs().max()) < 1e-4
    assert Run(rule, Task({"a": linear(400)}, "squared"), rows).fed._execution.rules == {}


@pytest.mark.parametrize("known", [True, False])
def test_rules_are_for_models_with_such_layers(monkeypatch, known):
    monkeypatch.setattr(cpu, "has_mkldnn_product", lambda: known)
    monkeypatch.setattr(rules, "WIDE", 60)
    rows = images(2, shape=(10,))
    for width in (5, 6):
        run = Run(TDCD(batch=20), Task({"a": mlp(10, [width], 3)}, "cross-entropy"), rows)
        assert bool(run.fed._execution.rules) == (known and width == 6)


class Refused(Functional):
    """With a layer without a rule, which torch computes inside vmap for one memory order only."""

    def forward(self, x):
        x = torch.group_norm(F.conv2d(x, self.weight, padding=1), 4)
        return self.last(F.max_pool2d(x, 2).flatten(1))


def test_a_model_that_cannot_have_them_is_computed_without():
    rule, task = TDCD(local_steps=2, lr=0.1, batch=40), Task({"a": Refused}, "cross-entropy")
    fast, slow = (
        Run(rule, task, images(5), engine=engine, precision="float64")
        for engine in ("stacked", "reference")
    )
    assert fast.fed._execution.rules == {}
    fast.fit(2)
    slow.fit(2)
    assert float((fast.predict() - slow.predict()).abs().max()) < 1e-12


def test_large_values_are_added_one_by_one():
    value = ChunkValue({"w": torch.randn(7, 3, 4)}, True)
    counts = (4, 0, 3)
    plain = value.sums(None, counts)["w"]
    added = value.sums(None, counts, sequential_from=12)["w"]
    assert added.dtype == torch.float64
    assert torch.allclose(added, plain, rtol=1e-15, atol=1e-15)
    assert added.shape == (3, 3, 4)


def test_names_of_operations_are_not_those_of_the_kernels():
    """The kernels' names are registered only on a GPU, where equal names would fail."""
    text = (Path(layers.__file__).parent / "gpu" / "kernels.py").read_text(encoding="utf-8")
    theirs = set(re.findall(r'custom_op\("(\w+::\w+)"', text))
    own = {name.split(".")[0] for name in cpu.LIBRARY._op_defs}
    assert theirs
    assert own
    assert not theirs & own
