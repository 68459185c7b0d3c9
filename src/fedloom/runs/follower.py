"""A job at a rank that is not the first: it computes the same, and writes nothing."""

from __future__ import annotations

from .build import build_parts
from .job import Job, JobRun
from .run import Run


class Follower(Job):
    """The first rank has checked and prepared the folder when these meet it."""

    def go(self) -> dict[str, Run]:
        data = self._data()
        parts = build_parts(self.file, data, self.ranks)
        self._meet()
        with self._interruptible():
            for number, (name, run) in enumerate(parts.items()):
                part = Silent(self, name, run, self.folder_of(name, number == 0), [])
                part.restore()
                part.train()
        return parts


class Silent(JobRun):
    """A part that takes part in everything, and keeps it to itself."""

    def _rewrite(self) -> None:
        pass

    def _record(self) -> None:
        self.run.add_record(self.job.file.evaluation.rows)

    def _save(self) -> None:
        self.run.snapshot()
        self.saved = self.run.round

    def _ledger(self) -> None:
        pass
