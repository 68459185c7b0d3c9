"""A records writer: a class that takes one record after the other."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fedloom.extend import Record, writers


@writers.register("csv")
class CsvLines:
    """A table in the run's folder, for spreadsheets: a line for each evaluation."""

    def __init__(
        self,
        folder: Path,
        title: str,
        config: Mapping[str, Mapping[str, Any]],
        delimiter: Annotated[str, "between two numbers"] = ",",
    ):
        self._file = (folder / "records.csv").open("w", newline="", encoding="utf-8")
        self._lines = csv.writer(self._file, delimiter=delimiter)
        self._named: list[str] | None = None

    def write(self, record: Record) -> None:
        if self._named is None:
            self._named = list(record.metrics)
            self._lines.writerow(["round", "bytes", "train_loss", *self._named])
        numbers = [record.metrics.get(name) for name in self._named]
        sent = sum(record.bytes.values())
        self._lines.writerow([record.round, sent, record.train_loss, *numbers])
        self._file.flush()

    def close(self) -> None:
        self._file.close()
