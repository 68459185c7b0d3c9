"""Every optimisation of the stacked engine, compared with the plain way and with the reference
engine."""

import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedloom import TDCD, Run, Task, cnn, linear, lstm, mlp, partition, resnet18
from fedloom.core import tree
from fedloom.core.gradients import PublicLevels, grad, use_levels
from fedloom.core.registry import losses
from fedloom.engines.execute.tracing.replay import Replayer
from fedloom.engines.execute.workers import ahead
from fedloom.engines.layers.gpu import convolutions, products
from fedloom.engines.layers.rules import ReplacedLayers
from fedloom.engines.limits import DEFAULT, Limits
from fedloom.engines.stacked import plan, sizing
from fedloom.engines.stacked.sizing import ChunkSizing
from fedloom.models.block import Block
from fedloom.models.losses import CrossEntropy, Loss

QUICK = Limits(traced_seconds=0.0)  # traces also what takes no time


def federation(shape, classes=0, rows=60, clients=(4, 7)):
    draw = torch.Generator().manual_seed(0)
    x = {f"s{j}": torch.randn(rows, *shape, generator=draw) for j in range(len(clients))}
    y = torch.randint(classes, (rows,), generator=draw) if classes else torch.randn(rows)
    return partition(x, y, {f"s{j}": k for j, k in enumerate(clients)})


def learnt(run, rounds):
    return run.fed.read(run.fit(rounds).state.theta)


# Derivatives


def objective(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return (x @ params["w"] * y).sum().exp()


def test_derivatives_are_those_of_torch_func():
    params = {"w": torch.randn(3, 2), "unused": torch.randn(4)}
    x, y = torch.randn(5, 3) / 9, torch.randn(5, 2) / 9
    for argnums in (0, 1, (0, 2)):
        actual, expected = (g(objective, argnums)(params, x, y) for g in (grad, torch.func.grad))
        assert tree.signature(actual) == tree.signature(expected)
        assert tree.largest_difference(actual, expected) < 1e-6
    assert not grad(objective)(params, x, y)["w"].requires_grad
    assert tree.largest_difference(grad(lambda a: torch.ones(()))(x), torch.zeros(5, 3)) == 0


def test_derivatives_inside_derivatives():
    def cube(a: Tensor) -> Tensor:
        return a**3

    a = torch.tensor(2.0)
    assert float(grad(grad(cube))(a)) == 12.0
    assert torch.func.vmap(grad(cube))(torch.tensor([1.0, 2.0])).tolist() == [3.0, 12.0]
    second = torch.func.vmap(grad(lambda b: grad(cube)(b).sum()))
    assert second(torch.tensor([1.0, 2.0])).tolist() == [6.0, 12.0]


@pytest.mark.parametrize("known", [True, False])
def test_derivatives_inside_vmap_are_those_of_torch_func(request, known):
    """By private parts of torch.func.grad, or without them."""
    if not known:
        before = use_levels(PublicLevels())
        assert type(before) is not PublicLevels
        request.addfinalizer(lambda: use_levels(before))
    params = {"w": torch.randn(4, 3, 2), "unused": torch.randn(4, 4)}
    x, y = torch.randn(4, 5, 3) / 9, torch.randn(4, 5, 2) / 9
    for argnums in (0, 1, (0, 2)):
        actual, expected = (
            torch.func.vmap(g(objective, argnums))(params, x, y) for g in (grad, torch.func.grad)
        )
        assert tree.signature(actual) == tree.signature(expected)
        assert tree.largest_difference(actual, expected) == 0
    shared = {name: a[0] for name, a in params.items()}
    actual, expected = (
        torch.func.vmap(g(objective), (None, 0, 0))(shared, x, y) for g in (grad, torch.func.grad)
    )
    assert tree.largest_difference(actual, expected) == 0


@pytest.mark.parametrize("name", list(losses))
def test_losses_know_their_derivatives(name):
    loss, draw = losses[name](), torch.Generator().manual_seed(0)
    width = 1 if loss.goal == "binary" else 4
    scores = 5 * torch.randn(9, width, dtype=torch.float64, generator=draw)
    y = torch.randint(2, (9,) if loss.goal != "number" else (9, 4), generator=draw)
    y = loss.labels(y, torch.float64)
    expected = torch.func.grad(lambda z: loss.rows(z, y).sum())(scores)
    for slopes in (loss.gradients(scores, y), Loss.gradients(loss, scores, y)):
        assert slopes.shape == scores.shape
        assert float((slopes - expected).abs().max()) < 1e-12


class Twice(nn.Module):
    """Two layers that share a weight, and one that is not trained."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.second.weight = self.first.weight
        self.last.requires_grad_(False)

    def forward(self, x):
        if x.isnan().any():
            raise ValueError("not a number")
        return self.last(self.second(self.first(x)))


def test_blocks_are_called_as_functions():
    block, x = Block(Twice()), torch.randn(5, 3)
    own = {name: value.clone() for name, value in block.module.state_dict().items()}
    params = {name: value + 1 for name, value in block.initial(0).items()}
    assert len(params) == 3
    assert torch.equal(block(params, x), torch.func.functional_call(block.module, params, (x,)))
    assert not torch.equal(block(params, x), block.module(x))
    with pytest.raises(ValueError, match="not a number"):
        block(params, x * float("nan"))
    assert tree.largest_difference(own, dict(block.module.state_dict())) == 0
    assert all(isinstance(value, nn.Parameter) for value in block.module.parameters())


@pytest.mark.parametrize("classes", [1, 2, 10, 15, 16, 40])
@pytest.mark.parametrize("size", [1.0, 1e3])
def test_cross_entropy_and_its_slopes_are_torch_s(classes, size):
    draw = torch.Generator().manual_seed(classes)
    scores = size * torch.randn(50, classes, dtype=torch.float64, generator=draw)
    labels = torch.randint(classes, (50,), generator=draw)
    expected = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    loss = CrossEntropy()
    torch.testing.assert_close(loss.rows(scores, labels), expected, rtol=1e-12, atol=1e-12)
    in_single = loss.rows(scores.float(), labels)
    torch.testing.assert_close(in_single, expected.float(), rtol=1e-5, atol=1e-5)
    slopes = torch.func.grad(lambda z: loss.rows(z, labels).sum())(scores)
    fresh = scores.clone().requires_grad_()
    torch.nn.functional.cross_entropy(fresh, labels, reduction="sum").backward()
    for found in (slopes, loss.gradients(scores, labels)):
        torch.testing.assert_close(found, fresh.grad, rtol=1e-12, atol=1e-12)


def test_cross_entropy_of_huge_scores_is_finite():
    assert torch.isfinite(CrossEntropy().rows(torch.tensor([[1e30, -1e30]]), torch.tensor([1])))


# Replay

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

    def looking(a: Tensor) -> Tensor:
        calls.append(1)
        return a + 1 if float(a.sum()) > 0 else a - 1

    replayer = Replayer(1)
    for number in (1.0, -1.0, 2.0, -2.0, 3.0):
        result = replayer("looking", looking, [torch.tensor([number])])
        assert result.tolist() == [number + (1 if number > 0 else -1)]
    assert len(calls) >= 5


def test_without_what_traces_it_is_called(monkeypatch):
    trace = "fedloom.engines.execute.tracing.trace"
    monkeypatch.setitem(sys.modules, trace, None)  # as if torch had moved on
    replayer = Replayer(1)
    for _ in range(4):
        assert replayer("plus", torch.add, [torch.ones(2), torch.ones(2)]).tolist() == [2.0, 2.0]


def test_what_fails_when_played_is_called():
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


# Convolutions of many clients, as a GPU runs them


def test_a_bias_added_afterwards_is_the_same():
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(4, 3, 8, 7, generator=draw), torch.randn(5, 3, 3, 3, generator=draw)
    bias = torch.randn(5, generator=draw)
    conv = torch.nn.functional.conv2d

    def all_ways():
        return (
            conv(x, weight, bias, 2, padding=1),
            conv(x, weight, bias=bias),
            conv(input=x, weight=weight, bias=None, stride=2),
            torch.nn.functional.conv1d(x[:, :, 0], weight[:, :, 0], bias=bias),
            torch.func.vmap(lambda a: conv(a, weight, bias))(x[:, None]),
        )

    class Noted(TorchFunctionMode):
        """Notes the biases that convolutions get."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func in convolutions.BIAS_ADDED_AFTER:
                biases.append(args[2] if len(args) > 2 else (kwargs or {}).get("bias"))
            return func(*args, **(kwargs or {}))

    biases = []
    expected = all_ways()
    with Noted(), ReplacedLayers(convolutions.BIAS_ADDED_AFTER):
        found = all_ways()
        assert any(bias is not None for bias in biases)
        biases.clear()
        with torch.autocast("cpu", torch.bfloat16):  # inside, as an engine's local work has it
            short = all_ways()
    assert biases == [None] * len(found)
    assert all(map(torch.equal, found, expected))
    assert {a.dtype for a in short[:4]} == {torch.bfloat16}
    assert tree.largest_difference([a.float() for a in short], list(expected)) < 0.2


@pytest.mark.parametrize("shared", [True, False])
def test_convolutions_of_many_clients(monkeypatch, shared):
    """A ResNet's convolutions with strides, by either way: gradients as torch's."""
    used = []
    plain = products.product
    monkeypatch.setattr(products, "product", lambda *a: used.append(1) or plain(*a))
    module = resnet18(3, 10, 16)().double()
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 3, 16, 8, generator=draw, dtype=torch.float64)
    params = {k: v.detach() for k, v in module.named_parameters()}
    if not shared:
        params = {k: torch.stack([v, 1.01 * v, 0.99 * v]) for k, v in params.items()}

    def loss(actual, rows):
        return torch.func.functional_call(module, actual, (rows,)).square().sum()

    along = (None if shared else 0, 0)
    slopes = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=along)
    expected = slopes(params, x)
    with convolutions.Convolutions():
        found = slopes(params, x)
    size = max(float(a.abs().max()) for a in tree.tensors(expected))
    assert tree.largest_difference(found, expected) < 1e-12 * size
    assert bool(used) == (not shared)  # the last layers have more weights than positions


@pytest.mark.parametrize(("kind", "close"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("channels", "taps", "stride"), [(3, 3, 1), (3, 3, 2), (8, 1, 2)])
def test_convolutions_as_products(kind, close, channels, taps, stride):
    """And their gradients, for three clients; also where a window has an odd number of elements."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3 * channels, 6, 4, generator=draw, dtype=kind)
    weight = torch.randn(3 * 8, channels, taps, taps, generator=draw, dtype=kind)
    how = [stride, stride], [taps // 2, taps // 2]
    as_torch = *how, [1, 1], False, [0, 0], 3
    expected = torch.ops.aten.convolution(x, weight, None, *as_torch)
    slope = torch.randn(expected.shape, generator=draw, dtype=kind)
    given = slope, x, weight, None, *as_torch, [True, True, False]
    slopes = torch.ops.aten.convolution_backward(*given)[:2]
    found = [products.product(x, weight, *how, 3)]
    found += [f(slope, x, weight, *how, 3) for f in (products.by_image, products.by_weight)]
    for actual, theirs in zip(found, (expected, *slopes), strict=True):
        assert actual.shape == theirs.shape
        assert float((actual - theirs).abs().max()) <= close * float(theirs.abs().max())


def test_a_gpu_sees_few_different_numbers_of_rows():
    sizes = {rows: sizing.rounded_up(rows) for rows in range(2000)}
    assert all(rows <= size <= rows + max(1, rows // 16) for rows, size in sizes.items())
    assert sizes[0] == 0
    assert len({size for rows, size in sizes.items() if 1024 < size <= 2048}) <= 16


# Chunks


def costing(weights, row, most=None, **limits):
    return ChunkSizing(weights, row, most, DEFAULT.shared_models, limits=Limits(**limits))


def test_every_client_is_in_one_chunk():
    places, widths = np.arange(40) * 2, np.random.default_rng(0).integers(0, 30, 40)
    for cost in (
        costing(100, 10, chunk=2000, padding=50),
        costing(1, 1, chunk=10**9),
        costing(9, 9, 7, chunk=9),
    ):
        cuts = cost.cut(places, widths)
        assert sorted(np.concatenate(cuts)) == places.tolist()
        for cut in cuts:
            most = max(1, widths[cut // 2].max())
            masks = len(cut) * (cost.weights + most * cost.row)
            assert len(cut) == 1 or masks <= cost.limits.chunk or cost.most is not None
            assert len(cut) <= (cost.most or len(places))
    assert len(costing(1, 1, chunk=10**9, padding=10**9).cut(places, widths)) == 1
    assert len(costing(1, 1, chunk=10**9, padding=5).cut(places, widths)) > 3


@pytest.mark.parametrize("spare", [1, 10**9])
@pytest.mark.parametrize("budget", [1, 2000, 10**9])
def test_chunks_change_nothing(monkeypatch, spare, budget):
    data = federation((5,), classes=3)
    rule = TDCD(local_steps=2, lr=0.1, batch=17, weighting="rows")
    slow = Run(rule, MODELS["mlp"](), data, engine="reference", precision="float64")
    limits = Limits(chunk=budget, padding=spare, light_row=0, light_model=0, traced_seconds=0.0)
    fast = Run(rule, MODELS["mlp"](), data, precision="float64", limits=limits)
    cut, chunk = [], fast.fed._axis.chunk
    monkeypatch.setattr(fast.fed._axis, "chunk", lambda *a: cut.append(len(a[1])) or chunk(*a))
    assert tree.largest_difference(learnt(fast, 3), learnt(slow, 3)) < 1e-12
    assert fast.ledger.lines() == slow.ledger.lines()
    assert (max(cut) == 1) == (budget == 1)
    assert (set(cut) == {4, 7}) == (min(budget, spare) == 10**9)  # whole silos


# Threads


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("shape", "block"), [((4, 3), lstm(3, 5, 1)), ((1, 8, 4), cnn(1, (8, 4), 1, 2))]
)
def test_threads_change_nothing(monkeypatch, shape, block):
    used = []
    monkeypatch.setattr(plan, "ahead", lambda *a: used.append(1) or ahead(*a))
    data = federation(shape)
    rule = TDCD(local_steps=2, lr=0.1, batch=17)
    task = Task({"s0": block, "s1": block}, "squared")
    limits = Limits(chunk=1, thread_rows=0)
    fast = Run(rule, task, data, precision="float64", limits=limits)
    slow = Run(rule, task, data, engine="reference", precision="float64")
    assert tree.largest_difference(learnt(fast, 3), learnt(slow, 3)) < 1e-12
    assert used


@pytest.mark.usefixtures("two_threads")
def test_work_ahead_keeps_order_and_tells_of_failure():
    done = []
    assert list(ahead(range(20), done.append)) == list(range(20))
    assert sorted(done) == list(range(20))
    assert list(ahead(range(3), lambda _: torch.get_num_threads() == 1 or 1 / 0)) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        list(ahead(range(5), lambda item: 1 / (3 - item)))
    assert torch.get_num_threads() == 2


def test_of_a_minibatch_only_so_many_bytes_are_kept():
    x = {"a": torch.randn(200, 5)}
    rows = partition(x, torch.randn(200), {"a": 10})
    task, limits = Task({"a": linear(5)}, "squared"), Limits(minibatch=2000)
    fed = Run(TDCD(batch=10), task, rows, chunk=1, limits=limits).fed
    taken, _ = fed.minibatch(torch.arange(200))
    for _ in range(2):
        fed._read_clients(taken)
    kept = sum(map(tree.nbytes, taken._batches.values()))
    assert 0 < kept <= 2000


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_work_of_threads_is_traced_between_rounds(precision):
    """Also for other numbers of clients and rows, with the same bits."""
    limits = Limits(traced_seconds=0.0, thread_rows=0)
    draw = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(300, 1, 8, 6, generator=draw)}
    rows = partition(x, torch.randint(3, (300,), generator=draw), {"a": 7})
    task = Task({"a": cnn(1, (8, 6), 3, width=8)}, "cross-entropy")
    rule = TDCD(local_steps=3, lr=0.05, batch=60)
    plain, fast = (
        Run(rule, task, rows, seed=1, precision=precision, chunk=3, replay=after, limits=limits)
        for after in (0, 4)
    )
    plain.fit(12)
    fast.fit(12)
    assert tree.largest_difference(plain.predict(), fast.predict()) == 0
    entries = list(fast.fed.executors["traced"].replayer.entries.values())
    assert any(len(entry.known) > 3 for entry in entries)
    assert all(masks for entry in entries for masks in entry.known.values())
