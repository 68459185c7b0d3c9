"""Recorded steps reuse tensors: results that were handed out never change."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import TDCD, Run, Task, mlp, partition
from fedloom.engines.execute.compiled import compiler
from fedloom.engines.execute.compiled.cuda_graphs import RecordedStep, recorder

MOST = 128
LIKE = [torch.empty(2, 3).T, torch.empty(3)]  # one of them in another order


def results(a, b, x):
    return a * 0.5 + x.sum(), b - x.mean()


def step(given, into):
    for weights, result in zip(into, results(*given), strict=True):
        weights.copy_(result)


class Calls:
    """A recorder that remembers the call, as if the tensors of a recording were fixed."""

    def __init__(self):
        self.made = self.played = 0

    def __call__(self, call):
        self.made += 1

        def play():
            self.played += 1
            call()

        return play


def start(number):
    draw = torch.Generator().manual_seed(number)
    return [torch.randn(a.shape, generator=draw) for a in LIKE]


ACTIONS = ["go on", "start", "hold", "hold a view", "let go", "swap"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(1, 3)), max_size=25))
def test_what_is_held_never_changes(actions):
    calls = Calls()
    fast = RecordedStep(step, LIKE, calls, MOST)
    weights, theirs, kept_results = start(0), start(0), []
    for number, (action, rows) in enumerate(actions):
        if action == "start":
            weights, theirs = start(number), start(number)
        elif action == "hold":
            kept_results.append(([*weights], [a.clone() for a in theirs]))
        elif action == "hold a view":
            kept_results.append(([a[1:] for a in weights], [a[1:].clone() for a in theirs]))
        elif action == "let go" and kept_results:
            kept_results.pop(0)
        elif action == "swap" and kept_results:  # go on from what was held, if it is whole
            known, copy = kept_results[-1]
            if known[0].shape == LIKE[0].shape:
                weights, theirs = known, copy
        x = torch.full((rows,), float(number))
        weights, theirs = fast(*weights, x), list(results(*theirs, x))
        for actual, expected in [(weights, theirs), *kept_results]:
            assert all(map(torch.equal, actual, expected))
    assert calls.made <= 6


def test_steps_in_a_row_are_played_in_place():
    """Two recordings for each number of rows, whatever the start. Only the start is copied, and the
    results of a step of a new size."""
    calls, copied = Calls(), []
    fast = RecordedStep(step, LIKE, calls, MOST)
    placed = fast._placed
    fast._placed = lambda tensors, *start_from: placed(
        [copied.append(a) or a if a.shape == (3, 2) and _outside(fast, a) else a for a in tensors],
        *start_from,
    )
    for number in range(4):
        weights = start(number)
        for rows in (2, 2, 2, 2, 4, 4, 4):
            weights = fast(*weights, torch.ones(rows))
        del weights
    assert calls.made == 4
    assert calls.played == 4 * 7 - 2
    assert len(copied) == 2 + 3


def _outside(fast, a):
    return all(a.data_ptr() != b.data_ptr() for weights in fast._sets for b in weights)


def test_rows_that_look_like_a_result_are_rows():
    """Three rows have the shape of the second result, one or two do not; they share memory."""

    def rows_first(given, into):
        step((*given[1:], given[0]), into)

    fast, weights, theirs = RecordedStep(rows_first, LIKE, Calls(), MOST), start(0), start(0)
    for number, rows in enumerate((3, 3, 3, 1, 1, 1, 2, 2, 3, 5, 5, 4, 4, 5)):
        x = torch.full((rows,), float(number))
        weights, theirs = fast(x, *weights), results(*theirs, x)
        assert all(map(torch.equal, weights, theirs))
    assert fast._memory[0].numel() == 5
    assert fast._inputs[0, torch.Size([4])].data_ptr() == fast._memory[0].data_ptr()


def test_a_recording_is_made_and_played_on_the_gpu_of_its_tensors(monkeypatch):
    """Fake GPUs: work on a GPU that is not the current one would not be recorded."""
    now, seen = [0], []

    @contextmanager
    def device(which):
        before, now[0] = now[0], which.index
        yield
        now[0] = before

    class Graph:
        def capture_begin(self, pool, capture_error_mode):
            seen.append(("begin", now[0]))

        def capture_end(self):
            seen.append(("end", now[0]))

        def replay(self):
            seen.append(("replay", now[0]))

    stream = SimpleNamespace(wait_stream=lambda other: None)
    made_up = {
        "device": device, "CUDAGraph": Graph, "Stream": lambda: stream, "stream": nullcontext,
        "current_stream": lambda: stream, "graph_pool_handle": lambda: (0, now[0]),
    }  # fmt: skip
    for name, value in made_up.items():
        monkeypatch.setattr(torch.cuda, name, value)
    first, second = (SimpleNamespace(device=torch.device("cuda", i)) for i in range(2))
    record = recorder([second, second])
    record(lambda: seen.append(("call", now[0])))()
    assert seen == [("begin", 1), ("call", 1), ("end", 1), ("replay", 1)]
    assert now == [0]
    assert recorder([first, second]) is None
    assert recorder([torch.ones(1)]) is None


def test_there_are_so_many_recordings_and_no_more():
    calls = Calls()
    fast, weights, theirs = RecordedStep(step, LIKE, calls, 3), start(0), start(0)
    for rows in (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3):
        weights, theirs = fast(*weights, torch.ones(rows)), results(*theirs, torch.ones(rows))
        assert all(map(torch.equal, weights, theirs))
    assert calls.made == 3


def test_what_cannot_be_recorded_is_started_as_before(caplog):
    def cannot(call):
        raise RuntimeError("operation not permitted\nand more lines")

    fast, weights, theirs = RecordedStep(step, LIKE, cannot, MOST), start(0), start(0)
    for _ in range(5):
        weights, theirs = fast(*weights, torch.ones(2)), results(*theirs, torch.ones(2))
        assert all(map(torch.equal, weights, theirs))
    (line,) = [line.getMessage() for line in caplog.records]
    assert line == "a compiled step is launched kernel by kernel: operation not permitted"


def test_rounds_are_played(monkeypatch):
    """Traced, with results written into given tensors."""
    calls = Calls()
    monkeypatch.setattr(compiler, "recorder", lambda tensors: calls)
    monkeypatch.setattr(compiler, "_by_inductor", lambda graph, fake: graph)
    draw = torch.Generator().manual_seed(0)
    x = {silo: torch.randn(200, 4, generator=draw) for silo in ("a", "b")}
    rows = partition(x, torch.randint(3, (200,), generator=draw), {"a": 4, "b": 4})
    task = Task({"a": mlp(4, [5], 3), "b": mlp(4, [5], 3)}, "cross-entropy")
    plain, fast = (
        Run(
            TDCD(local_steps=5, lr=0.1, batch=60),
            task,
            rows,
            seed=1,
            precision="float64",
            chunk=2,
            executor=executor,
        )
        for executor in (None, "compiled")
    )
    plain.fit(20)
    fast.fit(20)
    assert float((plain.predict() - fast.predict()).abs().max()) <= 1e-12
    assert calls.made > 2
    assert calls.played > 0.5 * 20 * 4 * 5
