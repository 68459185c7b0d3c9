"""The last checkpoints of a run, in its folder.

    checkpoint.safetensors      the newest
    checkpoint-N.safetensors    those before it, after N rounds

The newest is written whole and renamed into place. The one before it keeps its content under a name
of its own: a second name of the same file, given before the first is taken away. So there is a
whole checkpoint at every moment, and one to go back to where the newest was damaged on disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.crash_points import crash
from ..core.errors import DamagedError
from ..core.files import link_or_copy, write_errors
from .checkpoint import Checkpoint, load_checkpoint, round_of, save_checkpoint
from .record import Record
from .snapshot import Snapshot

CHECKPOINT = "checkpoint.safetensors"
CURE = "restore the folder from a backup, or begin the run again in another folder"
NUMBERED = re.compile(r"checkpoint-(\d+)\.safetensors")


@dataclass
class Checkpoints:
    """So many of them, the newest included."""

    folder: Path
    keep: int = 2
    _round: int | None = field(default=None, init=False)  # of the newest, once that is known
    _spoilt: bool = field(default=False, init=False)  # the newest is of no use

    @property
    def newest(self) -> Path:
        return self.folder / CHECKPOINT

    def numbered(self, round: int) -> Path:
        return self.folder / f"checkpoint-{round}.safetensors"

    def older(self) -> dict[int, Path]:
        """Those with a number, whole or not, the last of them first."""
        named = ((NUMBERED.fullmatch(path.name), path) for path in self.folder.glob("checkpoint-*"))
        numbered = {int(number[1]): path for number, path in named if number is not None}
        return dict(sorted(numbered.items(), reverse=True))

    def latest(self, tell: Callable[[DamagedError], None]) -> Checkpoint | None:
        """The newest that is whole; `tell` hears of those that are not. Where none is, that is an
        error."""
        problems = []
        for path in [self.newest] * self.newest.exists() + [*self.older().values()]:
            try:
                checkpoint = load_checkpoint(path)
            except DamagedError as damage:
                problems.append(damage)
                continue
            self._spoilt = path != self.newest
            self._round = checkpoint.round
            for problem in problems:
                tell(problem)
            return checkpoint
        if problems:
            raise DamagedError(f"{problems[0]}, and no earlier checkpoint is whole: {CURE}")
        return None

    def save(self, snapshot: Snapshot, records: Sequence[Record], wall: float) -> None:
        """One more, the newest from now on; of later rounds none is left."""
        before = round_of(self.newest) if self._round is None else self._round
        if before is not None and before < snapshot.round and self.keep > 1 and not self._spoilt:
            link_or_copy(self.newest, self.numbered(before))
            crash("kept the one before")
        save_checkpoint(self.newest, snapshot, records, wall)
        self._round, self._spoilt = snapshot.round, False
        self.forget(snapshot.round)

    def forget(self, newest: int) -> None:
        """Those that are too old, or of rounds that are to come again."""
        older = self.older()
        wanted = [round for round in older if round < newest][: self.keep - 1]
        for round in older.keys() - set(wanted):
            older[round].unlink(missing_ok=True)

    def back_to(self, round: int) -> None:
        """The one after so many rounds is the newest; 0: there is none."""
        if self.numbered(round).exists():
            with write_errors(self.newest):
                self.numbered(round).replace(self.newest)
        elif round == 0:
            self.newest.unlink(missing_ok=True)
        self._round, self._spoilt = None, False
        self.forget(round)

    def clear(self) -> None:
        """None is needed any more."""
        for path in (self.newest, *self.older().values()):
            path.unlink(missing_ok=True)
