"""Means of clients' work on a CPU, compiled as C, client by client.

sums.py asks for a program and plays it; program.py builds and runs it, emit.py writes the C of a
traced graph. docs/speed.md says what is compiled, where and with which flags.
"""

from __future__ import annotations

from ..described import Mean, Sums
from ..executor import Executor, Options
from .sums import Programs


class Native(Executor):
    """Functions in C, made for the work and built once, on a CPU.

    Means only; what is no mean, another executor runs.
    """

    name = "native"

    def __init__(self, options: Options):
        super().__init__(options)
        self.programs = Programs(options.limits)

    def sums(self, mean: Mean) -> Sums | None:
        return self.programs.sums(mean)
