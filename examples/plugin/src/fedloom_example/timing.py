"""An executor: what runs clients' local work in the fast engine."""

from __future__ import annotations

import logging
import time
from typing import Any

from fedloom.extend import Executor, Options, Work, executors

log = logging.getLogger("fedloom")


@executors.register("timing")
class Timing(Executor):
    """Calls work as it is, and logs how long clients worked in each round."""

    name = "timing"

    def __init__(self, options: Options):
        super().__init__(options)
        self._seconds = 0.0

    def begin(self) -> None:
        log.info("clients worked for %.3f s", self._seconds)
        self._seconds = 0.0

    def run(self, work: Work) -> Any:
        began = time.perf_counter()
        result = work.plainly()
        self._seconds += time.perf_counter() - began
        return result
