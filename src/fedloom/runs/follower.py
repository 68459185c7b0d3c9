"""A job at a rank that is not the first: it computes the same, and writes nothing."""

from __future__ import annotations

from ..records.predictions import Predictions
from .job import Job, JobRun
from .parts import all_parts
from .pooled.baseline import Pooled
from .run import Run


class Follower(Job):
    """The first rank has checked and prepared the folder when these meet it."""

    def go(self) -> dict[str, Run | Pooled]:
        data = self._data()
        parts = all_parts(self.file, data, self.ranks).runs
        self._meet()
        with self._interruptible():
            for number, (name, run) in enumerate(parts.items()):
                part = Silent(self, name, run, self.folder_of(name, number == 0), [])
                part.restore()
                part.train()
                part.finish(False)
        return {**parts}


class Silent(JobRun):
    """A part that takes part in everything, and keeps it to itself."""

    def _rewrite(self) -> None:
        pass

    def _record(self) -> None:
        self.run.add_record(self.job.file.evaluation.rows)

    def _judge(self, found: Predictions, replaced: bool) -> None:
        pass

    def _save(self) -> None:
        self.run.snapshot()
        self.saved = self.run.round

    def _ledger(self) -> None:
        pass
