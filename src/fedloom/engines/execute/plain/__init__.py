"""The executor `plain`: calls work as it is, for all clients of a chunk at once. few_rows.py has a
faster way for the local steps of clients with fewer rows than columns.

May import: core, models, the executor's interface.
"""

from __future__ import annotations

from typing import Any

from ..executor import Executor, Options, Work
from .few_rows import FewRows


class Plain(Executor):
    """A call, as torch runs it."""

    name = "plain"

    def __init__(self, options: Options):
        super().__init__(options)
        self.steps = FewRows(options.limits)

    def run(self, work: Work) -> Any:
        return work.plainly()
