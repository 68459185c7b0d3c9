"""Functions compiled for clients' rows give torch's results: single functions and random
compositions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core import tree
from fedloom.engines.execute.native import sums as compiled_sums
from fedloom.engines.execute.native.decompose import decomposed
from fedloom.engines.execute.native.emit import Emitter, better_turned
from fedloom.engines.execute.native.program import ClientRows, Program
from fedloom.engines.execute.tracing.trace import traced
from fedloom.engines.limits import DEFAULT
from tests.engines.execute.native.test_native import pytestmark  # noqa: F401  (skips where there is no compiler)

STEPS = [
    lambda a, b: torch.tanh(a),
    lambda a, b: torch.relu(a) + 1,
    lambda a, b: torch.sigmoid(a) * b,
    lambda a, b: torch.exp(-a.abs()),
    lambda a, b: torch.log1p(a * a) / (2 + torch.cos(b)),
    lambda a, b: torch.where(a > b, a, -b),
    lambda a, b: torch.maximum(a, b).clamp(max=1.5),
    lambda a, b: a - b.mean(-1, keepdim=True),
    lambda a, b: a / (1 + b.abs().amax(-1, keepdim=True)),
    lambda a, b: (a.unsqueeze(1) * b.unsqueeze(2)).sum(1),
    lambda a, b: a.unflatten(0, (-1, 1)).transpose(1, 2).flatten(1) - b,
    lambda a, b: torch.cat([a, b], 1)[:, 1 : 1 + a.shape[1]],
    lambda a, b: F.pad(a, (1, 0))[:, :-1] + b[:, :1],
    lambda a, b: a.log_softmax(-1),
    lambda a, b: torch.where(torch.arange(a.shape[1]) == (b > 0).sum(-1, keepdim=True), a, 0.0),
]


FUNCTIONS = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "neg": lambda a: -a,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "expm1": torch.expm1,
    "erf": torch.erf,
    "rsqrt": lambda a: torch.rsqrt(a.abs() + 1),
    "reciprocal": torch.reciprocal,
    "square": lambda a: a**2,
    "cube": lambda a: a**3,
    "root": lambda a: a.abs() ** 0.5,
    "power": lambda a: a.abs() ** 1.5,
    "by itself": lambda a: (a.abs() + 1) ** a,
    "clamp": lambda a: a.clamp(-0.5, 0.5),
    "clamp min": lambda a: a.clamp(min=0.5),
    "maximum": lambda a: torch.maximum(a, -a),
    "minimum": lambda a: torch.minimum(a, -a),
    "maximum of a number": lambda a: torch.maximum(a, torch.full_like(a, 0.3)),
    "minimum of a number": lambda a: torch.minimum(a, torch.full_like(a, 0.3)),
    "largest": lambda a: a.amax(-1, keepdim=True).expand(a.shape),
    "smallest": lambda a: a.amin(-1),
    "largest of a few": lambda a: a[:, :2].amax(1),
    "all": lambda a: (a > -1).all(-1).double(),
    "any": lambda a: (a > 1).any(-1).double(),
    "compared": lambda a: (a >= 0.5).double() - 2 * (a < 0.1).double() + 4 * (a == a).double(),
    "logic": lambda a: ((a > 0).logical_and(a < 1) | (a < -1).logical_not()).double(),
    "where": lambda a: torch.where(a > 0, a, a * 2),
    "padded": lambda a: F.pad(a, (1, 2), value=3.0),
    "cut": lambda a: F.pad(a, (-1, -2)),
    "moved": lambda a: F.pad(a, (2, -3), value=3.0),
    "beside": lambda a: torch.cat([a[:, 1:], a, a[:, :1]], 1),
    "divided": lambda a: a / (2 - a),
    "less some": lambda a: torch.sub(a, a * a, alpha=3),
}


def compiled(work, tensors, layouts, varies):
    """A program of work. `varies`: whether each axis of each tensor is along rows."""
    given, form = tree.apart(tuple(tensors))

    def written(graph, fake):
        plain = decomposed(graph, fake).graph
        return Program(Emitter(plain, better_turned(plain)), layouts, False, DEFAULT)

    return traced(work, given, form, varies, written)[0]


BAD = [float("nan"), float("inf"), -float("inf"), -0.0, 1e308, -1e-308]


@pytest.mark.parametrize("values", ["numbers", "numbers that are none"])
def test_functions(values):
    """Every function, on finite numbers, infinities and NaN, column by column."""

    def work(x):
        return [f(x).sum(0) for f in FUNCTIONS.values()]

    like = torch.zeros(compiled_sums.TRACED_ROWS, 6, dtype=torch.float64)
    run = compiled(work, [like], ["rows"], [True, False])
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if values != "numbers":
        x = x.where(torch.eye(5, 6) == 0, torch.tensor(BAD, dtype=torch.float64))
        x[4, 5] = BAD[5]
    one = ClientRows(np.array([0]), np.array([5]), np.array([0]), np.array([1.0]))
    for name, results, expected in zip(FUNCTIONS, run(one, [x], 1).results, work(x), strict=True):
        assert torch.allclose(results[0], expected, rtol=1e-12, atol=1e-12, equal_nan=True), name


def step(values, number):
    """One more value, computed from two earlier ones."""
    number, first = divmod(number, len(values))
    number, second = divmod(number, len(values))
    return STEPS[number % len(STEPS)](values[first], values[second])


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_random_functions(data):
    """For clients with few rows, one, or none, and different weights."""
    wide, narrow = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 4))
    count = data.draw(st.integers(1, 7))
    plan = data.draw(st.lists(st.integers(0, 10**5), min_size=count, max_size=count))

    def work(x, w, v):
        values = [x @ w.T, torch.sin(x @ w.T) + v]
        for number in plan:
            values.append(step(values, number))
        total = values[-1] + values[len(values) // 2]
        loss = (total * total).sum()
        plain = [w, w.T, v[:1].expand(2, 3), torch.full((2,), 3.0, dtype=w.dtype)]
        return [total.sum(0), total.T @ x, loss, w * 2, (total @ w).amax(-1).sum(), *plain]

    draw = torch.Generator().manual_seed(sum(plan))
    sizes = [data.draw(st.integers(0, 9)) for _ in range(3)]
    w, v = (torch.randn(*s, generator=draw, dtype=torch.float64) for s in ((wide, narrow), (wide,)))
    x = torch.randn(sum(sizes), narrow, generator=draw, dtype=torch.float64)
    given = x.new_zeros(compiled_sums.TRACED_ROWS, narrow), w, v
    program_of_work = compiled(
        work, given, ["rows", "same", "same"], [True, False, False, False, False]
    )
    starts = torch.tensor([0, *sizes]).cumsum(0)[:-1].numpy()
    every = ClientRows(
        starts,
        torch.tensor(sizes).numpy(),
        torch.zeros(3, dtype=torch.int64).numpy(),
        torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64).numpy(),
    )
    results = program_of_work(every, [x, w, v], 1)
    expected = [0.0] * len(results.results)
    for own_result, times in zip(x.split(sizes), (1.0, 2.0, 0.5), strict=True):
        expected = [a + times * b for a, b in zip(expected, work(own_result, w, v), strict=True)]
    for own_result, theirs in zip(results.results, expected, strict=True):
        assert torch.allclose(own_result[0], theirs, rtol=1e-11, atol=1e-11)
