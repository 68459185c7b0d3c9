"""Executors are asked in turn, chosen by name, and none changes the result."""

import importlib.util
import sys

import pytest
import torch

from fedloom import TDCD, Run, Task, mlp, partition
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.registry import executors
from fedloom.engines.execute.choose import choose
from fedloom.engines.execute.executor import Executor, Executors, Options, Work
from fedloom.engines.layers.gpu import convolutions
from fedloom.engines.limits import Limits

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


# Parts of torch that are private may be missing in another version of it.

PRIVATE = "fedloom.engines.execute.tracing.trace", "fedloom.engines.execute.native.decompose"


@pytest.mark.parametrize("missing", PRIVATE)
@pytest.mark.parametrize("name", ["traced", "native"])
def test_what_private_parts_of_torch_are_needed_for_runs_without_them(
    missing, name, monkeypatch, caplog
):
    """The modules that import such parts cannot be imported. Work runs as it is, and says so."""
    data = partition(
        {"a": torch.ones(8, 3), "b": torch.ones(8, 2)}, torch.ones(8), {"a": 2, "b": 2}
    )
    task = Task({"a": mlp(3, [4], 1), "b": mlp(2, [4], 1)}, "squared")
    algorithm = TDCD(batch=6, local_steps=2)
    slow = Run(algorithm, task, data, engine="reference", precision="float64").fit(3)
    monkeypatch.setitem(sys.modules, missing, None)
    limits = Limits(traced_seconds=0.0)
    options = {"precision": "float64", "executor": name, "replay": 1, "limits": limits}
    with caplog.at_level("INFO", logger="fedloom"):
        fast = Run(algorithm, task, data, **options).fit(3)
    blocks = [run.algorithm.blocks(run.fed, run.state) for run in (fast, slow)]
    assert tree.largest_difference(*blocks) < 1e-12
    needs_it = missing == PRIVATE[0] or name == "native"
    assert ("import of" in caplog.text) == needs_it, caplog.text


def test_convolutions_stay_torchs_own_without_its_private_modes(monkeypatch):
    """A second copy of the module, made where the part is missing."""
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", None)
    spec = importlib.util.spec_from_file_location(
        "fedloom.engines.layers.gpu.copied", convolutions.__file__
    )
    copied = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, copied)
    spec.loader.exec_module(copied)
    x, weight = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3)
    with copied.Convolutions():
        assert torch.equal(torch.conv2d(x, weight), torch.full((1, 1, 2, 2), 9.0))
