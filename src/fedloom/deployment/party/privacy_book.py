"""A client's own privacy book: how often each of its records was released, with noise, and worked
on. It is on disk before anything of it is sent, and lasts over restarts.

Hubs keep such a book from common knowledge. A client does not rely on it: a hub that goes back, or
sends another model for the same round, gets another release, which is counted here. The same
release again, to the bit, is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from ...core import seal
from ...core.errors import DamagedError, SettingError
from ...core.topology import Client, title
from ...privacy.accounting import Scales
from ...privacy.settings import Privacy
from ...privacy.spending import spent_in_silo

BOOK = "privacy.msgpack"
CURE = "restore it; without the file, all rounds so far count as if everything was sent"
RECENT = 1024  # marks that are remembered, and two for each record


class Page(Struct, kw_only=True, forbid_unknown_fields=True):
    """The file. `marks`: of the streams that noise was drawn from, the latest last."""

    seal: str = seal.BLANK
    run: str
    rows: list[int]
    releases: list[int]
    steps: list[int]
    marks: list[bytes]


class PrivacyBook:
    """Of one client in one run. `rows`: its own, by their common numbers."""

    def __init__(
        self, path: Path, run: str, client: Client, rows: Tensor, privacy: Privacy, scales: Scales
    ):
        self._path, self._run, self._client = path, run, client
        self._privacy, self._scales = privacy, scales
        self._rows = rows.sort().values
        self._releases = torch.zeros(len(rows), dtype=torch.int64)
        self._steps = torch.zeros(len(rows), dtype=torch.int64)
        self._marks: dict[bytes, None] = {}
        self._is_new = False  # something is not on disk
        self.was_there = path.exists()
        if self.was_there:
            self._read()

    def draw(self, mark: bytes, rows: Tensor, releases: int, steps: int) -> None:
        """Noise for so many releases of some rows and local steps on them, unless it was drawn
        before. SettingError where the budget does not last for it."""
        if self._remembers(mark):
            return
        often = torch.bincount(torch.searchsorted(self._rows, rows), minlength=len(self._rows))
        self._releases += often * releases
        self._steps += often * steps
        self._is_new = True
        self._check()

    def add_all(self, releases: Tensor, steps: Tensor) -> None:
        """So much more for each common row, as far as they are its own."""
        self._releases += releases[self._rows]
        self._steps += steps[self._rows]
        self._is_new = True

    def save(self) -> None:
        """What is new, before a message that follows from it."""
        if not self._is_new:
            return
        page = Page(
            run=self._run,
            rows=self._rows.tolist(),
            releases=self._releases.tolist(),
            steps=self._steps.tolist(),
            marks=list(self._marks),
        )
        seal.write(self._path, msgspec.msgpack.encode(page))
        self._is_new = False

    def spent(self) -> dict[str, Any]:
        """For the log and the status."""
        counts = (self._releases, self._steps)
        return spent_in_silo(self._privacy, self._scales, self._client.silo, counts)

    def _remembers(self, mark: bytes) -> bool:
        known = mark in self._marks
        self._marks.pop(mark, None)
        self._marks[mark] = None
        if len(self._marks) > RECENT + 2 * len(self._rows):
            del self._marks[next(iter(self._marks))]
        return known

    def _check(self) -> None:
        if self._scales.budget is None or not len(self._rows):
            return
        mu = float(self._scales.mu(self._releases, self._steps).max())
        if self._scales.exceeds(mu):
            raise SettingError(
                f"{title(self._client)} sends nothing more: by its own book ({self._path.name}) a "
                f"record would reach mu {mu:.4g} of {self._scales.budget:.4g}"
            )

    def _read(self) -> None:
        try:
            page = msgspec.msgpack.decode(seal.read(self._path, CURE), type=Page)
        except msgspec.MsgspecError:
            raise DamagedError(f"{self._path} is no book of what was spent; {CURE}") from None
        if page.run != self._run or page.rows != self._rows.tolist():
            raise SettingError(
                f"{self._path} is the book of another run, or of other rows: name another folder"
            )
        counts = np.array([page.releases, page.steps], dtype=np.int64)
        self._releases, self._steps = torch.from_numpy(counts).unbind()
        self._marks = dict.fromkeys(page.marks)
