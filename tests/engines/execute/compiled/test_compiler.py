"""Compiled gradients, and products in lower precision."""

import shutil
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from fedloom import TDCD, Run, Task, mlp, partition
from fedloom.core import tree
from fedloom.engines.execute.compiled import compiler
from fedloom.engines.layers.gpu.convolutions import Convolutions
from fedloom.engines.layers.rules import ON_CPU, RULES, ReplacedLayers, tracing

needs_compiler = pytest.mark.skipif(
    not shutil.which("c++") and not shutil.which("g++"), reason="there is no C++ compiler"
)


BY_TORCH = "compiled"  # also on a CPU, where `compile` is native


@pytest.fixture
def rows():
    draw = torch.Generator().manual_seed(0)
    x = {silo: torch.randn(200, 4, generator=draw) for silo in ("a", "b")}
    return partition(x, torch.randint(3, (200,), generator=draw), {"a": 3, "b": 3})


def run(rows, **options):
    task = Task({"a": mlp(4, [5], 3), "b": mlp(4, [5], 3)}, "cross-entropy")
    return Run(TDCD(local_steps=4, lr=0.1, batch=40), task, rows, seed=1, **options)


@needs_compiler
def test_compiled_is_the_same(rows):
    """Over rounds with other numbers of rows, and for clients of both silos."""
    plain, fast = run(rows, precision="float64"), run(rows, precision="float64", executor=BY_TORCH)
    plain.fit(12)
    fast.fit(12)
    assert float((plain.predict() - fast.predict()).abs().max()) <= 1e-12
    entries = fast.fed.executors["compiled"].compiler.replayer.entries.values()
    assert any(entry.replay is not None for entry in entries)
    assert sum(len(entry.known) for entry in entries) > 1, "rows did not vary"


class Small(torch.nn.Module):
    """Convolutions, with and without a bias, in groups, with few positions; pooling, a group
    norm."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(2, 16, 3, stride=2, padding=1, bias=False, groups=2)
        self.norm = torch.nn.GroupNorm(2, 16)
        self.second = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.side = torch.nn.Conv2d(16, 16, 1, bias=False)
        self.pool = torch.nn.MaxPool2d((2, 1))
        self.last = torch.nn.Conv2d(16, 3, (2, 3))

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(x) + self.side(x))
        return self.last(self.pool(x)).flatten(1)


def as_traced(graph, fake, recordings):
    return graph


SLOW = [pytest.mark.slow, needs_compiler]


@pytest.mark.parametrize(
    ("precision", "close", "contexts", "compiled"),
    [
        ("float64", 1e-12, lambda: Convolutions(last=tracing()), as_traced),
        ("bf16", 0.02, nullcontext, as_traced),
        pytest.param("float64", 1e-12, nullcontext, compiler.compiled, marks=SLOW),
        pytest.param("bf16", 0.02, nullcontext, compiler.compiled, marks=SLOW),
    ],
    ids=["as on a GPU, traced", "bf16, traced", "compiled", "bf16, compiled"],
)
def test_convolutions_are_traced_once_for_all_numbers_of_rows(
    precision, close, contexts, compiled, monkeypatch
):
    monkeypatch.setattr(compiler, "client_convolutions", lambda device: contexts())
    monkeypatch.setattr(compiler, "compiled", compiled)
    draw = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(120, 2, 7, 6, generator=draw)}
    rows = partition(x, torch.randint(3, (120,), generator=draw), {"a": 4})
    task = Task({"a": Small}, "cross-entropy")
    rule = TDCD(local_steps=4, lr=0.05, batch=60)
    plain, fast = (
        Run(rule, task, rows, seed=1, precision=precision, chunk=2, executor=executor)
        for executor in (None, BY_TORCH)
    )
    plain.fit(10)
    fast.fit(10)
    assert float((plain.predict() - fast.predict()).abs().max()) <= close
    (entry,) = fast.fed.executors["compiled"].compiler.replayer.entries.values()
    assert entry.replay is not None
    assert len(entry.known) > 3
    assert all(entry.known.values())


IMAGES = (6, 2, 5, 4)  # rows, channels, height, width


@pytest.mark.parametrize(
    ("f", "shape", "weight"),
    [
        (lambda x, w: F.conv2d(x, w, stride=2, padding=1), IMAGES, (4, 2, 3, 3)),
        (lambda x, w: F.conv2d(x, w, padding="same"), IMAGES, (4, 2, 3, 3)),
        (F.conv2d, IMAGES[1:], (4, 2, 3, 3)),
        (lambda x, w: F.conv1d(x, w, dilation=2), IMAGES[:3], (4, 2, 2)),
        (lambda x, w: F.conv3d(x, w, groups=2), (2, 2, 3, 3, 3), (4, 1, 2, 2, 2)),
        (lambda x, w: F.max_pool2d(x * w, 2, padding=1, ceil_mode=True), IMAGES, (1,)),
        (lambda x, w: F.max_pool2d(x * w, 3, 1, 1), IMAGES[1:], (1,)),
        (lambda x, w: F.max_pool2d(x * w, 2, return_indices=True)[0], IMAGES, (1,)),
        (lambda x, w: F.group_norm(x, 2, w, -w), (6, 4, 3), (4,)),
        (lambda x, w: F.group_norm(x * w, 2), (6, 4), (1,)),
        (lambda x, w: F.group_norm(F.conv2d(x, w), 2), (1, 2, 3, 4), (4, 2, 3, 3)),
    ],
)
@pytest.mark.parametrize("rules", [RULES, ON_CPU], ids=["compiled", "on a CPU"])
def test_rules_of_layers_are_those_of_each_client(f, shape, weight, rules):
    """Values and gradients, also where only one argument differs by client."""

    def both(x, w):
        return f(x, w), torch.func.grad(lambda x, w: f(x, w).square().sum(), (0, 1))(x, w)

    draw = torch.Generator().manual_seed(0)
    x, w = (torch.randn(3, *s, generator=draw, dtype=torch.float64) for s in (shape, weight))
    with ReplacedLayers(rules):  # one by itself
        results = tree.tensors(both(x[0], w[0]))
    for a, b in zip(results, tree.tensors(both(x[0], w[0])), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    for dims in ((0, 0), (0, None), (None, 0)):
        given = [a if at == 0 else a[0] for a, at in zip((x, w), dims, strict=True)]
        with ReplacedLayers(rules):
            results = tree.tensors(vmap(both, dims)(*given))
        for k in range(3):
            each = [a[k] if at == 0 else a for a, at in zip(given, dims, strict=True)]
            for a, b in zip(results, tree.tensors(both(*each)), strict=True):
                assert torch.allclose(a[k], b, rtol=0, atol=1e-12)


def test_what_cannot_be_compiled_runs_as_it_is(rows, monkeypatch, caplog):
    def broken(graph, fake, recordings):
        raise RuntimeError("no compiler here\nand more lines")

    monkeypatch.setattr(compiler, "compiled", broken)
    plain, fast = run(rows), run(rows, executor=BY_TORCH)
    plain.fit(10)
    fast.fit(10)
    assert torch.equal(plain.predict(), fast.predict())
    warnings = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    (line,) = warnings
    assert line.endswith("runs as it is: no compiler here")


class Fickle(torch.nn.Module):
    """Does the same for some numbers of rows in another way."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x) if len(x) % 4 else -self.inner(-x) + 2 * self.inner.bias


def test_a_line_says_for_which_rows_it_does_not_hold(rows, monkeypatch, caplog):
    monkeypatch.setattr(compiler, "compiled", as_traced)
    task = Task(dict.fromkeys(("a", "b"), Fickle), "cross-entropy")
    plain, fast = (
        Run(TDCD(local_steps=4, lr=0.1, batch=40), task, rows, seed=1, chunk=1, executor=executor)
        for executor in (None, BY_TORCH)
    )
    plain.fit(20)
    fast.fit(20)
    assert float((plain.predict() - fast.predict()).abs().max()) <= 1e-5
    (line,) = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert "runs as it is for some sizes: L['t2'].size()[1] == " in line


@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_bf16_learns_the_same_with_float32_weights(rows, engine):
    exact, short = run(rows, engine=engine), run(rows, engine=engine, precision="bf16")
    exact.fit(30)
    short.fit(30)
    for theta in short.fed.read(short.state.theta).values():
        assert all(a.dtype == torch.float32 for a in theta.block.values())
    assert not torch.equal(exact.predict(), short.predict())
    assert short.add_record().train_loss == pytest.approx(exact.add_record().train_loss, rel=0.01)


def test_tf32_is_float32_on_a_cpu(rows):
    exact, short = run(rows), run(rows, precision="tf32")
    before = torch.get_float32_matmul_precision()
    exact.fit(3)
    short.fit(3)
    assert torch.equal(exact.predict(), short.predict())
    assert torch.get_float32_matmul_precision() == before
