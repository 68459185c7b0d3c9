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
