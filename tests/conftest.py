import sys

import pytest
import torch
from hypothesis import settings

settings.register_profile("here", deadline=None)  # a busy machine is no failure
settings.load_profile("here")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


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
