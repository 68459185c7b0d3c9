"""Work that is called often, written down once as torch's operations and played from then on.

What records and plays it is in ../tracing. Same operations, same bits.
"""

from __future__ import annotations

from typing import Any

from ..executor import Executor, Options, Work
from ..tracing.player import Player
from ..workers import autocast


class Traced(Executor):
    """A graph of torch's operations, without those that are not needed.

    Calls work as it is, until that has taken as long as tracing it would.
    """

    name = "traced"

    def __init__(self, options: Options):
        super().__init__(options)
        self.player = Player(options.replay, worth=options.limits.traced_seconds)

    def begin(self) -> None:
        self.player.catch_up()

    def run(self, work: Work) -> Any | None:
        if not self.options.replay or autocast():  # which casts anew each time
            return None
        return self.player(*work)
