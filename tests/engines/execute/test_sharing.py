"""What a function leaves to the next: the same bits, and only of the same tensors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import TDCD, Run, Task, mlp, partition
from fedloom.core import tree
from fedloom.engines.execute import replay
from fedloom.engines.execute.replay import Player
from fedloom.engines.execute.sharing import shared
from fedloom.engines.execute.simplify import compiled
from fedloom.engines.execute.tracing import traced

SIZE = 4
OPS = {
    "times": lambda a, b: a @ b,
    "plus": lambda a, b: a + b,
    "less": lambda a, b: a - 0.5 * b,
    "relu": lambda a, b: a.relu(),
    "turned": lambda a, b: a.transpose(0, 1),
    "row": lambda a, b: a[:1] + b,
}
STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 9), st.integers(0, 9)), max_size=6
)


@pytest.fixture(autouse=True)
def traced_at_once(monkeypatch):
    monkeypatch.setattr(replay, "WORTH", 0.0)


def program(steps):
    def run(*args):
        values = list(args)
        for name, i, j in steps:
            values.append(OPS[name](values[i % len(values)], values[j % len(values)]))
        return [values[-1] * 1.5, values[-1] @ args[0]]

    return run


def graph_of(f, tensors):
    form = tree.apart(tuple(tensors))[1]
    return traced(f, tensors, form, [False] * sum(a.ndim for a in tensors)).graph


@settings(max_examples=60, deadline=None)
@given(alike=STEPS, first=STEPS, second=STEPS, seed=st.integers(0, 100))
def test_two_programs_that_begin_alike(alike, first, second, seed):
    """The second has an argument more, in front."""
    draw = torch.Generator().manual_seed(seed)
    a, b, c = (torch.randn(SIZE, SIZE, generator=draw, dtype=torch.float64) for _ in range(3))

    def begun(steps, *args):
        common = program([*alike, ("times", -1, 0)])(*args)[0]  # a product, whatever comes before
        return [*program(steps)(*args, common), common + 1]

    def one(a, b):
        return begun(first, a, b)

    def two(c, a, b):
        return [x + c for x in begun(second, a, b)]

    found = shared(graph_of(one, [a, b]), graph_of(two, [c, a, b]), {1: 0, 2: 1})
    assert found is not None
    giver, taker, own = found
    given_ = compiled(giver)(a, b)
    assert all(map(torch.equal, given_[:own], one(a, b)))
    before = [x.clone() for x in given_]
    results = compiled(taker)(c, a, b, *given_[own:])
    assert all(x.equal(y) for x, y in zip(results, two(c, a, b), strict=True))
    assert all(map(torch.equal, given_, before))


def test_what_has_no_product_is_not_shared():
    a = torch.randn(SIZE, SIZE)
    graph = graph_of(lambda a: [a + 1], [a]), graph_of(lambda a: [(a + 1) * 2], [a])
    assert shared(*graph, {0: 0}) is None


class Pair:
    """Two functions that begin with the same product, and how often it is computed."""

    def __init__(self):
        self.player = Player(1)

    def embed(self, w, x):
        return (x @ w).relu()

    def step(self, w, x, y):
        return w - x.T @ ((x @ w).relu() - y)

    def round(self, w, x, y, x_again=None):
        self.player.begin()
        again = x if x_again is None else x_again
        one = self.player("embed", self.embed, [w, x])
        two = self.player("step", self.step, [w, again, y])
        assert torch.equal(one, self.embed(w, x))
        assert torch.equal(two, self.step(w, again, y))

    @property
    def entries(self):
        return {key[0]: entry for key, entry in self.player._entries.items()}


@pytest.fixture
def pair():
    found = Pair()
    for _ in range(6):
        found.round(torch.randn(3, 2), torch.randn(5, 3), torch.randn(5, 2))
    return found


def test_a_step_takes_what_embedding_left(pair):
    embed, step = pair.entries["embed"], pair.entries["step"]
    assert embed.gives.own == 1
    used, play = [], step.takes.play
    step.takes.play = lambda *args: used.append(len(args)) or play(*args)
    pair.round(torch.randn(3, 2), torch.randn(5, 3), torch.randn(5, 2))
    assert used == [4]
    assert not pair.player._left


def test_nothing_is_taken_that_was_left_of_other_rows_or_rounds(pair):
    step, used = pair.entries["step"], []
    step.takes.play = lambda *args: used.append(1)
    x = torch.randn(5, 3)
    pair.round(torch.randn(3, 2), x, torch.randn(5, 2), x_again=x.clone())
    assert pair.player._left
    pair.player.begin()
    assert not pair.player._left
    assert not used


def test_only_so_much_is_left(pair, monkeypatch):
    monkeypatch.setattr(replay, "LEFT", 10)
    used = []
    pair.entries["step"].takes.play = lambda *args: used.append(1)
    pair.round(torch.randn(3, 2), torch.randn(5, 3), torch.randn(5, 2))
    assert not used


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("batch", [17, 60])
def test_a_run_has_the_same_bits(steps, batch):
    draw = torch.Generator().manual_seed(0)
    x = {name: torch.randn(60, 5, generator=draw) for name in "ab"}
    rows = partition(x, torch.randint(3, (60,), generator=draw), {"a": 4, "b": 7})
    task = Task(dict.fromkeys(x, mlp(5, [6], 3)), "cross-entropy")
    rule = TDCD(local_steps=steps, lr=0.1, batch=batch)
    plain, played = (Run(rule, task, rows, replay=calls).fit(9) for calls in (0, 1))
    found = [run.fed.read(run.state.theta) for run in (plain, played)]
    assert tree.largest_difference(*found) == 0
    assert any(entry.takes for entry in played.fed._player._entries.values())
