"""Data as a run uses it: rows placed at the clients of silos, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import DataError, SettingError
from ..settings import shown, with_article
from .dataset import Dataset, Goal
from .placement import Placement

if TYPE_CHECKING:
    from .cut import Cut
    from .prepare import Preparation


@dataclass(frozen=True)
class Federated:
    """Training rows and, where there are any, test rows, of the same silos and clients.

    `columns` names a silo's columns where it has any; `notes` say what was left out and why;
    `sources` are the checksums of the files it came from. `preparation` is how each silo turns its
    own tables into numbers, `cut` how a data set was cut; either may be absent.
    """

    name: str
    goal: Goal
    train: Placement
    test: Placement | None = None
    classes: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    preparation: Preparation | None = None
    cut: Cut | None = None

    def with_server(self) -> Federated:
        """The same rows, and a server that holds none."""
        return replace(self, train=self.train.with_server())

    def __repr__(self) -> str:
        """Numbers only: a notebook must not show people."""
        tests = 0 if self.test is None else self.test.size
        return f"<{self.name}: {self.train!r} for training, {tests} rows for testing>"

    @property
    def outputs(self) -> int:
        """How many scores a model of it gives."""
        labels = self.train.labels()
        if self.goal == "classes":
            return len(self.classes) or int(labels.max()) + 1
        return labels.shape[1] if labels.ndim == 2 else 1

    def only(self, silos: Sequence[str]) -> Federated:
        """The same rows as some of the silos know them."""
        return replace(
            self,
            train=self.train.only(silos),
            test=None if self.test is None else self.test.only(silos),
        )

    def summary(self) -> dict[str, Any]:
        """Who holds what, in numbers only: what the manifest and the figures are made from."""
        silos = {}
        for silo, names in self.train.topology.clients.items():
            train = _counts(self.train, silo)
            test = _counts(self.test, silo) if self.test is not None else [0] * len(names)
            silos[silo] = {
                "shape": list(self.train.x[silo].shape[1:]),
                "columns": list(self.columns.get(silo, ())),
                "labels": self.train.y[silo] is not None,
                "clients": {name: [a, b] for name, a, b in zip(names, train, test, strict=True)},
                "classes": self._classes_held(silo),
            }
        rows = {"train": self.train.size, "test": self.test.size if self.test is not None else 0}
        return {
            "name": self.name,
            "goal": self.goal,
            "classes": list(self.classes),
            "rows": rows,
            "silos": silos,
        }

    def _classes_held(self, silo: str) -> dict[str, list[int]]:
        """How many training rows of each class each client of a silo holds; {} for numbers, and
        where the silo has no labels."""
        if self.goal == "number" or self.train.y[silo] is None:
            return {}
        labels, owner = self.train.labels().long(), self.train.owner[silo]
        classes = max(2, len(self.classes), int(labels.max()) + 1)
        names = self.train.topology.clients[silo]
        flat = torch.bincount(owner * classes + labels, minlength=len(names) * classes)
        return dict(zip(names, flat.reshape(len(names), classes).tolist(), strict=True))


def check_data(where: str, data: object, *kinds: type) -> None:
    """Refuse a data set that was not cut, and what is not of these kinds."""
    if isinstance(data, Dataset):
        raise DataError(
            f"the data set {data.name} is not cut yet: Partition(silos=..., clients=...).place(it)"
        )
    if not isinstance(data, kinds):
        wanted = " or ".join(with_article(kind.__name__) for kind in kinds)
        raise SettingError(f"{where}: data: {wanted} is expected, not {shown(data)}")


def _counts(placement: Placement, silo: str) -> list[int]:
    owner: Tensor = placement.owner[silo]
    return torch.bincount(owner, minlength=len(placement.topology.clients[silo])).tolist()
