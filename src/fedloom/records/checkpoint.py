"""A run on disk: one file, written whole or not at all.

Tensors are in safetensors form; round, ledger, clock, who dropped out and the records so far are in
its header, and a digest over the whole file. Nothing in it is code, so a checkpoint from elsewhere
can be read without harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core import seal, tree
from ..core.errors import DataError
from ..fabric.ledger import Ledger
from ..fabric.schedule import Recorded
from .record import Record
from .snapshot import Snapshot

FORM = 3


@dataclass(frozen=True)
class Checkpoint:
    """Where a run can go on from. `wall`: seconds spent on rounds so far."""

    round: int
    tensors: Mapping[str, Tensor]
    ledger: Ledger
    record: Recorded
    clock: Any
    releases: Mapping[str, Any]
    records: tuple[Record, ...]
    wall: float

    def snapshot(self, like: Mapping[str, Mapping[Any, Any]]) -> Snapshot:
        """As a snapshot of a run whose fresh state is `like`."""
        try:
            state = tree.filled(like, self.tensors)
        except KeyError as missing:
            raise DataError(
                f"the checkpoint is of another model or algorithm: it lacks {missing}"
            ) from None
        return Snapshot(self.round, state, self.ledger, self.record, self.clock, self.releases)


def save_checkpoint(path: Path, snapshot: Snapshot, records: Sequence[Record], wall: float) -> None:
    about = {
        "form": FORM,
        "round": snapshot.round,
        "ledger": snapshot.ledger.to_json(),
        "record": snapshot.record.to_json(),
        "clock": snapshot.clock,
        "releases": snapshot.releases,
        "records": [record.to_json() for record in records],
        "wall": wall,
    }
    seal.write_tensors(path, tree.named(dict(snapshot.state)), about)


def load_checkpoint(path: Path, cure: str = "") -> Checkpoint:
    """DamagedError, with what to do, where it is not what was saved."""
    tensors, about = seal.read_tensors(path, cure)
    if about.get("form") != FORM:
        raise DataError(f"{path} was written by another version of fedloom")
    return Checkpoint(
        about["round"],
        tensors,
        Ledger.from_json(about["ledger"]),
        Recorded.from_json(about["record"]),
        about["clock"],
        about["releases"],
        tuple(Record.from_json(record) for record in about["records"]),
        about["wall"],
    )


def round_of(path: Path) -> int | None:
    """After how many rounds a checkpoint says that it was saved; none where it is none."""
    about = seal.facts_of(path)
    round = None if about is None else about.get("round")
    return round if isinstance(round, int) else None
