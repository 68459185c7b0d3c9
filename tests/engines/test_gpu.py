"""Results on a GPU (`device`) equal those on the CPU. Skipped without a GPU."""

import pytest
import torch

import fedloom.algorithms  # noqa: F401  (registers them)
from fedloom import TDCD, Run, Task, mlp, partition, resnet18
from fedloom.core import tree
from fedloom.core.registry import algorithms
from fedloom.engines.layers.gpu import convolutions
from fedloom.testing import sample_of
from fedloom.testing.samples import examples_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")


EXAMPLES = [
    pytest.param(example, id=f"{name}-{number}")
    for name in algorithms
    for number, example in enumerate(examples_of(algorithms[name]))
]


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("algorithm", EXAMPLES)
def test_the_gpu_gives_the_numbers_of_the_cpu(algorithm, engine):
    cpu, gpu = (
        Run(algorithm, *sample_of(algorithm), precision="float64", device=device, engine=engine)
        for device in ("cpu", "cuda")
    )
    cpu.fit(3)
    gpu.fit(3)
    results = tree.map_tensors(lambda a: a.cpu(), algorithm.blocks(gpu.fed, gpu.state))
    assert tree.largest_difference(results, algorithm.blocks(cpu.fed, cpu.state)) < 1e-10
    assert list(cpu.ledger) == list(gpu.ledger)
    assert torch.allclose(cpu.predict(), gpu.predict(), atol=1e-10)


def test_clients_with_few_rows():
    draw = torch.Generator().manual_seed(0)
    x = {name: torch.randn(60, 30, generator=draw) for name in "ab"}
    rows = partition(x, torch.randint(4, (60,), generator=draw), {"a": 7, "b": 13})
    task = Task(dict.fromkeys(x, mlp(30, [6], 4)), "cross-entropy")
    rule = TDCD(local_steps=4, lr=0.1, batch=17, l2=0.1)
    gpu = Run(rule, task, rows, precision="float64", device="cuda").fit(3)
    cpu = Run(rule, task, rows, precision="float64", engine="reference").fit(3)
    results = tree.map_tensors(lambda a: a.cpu(), rule.blocks(gpu.fed, gpu.state))
    assert tree.largest_difference(results, rule.blocks(cpu.fed, cpu.state)) < 1e-10


# Convolutions of many clients


@pytest.fixture
def kernels():
    torch.cuda.init()
    results = convolutions._written()
    if results is None:
        pytest.skip("Triton is not installed, or the GPU is too old")
    return results


LAYERS = [  # channels, outputs, height, width, taps, stride, padding
    (16, 16, 6, 4, 3, 1, 1),
    (16, 32, 6, 4, 3, 2, 1),
    (32, 16, 6, 4, 1, 2, 0),
    (16, 32, 7, 5, 3, 2, 0),
    (16, 48, 5, 5, 5, 1, 2),
    (48, 16, 8, 4, 3, 3, 1),
    (64, 256, 9, 7, 3, 1, 1),
    (256, 64, 6, 4, 3, 2, 1),
]


@pytest.mark.parametrize(("kind", "close"), [("float32", 2e-3), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_kernels_of_grouped_convolutions(kernels, layer, kind, close):
    """Compared with exact results, for three clients with five rows; float32 uses TF32."""
    channels, outputs, high, wide, taps, stride, padding = layer
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3 * channels, high, wide, generator=draw)
    weight = torch.randn(3 * outputs, channels, taps, taps, generator=draw) / taps / channels**0.5
    x, weight = (a.to("cuda", getattr(torch, kind)) for a in (x, weight))
    settings = [stride, stride], [padding, padding], [1, 1], False, [0, 0], 3
    exact = torch.ops.aten.convolution(x.double(), weight.double(), None, *settings)
    gradient = torch.randn(exact.shape, generator=draw).to(x)
    given = gradient.double(), x.double(), weight.double(), None, *settings, [True, True, False]
    expected = (exact, *torch.ops.aten.convolution_backward(*given)[:2])
    last = [a.contiguous(memory_format=torch.channels_last) for a in (gradient, x, weight)]
    turned = weight.unflatten(0, (3, -1)).permute(0, 3, 4, 2, 1).contiguous()
    results = (
        kernels.forward(last[1], last[2], 3, stride, padding),
        kernels.by_image(last[0], turned, high, wide, 3, stride, padding),
        kernels.by_weight(last[0], last[1], taps, taps, 3, stride, padding),
    )
    for a, b in zip(results, expected, strict=True):
        assert a.shape == b.shape
        assert float((a.double() - b).abs().max()) <= close * float(b.abs().max())


def pictures():
    """A task with convolutions of all kinds (by products, cuDNN and kernels), and its rows."""
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.GroupNorm(2, 16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 4 * 3, 3),
    )
    x = {"a": torch.randn(1200, 1, 8, 6, generator=draw)}
    rows = partition(x, torch.randint(3, (1200,), generator=draw), {"a": 6})
    return Task({"a": module}, "cross-entropy"), rows


@pytest.mark.parametrize(("precision", "close"), [("tf32", 0.01), ("bf16", 0.05)])
def test_what_is_compiled_holds_for_all_rows(kernels, precision, close, caplog):
    (task, rows), rule = pictures(), TDCD(local_steps=5, lr=0.05, batch=200)
    plain = Run(rule, task, rows, seed=1, device="cuda", precision="float64")
    fast = Run(rule, task, rows, seed=1, device="cuda", precision=precision, compile=True, chunk=2)
    plain.fit(15)
    fast.fit(15)
    assert float((plain.predict() - fast.predict()).abs().max()) <= close
    entries = list(fast.fed.executors["compiled"].compiler.replayer.entries.values())
    assert all(entry.replay is not None for entry in entries)
    assert sum(len(entry.known) for entry in entries) > 1, "rows did not vary"
    assert all(holds for entry in entries for holds in entry.known.values())
    assert "runs as it is" not in caplog.text


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_resnet_is_compiled_for_all_rows(kernels, precision, caplog):
    """Group norms, strides, 1 x 1 convolutions, and layers with few positions."""
    draw = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(1200, 3, 16, 8, generator=draw)}
    rows = partition(x, torch.randint(3, (1200,), generator=draw), {"a": 6})
    task = Task({"a": resnet18(3, 3, 16)}, "cross-entropy")
    rule = TDCD(local_steps=5, lr=0.01, batch=200)
    run = Run(rule, task, rows, seed=1, device="cuda", precision=precision, compile=True, chunk=2)
    before = run.add_record().train_loss
    run.fit(15)
    assert run.add_record().train_loss < before
    entries = list(run.fed.executors["compiled"].compiler.replayer.entries.values())
    assert all(entry.replay is not None for entry in entries)
    assert sum(len(entry.known) for entry in entries) > 1, "rows did not vary"
    assert "runs as it is" not in caplog.text


def test_one_step_of_all_clients_at_once_compiled(kernels, caplog):
    (task, rows), rule = pictures(), TDCD(local_steps=1, lr=0.05, batch=200)
    plain = Run(rule, task, rows, seed=1, engine="reference", precision="float64")
    fast = Run(rule, task, rows, seed=1, device="cuda", precision="tf32", compile=True)
    plain.fit(30)
    fast.fit(30)
    assert float((plain.predict() - fast.predict().cpu()).abs().max()) <= 0.01
    (entry,) = fast.fed.executors["compiled"].compiler.replayer.entries.values()
    assert entry.replay is not None
    assert "runs as it is" not in caplog.text
