"""Work called as it is, for all clients of a chunk at once: what every other executor must give.

few_rows.py is a shorter way for the local steps of clients with fewer rows than columns. May
import: core, models, the executor's interface.
"""

from __future__ import annotations

from typing import Any

from ..executor import Executor, Work


class Plain(Executor):
    """A call, as torch runs it."""

    name = "plain"

    def run(self, work: Work) -> Any:
        return work.plainly()
