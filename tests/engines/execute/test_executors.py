"""Executors are asked in turn, chosen by name, and none changes the result."""

import pytest
import torch

from fedloom import TDCD, Run, Task, mlp, partition
from fedloom.core.errors import SettingError
from fedloom.core.registry import executors
from fedloom.engines.execute.choose import choose
from fedloom.engines.execute.executor import Executor, Executors, Options, Work

CPU = Options(torch.device("cpu"))


def work(value):
    return Work("work", lambda a: a, [value])


class Refuses(Executor):
    name = "refuses"

    def __init__(self):
        super().__init__(CPU)
        self.asked, self.rounds = [], 0

    def begin(self):
        self.rounds += 1

    def run(self, work):
        self.asked.append(work.key)

    def sums(self, mean):
        self.asked.append(mean)


class Doubles(Refuses):
    name = "doubles"

    def run(self, work):
        super().run(work)
        return 2 * work.plainly()


def test_the_first_that_can_does_it():
    refuses, doubles = Refuses(), Doubles()
    chain = Executors([refuses, doubles])
    assert chain.run(work(3)) == 6
    assert refuses.asked == doubles.asked == ["work"]
    assert chain.sums("a mean") is None
    assert refuses.asked == ["work", "a mean"]
    chain.begin()
    assert refuses.rounds == doubles.rounds == 1
    assert chain["doubles"] is doubles
    assert str(chain) == "refuses, then doubles"
    assert Executors([refuses]).run(work(3)) == 3, "what nobody does is called"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ["traced", "plain"]),
        ({"compile": True}, ["native", "traced", "plain"]),
        ({"compile": True, "by_size": False}, ["traced", "plain"]),
        ({"name": "plain"}, ["plain"]),
        ({"name": "traced"}, ["traced", "plain"]),
        ({"name": "compiled"}, ["compiled", "plain"]),
        ({"name": "native"}, ["native", "traced", "plain"]),
    ],
    ids=str,
)
def test_which_are_asked(given, names):
    assert [executor.name for executor in choose(CPU, **given)] == names


def test_on_a_gpu_compile_is_torchs():
    assert str(choose(Options(torch.device("cuda")), compile=True)) == "compiled, then plain"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "tracd"}, "unknown executor 'tracd'; did you mean 'traced'"),
        ({"name": "plain", "compile": True}, "executor 'plain' and compile: give one of them"),
        ({"name": "native", "by_size": False}, "executor native: it is for a CPU"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_for(given, says):
    with pytest.raises(SettingError, match=says):
        choose(CPU, **given)


class Counts(Executor):
    """What another package would register."""

    name = "counts"
    works = 0

    def run(self, work):
        Counts.works += 1


@pytest.fixture
def counts(monkeypatch):
    monkeypatch.setattr(executors, "_known", {**executors._known, "counts": Counts})
    monkeypatch.setattr(Counts, "works", 0)


@pytest.mark.usefixtures("counts")
def test_a_run_is_the_reference_whatever_executes_it():
    draw = torch.Generator().manual_seed(0)
    x = {silo: torch.randn(60, 4, generator=draw) for silo in ("a", "b")}
    rows = partition(x, torch.randint(3, (60,), generator=draw), {"a": 3, "b": 4})
    task = Task(dict.fromkeys(x, mlp(4, [5], 3)), "cross-entropy")

    def learnt(**options):
        rule = TDCD(local_steps=3, lr=0.1, batch=20)
        return Run(rule, task, rows, precision="float64", **options).fit(4).predict()

    right = learnt(engine="reference")
    for name in ("plain", "traced", "compiled", "counts"):
        assert float((learnt(executor=name) - right).abs().max()) < 1e-12
    assert Counts.works
