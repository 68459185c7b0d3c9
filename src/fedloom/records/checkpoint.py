"""A run on disk: one file, written whole or not at all.

Tensors are in safetensors form; round, ledger, clock, who dropped out and the records so far are in
its header. Nothing in it is code, so a checkpoint from elsewhere can be read without harm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .. import tree
from ..errors import DataError
from ..federation.ledger import Ledger
from ..federation.schedule import Recorded
from ..files import write_bytes
from ..run import Snapshot
from .record import Record

FORM = 2


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
    tensors = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in tree.named(dict(snapshot.state)).items()
    }
    write_bytes(path, save(tensors, {"fedloom": json.dumps(about)}))


def load_checkpoint(path: Path) -> Checkpoint:
    try:
        with safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {})["fedloom"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as problem:
        raise DataError(f"{path} is not a checkpoint, or is damaged ({problem})") from None
    if about["form"] != FORM:
        raise DataError(f"{path} was written by another version of fedloom (form {about['form']})")
    return Checkpoint(
        about["round"],
        tensors,
        Ledger.from_json(about["ledger"]),
        Recorded.from_json(about["record"]),
        about["clock"],
        about["releases"],
        tuple(Record.from_json(told) for told in about["records"]),
        about["wall"],
    )
