"""The executor `traced`: replays work that is called often as a graph of torch's operations.

The same operations give the same bits. May import: the executor's interface, tracing.
"""

from __future__ import annotations

from typing import Any

from ..executor import Executor, Options, Work
from ..tracing.replay import Replayer
from ..workers import autocast


class Traced(Executor):
    """A graph of torch's operations, without those that are not needed.

    Calls work as it is, until that has taken as long as tracing it would.
    """

    name = "traced"

    def __init__(self, options: Options):
        super().__init__(options)
        self.replayer = Replayer(options.replay, worth=options.limits.traced_seconds)

    def begin(self) -> None:
        self.replayer.trace_due()

    def run(self, work: Work) -> Any | None:
        if not self.options.replay or autocast():  # autocast casts again in each call
            return None
        return self.replayer(*work)
