"""Convolutions of many clients as a GPU computes them, on a CPU."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from fedloom import resnet18
from fedloom.core import tree
from fedloom.engines.layers.gpu import convolutions, products
from fedloom.engines.layers.rules import ReplacedLayers


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
    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=along)
    expected = gradients(params, x)
    with convolutions.Convolutions():
        found = gradients(params, x)
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
    gradient = torch.randn(expected.shape, generator=draw, dtype=kind)
    given = gradient, x, weight, None, *as_torch, [True, True, False]
    gradients = torch.ops.aten.convolution_backward(*given)[:2]
    found = [products.product(x, weight, *how, 3)]
    found += [f(gradient, x, weight, *how, 3) for f in (products.by_image, products.by_weight)]
    for actual, theirs in zip(found, (expected, *gradients), strict=True):
        assert actual.shape == theirs.shape
        assert float((actual - theirs).abs().max()) <= close * float(theirs.abs().max())
