"""The executor `native`: means of clients' work on a CPU, as compiled C. sums.py looks programs up,
emit.py writes the C of a traced graph, program.py compiles and runs it (docs/executors.md).

May import: core, models, fabric, the executor's interface, tracing.
"""

from __future__ import annotations

from ..described import MeanRequest, Sums
from ..executor import Executor, Options
from .sums import Programs


class Native(Executor):
    """Functions in C, made for the work and built once, on a CPU.

    Means only; other work is declined.
    """

    name = "native"

    def __init__(self, options: Options):
        super().__init__(options)
        self.programs = Programs(options.limits)

    def sums(self, mean: MeanRequest) -> Sums | None:
        return self.programs.sums(mean)
