"""A pooled baseline as a part of a job: trained in one go, in a folder beside the run's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.errors import InterruptedRun
from ...core.files import SHARED, make_folder
from ...records.record import read_records, write_records
from .baseline import Pooled
from .network import most_epochs

if TYPE_CHECKING:
    from ..job import Job


def train_pooled(job: Job, name: str, baseline: Pooled) -> None:
    """Train it; where that was done before, its record is there. A stop begins it again."""
    folder = job.folder_of(name, False)
    path = folder / "records.jsonl"
    if path.is_file():
        baseline.records = read_records(path)
        return
    has_epochs = baseline.name == "best-pooled"

    def after(done: int) -> None:
        job.watcher.round(done)
        if job.is_asked_to_stop and has_epochs:
            raise InterruptedRun(
                f"stopped after {done} epochs of {name}; go on with "
                f"fedloom run --resume {job.folder}"
            )

    make_folder(folder, SHARED)
    job.watcher.part(name, most_epochs() if has_epochs else 1, 0, baseline.headline)
    try:
        baseline.fit(after)
        if (found := baseline.predictions()) is not None:
            found.save(folder)
        write_records(path, baseline.records)
        job.watcher.record(baseline.records[-1])
    finally:
        job.watcher.end()
