"""A data set before it is partitioned: ids, named blocks of features, labels, a test split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.errors import DataError, SettingError
from ..core.rng import Streams

Goal = Literal["classes", "binary", "number"]

LOSSES: dict[Goal, str] = {
    "classes": "cross-entropy",
    "binary": "binary-cross-entropy",
    "number": "squared",
}


@dataclass(frozen=True)
class Dataset:
    """A data set. `blocks`: [rows, ...] each; one for a table or images, several for views or
    groups of columns. `columns`: names of the columns of flat blocks. `keys`: attributes that can
    decide which client has a row. `sources`: checksums of the files."""

    name: str
    ids: npt.NDArray[Any]
    blocks: Mapping[str, Tensor]
    y: Tensor
    test: npt.NDArray[np.bool_]
    goal: Goal
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    keys: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    note: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = len(self.ids)
        parts: dict[str, Any] = {"labels": self.y, "split": self.test, **self.blocks, **self.keys}
        for what, values in parts.items():
            if len(values) != rows:
                raise DataError(f"data set {self.name}: {rows} ids, {len(values)} rows of {what}")
        for name, names in self.columns.items():
            if self.blocks[name].shape[1:] != (len(names),):
                raise DataError(f"data set {self.name}: {len(names)} column names for block {name}")
        if len(np.unique(self.ids)) != rows:
            raise DataError(f"data set {self.name}: ids are repeated")

    def __repr__(self) -> str:
        blocks = ", ".join(f"{name} {list(x.shape[1:])}" for name, x in self.blocks.items())
        return f"<data set {self.name}: {self.size} rows of {blocks}>"

    @property
    def size(self) -> int:
        return len(self.ids)

    @property
    def outputs(self) -> int:
        """The number of scores that a model for it gives."""
        if self.goal == "classes":
            return len(self.classes) or int(self.y.max()) + 1
        return self.y.shape[1] if self.y.ndim == 2 else 1

    def rows(self, pick: npt.NDArray[Any]) -> Dataset:
        """Some of the rows, in the order given."""
        pick = np.flatnonzero(pick) if pick.dtype == bool else pick
        at = torch.from_numpy(np.ascontiguousarray(pick, dtype=np.int64))
        return replace(
            self,
            ids=self.ids[pick],
            blocks={name: block[at] for name, block in self.blocks.items()},
            y=self.y[at],
            test=self.test[pick],
            keys={name: key[pick] for name, key in self.keys.items()},
        )

    def some(self, train: int) -> Dataset:
        """A subset of so many training rows, and the same share of the test rows. The choice
        depends on the set's name only; rows keep their order."""
        rows, spare = np.flatnonzero(~self.test), np.flatnonzero(self.test)
        if not 1 <= train <= len(rows):
            raise SettingError(f"data set {self.name}: take = {train} is not in 1..{len(rows)}")
        picks = [
            Streams(0).common("some rows", self.name, side).permutation(len(of))[:count]
            for side, of, count in (
                ("train", rows, train),
                ("test", spare, round(len(spare) * train / len(rows))),
            )
        ]
        return self.rows(np.sort(np.concatenate([rows[picks[0]], spare[picks[1]]])))
