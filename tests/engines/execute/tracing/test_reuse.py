"""Traced work that reuses memory gives the same bits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core import tree
from fedloom.engines.execute.tracing.reuse import INTO, moved
from fedloom.engines.execute.tracing.simplify import DIRECT
from fedloom.engines.execute.tracing.trace import traced

SIZE = 4
OPS = {
    "product": lambda a, b: a @ b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (b * b + 1),
    "neg": lambda a, b: -a,
    "clamp": lambda a, b: a.clamp(min=0.1),
    "step": lambda a, b: torch.addcmul(a, b, b[0, 0], value=-1),
    "where": lambda a, b: torch.where(a[:, :1] > 0, a, b),
    "slope": lambda a, b: torch.ops.aten.threshold_backward(a, b, 0),
    "line": lambda a, b: a + b[:1],
    "turned": lambda a, b: a.transpose(0, 1),
    "same": lambda a, b: a.reshape(-1).reshape(SIZE, SIZE),
}


def is_reused(op):
    return op is moved or any(op is into for into, _, _ in INTO.values())


def play(f, *args):
    tensors, form = tree.apart(args)
    graph, shape, *_ = traced(f, tensors, form, [False] * sum(a.ndim for a in tensors))
    ran = [tree.joined(shape, graph(*tensors)) for _ in range(2)]
    ops = [node.target for node in graph.args[0].graph.nodes]
    return ran, sum(map(is_reused, ops))


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 11), st.integers(0, 11)),
        min_size=1,
        max_size=10,
    ),
    used_later=st.sets(st.integers(0, 11), max_size=3),
    seed=st.integers(0, 100),
)
def test_any_program_gives_the_same_bits_and_leaves_its_arguments_alone(steps, used_later, seed):
    def program(a, b):
        values = [a, b]
        for name, i, j in steps:
            values.append(OPS[name](values[i % len(values)], values[j % len(values)]))
        return [
            values[-1] + 0,
            *(values[k % len(values)] * 1.5 for k in used_later),
            values[-1] @ a,
        ]

    draw = torch.Generator().manual_seed(seed)
    args = [torch.randn(SIZE, SIZE, generator=draw, dtype=torch.float64) for _ in range(2)]
    before = [a.clone() for a in args]
    expected = program(*args)
    ran, _ = play(program, *args)
    for results in ran:
        assert all(
            torch.equal(a.nan_to_num(), b.nan_to_num())
            for a, b in zip(results, expected, strict=True)
        )
    assert all(map(torch.equal, args, before))


def test_a_step_is_written_over_its_slope():
    def step(theta, x, moves, lr):
        gradient = x.transpose(0, 1) @ (x @ theta)
        return torch.where(moves, torch.addcmul(theta, gradient, lr, value=-1), theta)

    draw = torch.Generator().manual_seed(0)
    theta, x = (torch.randn(n, SIZE, generator=draw) for n in (SIZE, 9))
    some = torch.arange(SIZE)[:, None] > 1
    for moves in (torch.tensor(True), torch.tensor(False), some, some | True):
        given = theta, x, moves, torch.tensor(0.1)
        before = [a.clone() for a in given]
        ran, reused = play(step, *given)
        assert all(torch.equal(one, step(*given)) for one in ran)
        assert all(map(torch.equal, given, before))
        assert reused == 2


@pytest.mark.parametrize("idle", [[], [0], [3, 16], list(range(0, 17, 2)), list(range(17))])
def test_clients_that_do_not_move_stay_where_they_are(idle):
    """For any number of moving clients, however the mask is written."""

    def step(theta, bias, x, mask):
        gradient = torch.bmm(x.transpose(1, 2), torch.bmm(x, theta))
        moves = mask.any(1)
        one = torch.where(moves[:, None, None], theta - gradient, theta)
        two = torch.where(mask[:, 1:2], bias - gradient[:, 0], bias)  # by a part of the mask
        return one, two, torch.where(moves[:, None], two - one[:, 0], two)

    draw = torch.Generator().manual_seed(0)
    theta, bias, x = (torch.randn(17, *s, generator=draw) for s in ((2, 3), (3,), (4, 2)))
    mask = torch.rand(17, 4, generator=draw) > 0.1
    mask[idle] = False
    given = theta, bias, x, mask
    before = [a.clone() for a in given]
    ran, reused = play(step, *given)
    for results in ran:
        assert all(map(torch.equal, results, step(*given)))
    assert all(map(torch.equal, given, before))
    assert reused >= 3


def test_what_is_called_directly_is_the_same_operation():
    """Calls torch's functions by their operations' names, with the traced arguments."""
    draw = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(3, 2, 2, generator=draw) for _ in range(3))
    given = {
        "add": (a, b), "sub": (a, 2), "mul": (a, 0.5), "div": (a, b), "neg": (a,),
        "clamp_min": (a, 0.1), "addcmul": (a, b, c), "where": (a > 0, b, c), "bmm": (a, b),
        "mm": (a[0], b[0]), "transpose": (a, 1, 2), "unsqueeze": (a, 1), "permute": (a, [2, 0, 1]),
        "view": (a, [3, 4]), "expand": (a[:1], [3, 2, 2]), "sum": (a, [1], True), "any": (a > 0, 1),
        "index_select": (a, 0, torch.tensor([1, 1])), "exp": (a,), "log": (a.abs(),),
        "relu": (a,), "tanh": (a,), "sigmoid": (a,), "_log_softmax": (a, 1, False),
        "_log_softmax_backward_data": (a, b, 1, torch.float32),
    }  # fmt: skip
    assert set(given) == DIRECT
    for name, args in given.items():
        direct = getattr(torch, name, None) or getattr(torch.Tensor, name)
        assert torch.equal(direct(*args), getattr(torch.ops.aten, name)(*args)), name
    assert torch.equal(a + a, a * 2.0)


def test_what_is_needed_later_is_not_written_over():
    def seen_through_a_view(a, b):
        c = a @ b
        turned = c.transpose(0, 1)
        return c * 2, turned + 0.5

    def given_back(a, b):
        c = a @ b
        return c, c + 1

    def with_itself_turned(a, b):
        c = a @ b
        return c * c.transpose(0, 1)

    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    for f, most in ((seen_through_a_view, 1), (given_back, 0), (with_itself_turned, 0)):
        ran, reused = play(f, a, b)
        expected = tree.tensors(f(a, b))
        assert all(all(map(torch.equal, tree.tensors(one), expected)) for one in ran)
        assert reused <= most, f.__name__
