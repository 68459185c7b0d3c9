"""Clients' work compiled client by client gives the numbers of the reference engine."""

import logging
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import TDCD, Run, Task, linear, mlp, partition
from fedloom.algorithms.fedavg import FedProx
from fedloom.algorithms.shared.protection import SHIELDED
from fedloom.algorithms.shared.tiered import UPDATE
from fedloom.core import tree
from fedloom.core.errors import NotFiniteError, ProtocolError
from fedloom.core.registry import algorithms
from fedloom.engines.execute.native import program
from fedloom.engines.execute.native.arrays import Unsupported
from fedloom.engines.limits import Limits
from fedloom.fabric.schedule import Drawn
from fedloom.models.losses import loss_of
from fedloom.testing import sample_of
from fedloom.testing.samples import examples_of


def has_compiler():
    try:
        return bool(program.compiler())
    except Unsupported:
        return False


pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")


def rows(clients=(9, 14), columns=5, classes=3, size=120, labels=None):
    draw = torch.Generator().manual_seed(0)
    x = {f"s{j}": torch.randn(size, columns, generator=draw) for j in range(len(clients))}
    if labels is None:
        labels = torch.randint(classes, (size,), generator=draw)
    return partition(x, labels, {f"s{j}": k for j, k in enumerate(clients)})


def both(rule, task, data, rounds=5, **options):
    """The compiled run, the reference run, and their difference after some rounds."""
    made = {"precision": "float64", "seed": 3, **options}
    fast = Run(rule, task, data, compile=True, **made).fit(rounds)
    slow = Run(rule, task, data, engine="reference", **made).fit(rounds)
    blocks = [run.algorithm.blocks(run.fed, run.state) for run in (fast, slow)]
    assert list(fast.ledger) == list(slow.ledger)
    return fast, tree.largest_difference(*blocks)


def programs(run):
    return [
        entry for entry in run.fed.executors["native"].programs.known.values() if entry is not None
    ]


class Odd(nn.Module):
    """Layers of many kinds, none of which mixes rows."""

    def __init__(self, width=3):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 7), nn.Linear(7, 6, bias=False), nn.Linear(13, width)
        self.norm = nn.LayerNorm(7)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        h = self.norm(torch.tanh(self.a(x)))
        g = F.gelu(self.b(h)) * self.scale
        both = torch.cat([F.softplus(h), F.leaky_relu(g)], dim=-1)
        return self.c(both.clamp(-2, 3) + (both * both).mean(-1, keepdim=True).sqrt())


def alike(block, loss="cross-entropy", **options):
    return Task({"s0": block, "s1": block}, loss, **options)


TASKS = {
    "mlp": alike(mlp(5, [6], 3)),
    "no hidden layer": alike(linear(5, 3)),
    "two hidden layers": alike(mlp(5, [6, 4], 3)),
    "silos that differ": Task({"s0": mlp(5, [6], 3), "s1": linear(5, 3)}, "cross-entropy"),
    "odd layers": alike(Odd),
    "many classes": alike(mlp(5, [6], 20)),
    "a head": alike(mlp(5, [6], 4), head=mlp(8, [5], 3), combine="concat"),
    "a head of sums": alike(linear(5, 4), head=linear(4, 3)),
}


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_models(task):
    fast, apart = both(TDCD(local_steps=3, lr=0.1, batch=40), task, rows())
    assert apart < 1e-12
    assert programs(fast)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("loss", ["squared", "binary-cross-entropy"])
def test_losses(loss, columns):
    if loss != "squared" and columns > 1:
        pytest.skip("one score a row")
    draw = torch.Generator().manual_seed(1)
    labels = torch.randn(120, *([columns] if columns > 1 else []), generator=draw)
    labels = labels if loss == "squared" else (labels > 0).float()
    fast, apart = both(
        TDCD(local_steps=4, lr=0.1, batch=30),
        alike(mlp(5, [6], columns), loss),
        rows(labels=labels),
    )
    assert apart < 1e-12
    assert programs(fast)


SETTINGS = {
    "plain": {},
    "few rows, many clients without": {"batch": 4},
    "all rows": {"batch": None},
    "l2": {"l2": 0.3},
    "by rows": {"weighting": "rows", "batch": 7},
    "participants": {"weighting": "participants", "batch": 7},
}


@pytest.mark.parametrize("schedule", [None, Drawn(0.6, seed=2)], ids=["all there", "some away"])
@pytest.mark.parametrize("given", SETTINGS.values(), ids=list(SETTINGS))
def test_settings(given, schedule):
    rule = TDCD(**{"local_steps": 3, "lr": 0.2, "batch": 40, **given})
    fast, apart = both(rule, TASKS["mlp"], rows((9, 14)), schedule=schedule)
    assert apart < 1e-12
    assert programs(fast)


@pytest.mark.parametrize("silos", [1, 3])
@pytest.mark.parametrize("count", [1, 40])
def test_numbers_of_silos_and_clients(silos, count):
    task = Task({f"s{j}": mlp(5, [6], 3) for j in range(silos)}, "cross-entropy")
    data = rows((count,) * silos)
    fast, apart = both(TDCD(local_steps=3, lr=0.2, batch=60), task, data)
    assert apart < 1e-12
    assert programs(fast)


CASES = {
    f"{name}-{i}": e for name in algorithms for i, e in enumerate(examples_of(algorithms[name]))
}
COMPILED = {
    *("alone-0", "alone-2", "fedavg-1", "fedbcd-0", "fedbcd-2", "fedbcd-4", "fedbcd-5"),
    *("fedprox-1", "splitnn-0", "splitnn-2", "splitnn-async-0", "splitnn-async-1", "splitnn-u-0"),
    *("tdcd-0", "tdcd-3", "tdcd-6", "vafl-2"),
}  # the others have minibatches of their own for each step, noise, or one step for all rows at once


@pytest.mark.parametrize("case", CASES)
def test_every_algorithm(case):
    """As much of it as can be compiled."""
    task, data = sample_of(CASES[case])
    fast, apart = both(CASES[case], task, data, rounds=3)
    assert apart < 1e-11
    assert bool(programs(fast)) == (case in COMPILED)


def test_fedprox_is_compiled():
    task = Task({"s0": mlp(5, [6], 3)}, "cross-entropy")
    rule = FedProx(local_steps=3, lr=0.2, batch=40, mu=0.3, minibatch="reused")
    fast, apart = both(rule, task, rows((9,)))
    assert apart < 1e-12
    assert programs(fast)


@dataclass(frozen=True)
class EachAtItsPace(TDCD):
    """Local work that asks which silo it is in."""

    def local_sgd(self, part, theta, rest, batch, lr, *noise):
        lr = lr * (1.0 if part.silo == "s0" else 2.0)
        return super().local_sgd(part, theta, rest, batch, lr, *noise)


def test_work_that_asks_for_its_silo():
    """Silos that are alike would share a program and be computed together."""
    fast, apart = both(EachAtItsPace(local_steps=3, lr=0.1, batch=40), TASKS["mlp"], rows())
    assert apart < 1e-12
    assert programs(fast)


REASONS = {
    "a minibatch of its own": TDCD(local_steps=2, batch=20, minibatch="fresh"),
    "noise, say": TDCD(local_steps=2, batch=20, privacy=SHIELDED),
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_work_is_not_compiled_is_said_once(reason, caplog):
    _, apart = both(REASONS[reason], TASKS["mlp"], rows())
    assert apart < 1e-12
    (line,) = warnings_of(caplog)
    assert reason in line


def test_it_is_as_exact_in_single_precision():
    task, data, rule = TASKS["mlp"], rows(), TDCD(local_steps=3, lr=0.1, batch=40)
    exact = Run(rule, task, data, engine="reference", precision="float64", seed=3).fit(20)
    plain, fast = (Run(rule, task, data, seed=3, compile=kind).fit(20) for kind in (False, True))
    assert programs(fast)
    plain, fast, exact = (
        tree.widened(run.algorithm.blocks(run.fed, run.state)) for run in (plain, fast, exact)
    )
    assert tree.largest_difference(plain, exact) < 1e-5
    assert 0 < tree.largest_difference(fast, exact) < 1e-5


THREADS = Limits(thread_operations=0)


def test_bits_do_not_depend_on_threads_or_interruptions():
    task, data, rule = TASKS["mlp"], rows((60, 90), size=400), TDCD(local_steps=3, batch=200)
    made = {"compile": True, "seed": 3, "limits": THREADS}
    before = torch.get_num_threads()
    names = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            straight = Run(rule, task, data, **made).fit(6)
            broken = Run(rule, task, data, **made).fit(3)
            resumed = Run(rule, task, data, **made).restore(broken.snapshot())
            names += [straight.predict(), resumed.fit(6).predict()]
            assert programs(straight)
            assert programs(resumed)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, names[0]) for a in names)


def test_a_compiler_without_threads_makes_a_program_of_one(monkeypatch):
    monkeypatch.setattr(program, "OPENMP", "--no-such-flag")
    fast, apart = both(TDCD(local_steps=3, batch=40), TASKS["mlp"], rows(), limits=THREADS)
    assert apart < 1e-12
    assert programs(fast)


def warnings_of(caplog):
    return [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]


def test_without_a_compiler_it_runs_as_it_is(monkeypatch, caplog):
    monkeypatch.setenv("CC", "/no/such/compiler")
    rule, data = TDCD(local_steps=3, batch=40), rows()
    fast = Run(rule, TASKS["mlp"], data, compile=True, seed=3).fit(4)
    plain = Run(rule, TASKS["mlp"], data, seed=3).fit(4)
    assert torch.allclose(fast.predict(), plain.predict(), rtol=0, atol=1e-6)
    (line,) = warnings_of(caplog)
    assert "is not compiled, and runs as it is: /no/such/compiler" in line


def test_a_compiler_that_refuses_is_believed(monkeypatch, caplog):
    monkeypatch.setattr(program, "FLAGS", ["--no-such-flag"])
    Run(TDCD(local_steps=3, batch=40), TASKS["mlp"], rows(), compile=True).fit(2)
    (line,) = warnings_of(caplog)
    assert "runs as it is" in line


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 2, 2), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x[:, None])).flatten(1))


def test_what_there_is_no_rule_for_runs_as_it_is(caplog):
    _, apart = both(TDCD(local_steps=3, batch=40), alike(Image), rows())
    assert apart < 1e-12
    (line,) = warnings_of(caplog)
    assert "the operation aten.convolution" in line


def test_values_of_rows_have_no_mean(caplog):
    """Also where a hub's value has the shape of one row: refused as without compiling."""
    fed = Run(TDCD(batch=4), TASKS["no hidden layer"], rows((1, 1)), compile=True).fed
    fed.begin(0)
    batch_k, _ = fed.minibatch(torch.arange(4))
    one = fed.place_hubs({silo: torch.zeros(1, 5) for silo in fed.silos})
    with pytest.raises(ProtocolError, match="does not have the shape"):
        fed.mean(UPDATE, fed.at_clients(features, batch_k), otherwise=one)
    (line,) = warnings_of(caplog)
    assert "something for each row" in line


def features(batch):
    return batch.x * 2


def total(batch):
    return batch.x.sum(0)


def few_are_welcome(batch):
    """Below 0 for a client with more than ten rows."""
    return 10.5 - batch.mask.sum()


@pytest.mark.parametrize("compile", [True, False])
def test_who_has_a_weight_below_zero_is_named(compile):
    x = {f"s{j}": torch.ones(40, 5) for j in range(2)}
    data = partition(x, torch.arange(40) % 3, {"s0": [5, 4, 4, 4, 4, 4], "s1": [2, 2, 9, 2, 3, 2]})
    fed = Run(TDCD(batch=4), TASKS["no hidden layer"], data, compile=compile).fed
    fed.begin(0)
    batch_k, _ = fed.minibatch(torch.arange(40))
    zero = fed.place_hubs({silo: torch.zeros(5) for silo in fed.silos})
    given = fed.at_clients(total, batch_k), fed.at_clients(few_are_welcome, batch_k)
    with pytest.raises(ProtocolError, match=r"s1/2: weight -"):
        fed.mean(UPDATE, given[0], otherwise=zero, weight=given[1])
    assert bool(compile and fed.executors["native"].programs.known) is compile


def test_work_that_is_always_another_function_is_not_compiled_for_ever(caplog):
    rule, none = TDCD(local_steps=3, batch=40), Limits(programs=0)
    assert both(rule, TASKS["mlp"], rows(), limits=none)[1] < 1e-12
    (line,) = warnings_of(caplog)
    assert "there are 0 programs already" in line


def test_large_models_run_as_they_are(caplog):
    rule, small = TDCD(local_steps=3, batch=40), Limits(program_model=100)
    assert both(rule, TASKS["mlp"], rows(), limits=small)[1] < 1e-12
    (line,) = warnings_of(caplog)
    assert "too many for its cache (at most 100)" in line


def test_sums_of_many_clients_take_no_more_room():
    assert program._blocks([90, 0, 40], 2) == ([0, 45, 90, 110, 130], [(0, 2), (2, 2), (2, 4)])
    rule, little = TDCD(local_steps=3, batch=100), Limits(program_sums=3000)
    fast, apart = both(rule, TASKS["mlp"], rows((60, 90)), limits=little)
    assert apart < 1e-12
    assert programs(fast)


class Fickle(nn.Module):
    """Does the same for some numbers of rows in another way."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def forward(self, x):
        return self.inner(x) if x.shape[0] < 9 else -self.inner(-x) + 2 * self.inner.bias


class Counts(Fickle):
    def forward(self, x):
        return self.inner(x.reshape(len(x), -1))


def test_rows_that_are_counted_by_the_model(caplog):
    _, apart = both(TDCD(local_steps=3, lr=0.1, batch=60), alike(Counts), rows((5, 9)))
    assert apart < 1e-12
    (line,) = warnings_of(caplog)
    assert "it asks for the number of rows" in line


def test_numbers_of_rows_that_it_does_not_hold_for(caplog):
    _, apart = both(TDCD(local_steps=3, lr=0.1, batch=60), alike(Fickle), rows((5, 9)))
    assert apart < 1e-12
    assert any("for some numbers of rows only" in line for line in warnings_of(caplog))


def test_numbers_that_are_not_finite_are_found():
    run = Run(TDCD(local_steps=3, lr=1e30, batch=40), TASKS["mlp"], rows(), compile=True)
    with pytest.raises(NotFiniteError, match=r"in update from client s0/"):
        run.fit(4)
    assert programs(run)


@pytest.mark.parametrize(
    "loss",
    [
        {"name": "cross-entropy", "class_weights": [1.0, 0.5, 3.0], "label_smoothing": 0.1},
        nn.CrossEntropyLoss(reduction="none", weight=torch.tensor([1.0, 0.5, 3.0])),
    ],
    ids=["registered", "torch's own"],
)
def test_tensors_that_a_loss_holds(loss, caplog):
    """Weights of classes are written into the source; what has no rule is refused by name."""
    registered = isinstance(loss, dict)
    if registered:
        loss = loss_of({**loss, "class_weights": tuple(loss["class_weights"])})
    with caplog.at_level(logging.WARNING):
        fast, difference = both(
            TDCD(local_steps=3, lr=0.1, batch=40), alike(linear(5, 3), loss), rows()
        )
    assert difference < 1e-12
    assert bool(programs(fast)) == registered
    assert ("is not compiled, and runs as it is: the operation" in caplog.text) != registered
