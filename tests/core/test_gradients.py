"""Gradients of local functions, losses and blocks equal those of torch.func."""

import pytest
import torch
from torch import Tensor, nn

from fedloom.core import tree
from fedloom.core.gradients import PublicLevels, grad, use_levels
from fedloom.core.registry import losses
from fedloom.models.block import Block
from fedloom.models.losses import CrossEntropy, Loss


def objective(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return (x @ params["w"] * y).sum().exp()


def test_gradients_are_those_of_torch_func():
    params = {"w": torch.randn(3, 2), "unused": torch.randn(4)}
    x, y = torch.randn(5, 3) / 9, torch.randn(5, 2) / 9
    for argnums in (0, 1, (0, 2)):
        actual, expected = (g(objective, argnums)(params, x, y) for g in (grad, torch.func.grad))
        assert tree.signature(actual) == tree.signature(expected)
        assert tree.largest_difference(actual, expected) < 1e-6
    assert not grad(objective)(params, x, y)["w"].requires_grad
    assert tree.largest_difference(grad(lambda a: torch.ones(()))(x), torch.zeros(5, 3)) == 0


def test_gradients_inside_gradients():
    def cube(a: Tensor) -> Tensor:
        return a**3

    a = torch.tensor(2.0)
    assert float(grad(grad(cube))(a)) == 12.0
    assert torch.func.vmap(grad(cube))(torch.tensor([1.0, 2.0])).tolist() == [3.0, 12.0]
    second = torch.func.vmap(grad(lambda b: grad(cube)(b).sum()))
    assert second(torch.tensor([1.0, 2.0])).tolist() == [6.0, 12.0]


@pytest.mark.parametrize("known", [True, False])
def test_gradients_inside_vmap_are_those_of_torch_func(request, known):
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
def test_losses_know_their_gradients(name):
    loss, draw = losses[name](), torch.Generator().manual_seed(0)
    width = 1 if loss.goal == "binary" else 4
    scores = 5 * torch.randn(9, width, dtype=torch.float64, generator=draw)
    y = torch.randint(2, (9,) if loss.goal != "number" else (9, 4), generator=draw)
    y = loss.labels(y, torch.float64)
    expected = torch.func.grad(lambda z: loss.rows(z, y).sum())(scores)
    for gradients in (loss.gradients(scores, y), Loss.gradients(loss, scores, y)):
        assert gradients.shape == scores.shape
        assert float((gradients - expected).abs().max()) < 1e-12


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
def test_cross_entropy_and_its_gradients_are_torch_s(classes, size):
    draw = torch.Generator().manual_seed(classes)
    scores = size * torch.randn(50, classes, dtype=torch.float64, generator=draw)
    labels = torch.randint(classes, (50,), generator=draw)
    expected = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    loss = CrossEntropy()
    torch.testing.assert_close(loss.rows(scores, labels), expected, rtol=1e-12, atol=1e-12)
    in_single = loss.rows(scores.float(), labels)
    torch.testing.assert_close(in_single, expected.float(), rtol=1e-5, atol=1e-5)
    gradients = torch.func.grad(lambda z: loss.rows(z, labels).sum())(scores)
    fresh = scores.clone().requires_grad_()
    torch.nn.functional.cross_entropy(fresh, labels, reduction="sum").backward()
    for found in (gradients, loss.gradients(scores, labels)):
        torch.testing.assert_close(found, fresh.grad, rtol=1e-12, atol=1e-12)


def test_cross_entropy_of_huge_scores_is_finite():
    assert torch.isfinite(CrossEntropy().rows(torch.tensor([[1e30, -1e30]]), torch.tensor([1])))
