"""One line of a run's records, and the file of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core.errors import DataError
from ..core.files import SHARED, append_line, write_text
from .metrics import Metrics


@dataclass(frozen=True)
class Record:
    """The run as it stood after `round` rounds.

    `iteration` counts local steps, `time` is the virtual clock's (None without one), `wall` the
    seconds spent on rounds so far, `bytes` what was sent so far by tier. `train_loss` is that of
    the global model on all training rows, `metrics` are of the test rows. Where silos predict on
    their own these are means over silos, and `by_silo` has each. Where clients have models of their
    own, the metric `local_...` is the mean over these. `notes` are the algorithm's own, such as how
    old the embeddings were that an asynchronous one worked with. `privacy`: where embeddings are
    perturbed, in which mode, whether that is a guarantee, and what was spent on a record.
    `validation`: the loss and the metrics of the validation rows, where there are any. `best`: with
    early stopping, the round of the best model so far. `threshold`: the probability above which
    a row is said to be of class 1, by silo where silos predict on their own; None: 0.5.
    `intervals`: 95 % bootstrap intervals of the metrics, of the record that a run in a folder is
    judged by (`result_of`).
    """

    round: int
    iteration: int
    time: float | None
    wall: float
    bytes: Mapping[str, int]
    train_loss: float
    metrics: Metrics
    by_silo: Mapping[str, Metrics] | None = None
    notes: Mapping[str, Any] | None = None
    privacy: Mapping[str, Any] | None = None
    validation: Metrics | None = None
    best: int | None = None
    threshold: float | Mapping[str, float] | None = None
    intervals: Mapping[str, Sequence[float]] | None = None

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        optional = ("by_silo", "notes", "privacy", "validation", "best", "threshold", "intervals")
        for name in optional:
            if fields[name] is None:
                del fields[name]
        return fields

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Record:
        return Record(**fields)


GREW = "the training loss grew; a smaller lr or fewer local_steps are the usual cure"


def grew(records: Sequence[Record]) -> bool:
    """Whether training did harm: the loss ended above its start, or was far above it on the way."""
    losses = [record.train_loss for record in records]
    return len(losses) > 1 and (losses[-1] > losses[0] or max(losses) > 10 * losses[0] > 0)


def result_of(records: Sequence[Record]) -> Record:
    """The record that a run is judged by: the last or, with early stopping, that of the model which
    was kept."""
    last = records[-1]
    kept = [record for record in records if record.round == last.best]
    return kept[-1] if kept else last


def append_record(path: Path, record: Record) -> None:
    append_line(path, json.dumps(record.to_json()), SHARED)


def write_records(path: Path, records: Iterable[Record]) -> None:
    write_text(path, "".join(json.dumps(record.to_json()) + "\n" for record in records), SHARED)


def read_records(path: Path) -> list[Record]:
    """All complete lines; a last line that a crash cut short is left out."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    try:
        return [Record.from_json(json.loads(line)) for line in lines]
    except (ValueError, TypeError) as problem:
        raise DataError(f"{path} is damaged: {problem}") from None
