"""Your own code at every round, at every record and at the end of `Run.fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.record import Record

if TYPE_CHECKING:
    from .run import Run


class Stop(Exception):
    """Raise it in a callback: training ends after this round, as if it had been the last. `why` is
    in `run.halted`."""

    def __init__(self, why: str = ""):
        super().__init__(why)


class Callback:
    """Derive from it, and write what you need. It may look at the run, and raise `Stop`; where it
    changes the run, a resumed run is another one."""

    def on_round(self, run: Run) -> None:
        """A round is done, and its record (if there is one) is kept."""

    def on_record(self, run: Run, record: Record) -> None:
        """The model was evaluated."""

    def on_end(self, run: Run) -> None:
        """`fit` is over; not after an error."""
