"""Chunks and threads do not change what the stacked engine computes."""

import numpy as np
import pytest
import torch

from fedloom import TDCD, Run, Task, cnn, linear, lstm, mlp, partition
from fedloom.core import tree
from fedloom.engines.execute.workers import ahead
from fedloom.engines.limits import DEFAULT, Limits
from fedloom.engines.stacked import plan, sizing
from fedloom.engines.stacked.sizing import ChunkSizing


def federation(shape, classes=0, rows=60, clients=(4, 7)):
    draw = torch.Generator().manual_seed(0)
    x = {f"s{j}": torch.randn(rows, *shape, generator=draw) for j in range(len(clients))}
    y = torch.randint(classes, (rows,), generator=draw) if classes else torch.randn(rows)
    return partition(x, y, {f"s{j}": k for j, k in enumerate(clients)})


def learnt(run, rounds):
    return run.fed.read(run.fit(rounds).state.theta)


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
    task = Task({"s0": mlp(5, [6], 3), "s1": mlp(5, [4], 3)}, "cross-entropy")
    slow = Run(rule, task, data, engine="reference", precision="float64")
    limits = Limits(chunk=budget, padding=spare, light_row=0, light_model=0, traced_seconds=0.0)
    fast = Run(rule, task, data, precision="float64", limits=limits)
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


def test_a_gpu_sees_few_different_numbers_of_rows():
    sizes = {rows: sizing.rounded_up(rows) for rows in range(2000)}
    assert all(rows <= size <= rows + max(1, rows // 16) for rows, size in sizes.items())
    assert sizes[0] == 0
    assert len({size for rows, size in sizes.items() if 1024 < size <= 2048}) <= 16
