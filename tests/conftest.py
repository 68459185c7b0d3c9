import sys
import time

import pytest
import torch
from hypothesis import settings

settings.register_profile("here", deadline=None)  # a busy machine is no failure
settings.load_profile("here")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def benchmark_ratio():
    """How much longer one thing takes than another, side by side: the best of three each."""

    def measure(first, second):
        best = [float("inf"), float("inf")]
        for _ in range(3):
            for which, work in enumerate((first, second)):
                begun = time.perf_counter()
                work()
                best[which] = min(best[which], time.perf_counter() - begun)
        return best[0] / best[1]

    return measure


@pytest.fixture
def interpreted():
    """How many instructions Python itself goes through for some work, whatever the machine is busy
    with: what is done by arrays takes as many for few numbers as for many."""

    def count(work):
        found = 0

        def trace(frame, event, arg):
            nonlocal found
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            found += event == "opcode"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(before)
        return found

    return count
