"""Named points at which tests can kill a process, to see what survives.

    FEDLOOM_CRASH="before hub-embedding:3"      SIGKILL when the point is reached the third time

Without the variable nothing happens.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

_reached: Counter[str] = Counter()


def crash(point: str) -> None:
    """Kill this process if the variable names this point, and it is reached that often."""
    planned, _, times = os.environ.get("FEDLOOM_CRASH", "").rpartition(":")
    if point == planned:
        _reached[point] += 1
        if _reached[point] == int(times):
            os.kill(os.getpid(), signal.SIGKILL)
