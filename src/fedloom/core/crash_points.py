"""Named points at which a process can be told to die, as if its machine had: for tests of what
survives it.

    FEDLOOM_CRASH="before hub-embedding:3"      the third time it gets there, SIGKILL

Without the variable nothing happens.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

_been: Counter[str] = Counter()


def crash(point: str) -> None:
    """Here, if this is the point, and this the time."""
    planned, _, times = os.environ.get("FEDLOOM_CRASH", "").rpartition(":")
    if point == planned:
        _been[point] += 1
        if _been[point] == int(times):
            os.kill(os.getpid(), signal.SIGKILL)
