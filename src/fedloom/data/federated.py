"""The data of a run: rows at the clients of silos, and the meaning of columns and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from ..core.checked import checked
from ..core.errors import DataError, SettingError
from ..core.settings import inside, shown, with_article
from ..core.topology import Client, title
from .dataset import Dataset, Goal
from .placement import Placement
from .validation import validation_rows

if TYPE_CHECKING:
    from .partition.partition import Cut
    from .tables.id_overlap import Overlap
    from .tables.prepare import Preparation

NAMED = 5  # clients, where there are many


@dataclass(frozen=True)
class Federated:
    """Training rows, and test and validation rows where there are any, of the same silos and
    clients.

    `columns`: names of a silo's columns, where they have names. `notes`: which rows and columns
    were dropped, and why. `sources`: checksums of the files. `preparation`: how each silo prepares
    its tables. `overlap`: how well their ids matched. `cut`: how a data set was partitioned."""

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
    overlap: Overlap | None = None
    validation: Placement | None = None

    def with_server(self) -> Federated:
        """The same rows, with a server, which holds none."""
        return replace(self, train=self.train.with_server())

    @checked()
    def with_validation(self, share: Annotated[float, inside(0, 1)]) -> Federated:
        """This share of the training rows kept back, to stop by and to choose settings by. A hash
        of the row's id decides, so that all parties choose the same rows."""
        if self.validation is not None:
            raise SettingError("these data have validation rows already")
        held = torch.from_numpy(validation_rows(self.train.ids, share))
        numbers = torch.arange(self.train.size)
        train, validation = self.train.take(numbers[~held]), self.train.take(numbers[held])
        return replace(self, train=train, validation=validation)

    def __repr__(self) -> str:
        """Numbers only: a notebook must not show personal data."""
        tests = 0 if self.test is None else self.test.size
        held = "" if self.validation is None else f"{self.validation.size} for validation, "
        return f"<{self.name}: {self.train!r} for training, {held}{tests} rows for testing>"

    @property
    def outputs(self) -> int:
        """The number of scores that a model for it gives."""
        labels = self.train.labels()
        if self.goal == "classes":
            return len(self.classes) or int(labels.max()) + 1
        return labels.shape[1] if labels.ndim == 2 else 1

    def only(self, silos: Sequence[str]) -> Federated:
        """The same rows, of some of the silos."""
        return replace(
            self,
            train=self.train.only(silos),
            test=None if self.test is None else self.test.only(silos),
            validation=None if self.validation is None else self.validation.only(silos),
        )

    def summary(self) -> dict[str, Any]:
        """Who holds how much, for the manifest and the figures. It shows no ids and no cells."""
        silos = {}
        for silo, names in self.train.topology.clients.items():
            train = _counts(self.train, silo)
            test = _counts(self.test, silo) if self.test is not None else [0] * len(names)
            silos[silo] = {
                "shape": list(self.train.x[silo].shape[1:]),
                "columns": self._titles(silo),
                "labels": self.train.y[silo] is not None,
                "clients": {name: [a, b] for name, a, b in zip(names, train, test, strict=True)},
                "classes": self._class_counts(silo),
            }
        rows = {"train": self.train.size, "test": self.test.size if self.test is not None else 0}
        if self.validation is not None:
            rows["validation"] = self.validation.size
        return {
            "name": self.name,
            "goal": self.goal,
            "classes": list(self.classes),
            "rows": rows,
            "silos": silos,
            "matched": None if self.overlap is None else self.overlap.to_json(),
        }

    @property
    def idle(self) -> tuple[Client, ...]:
        """Clients without training rows."""
        topology = self.train.topology
        counts = {silo: _counts(self.train, silo) for silo in topology.silos}
        return tuple(
            client
            for silo in topology.silos
            for client, rows in zip(topology.of(silo), counts[silo], strict=True)
            if not rows
        )

    @property
    def without_rows(self) -> str:
        """Names of idle clients, the first few of them; empty where there are none."""
        idle = self.idle
        more = f" and {len(idle) - NAMED} others" if len(idle) > NAMED else ""
        return ", ".join(map(title, idle[:NAMED])) + more

    def lines(self) -> list[str]:
        """Text: how well ids matched, and which clients have no rows."""
        lines = [] if self.overlap is None else self.overlap.lines()
        if self.overlap is not None and self.overlap.advice:
            lines.append(f"note: {self.overlap.advice}")
        return lines + [f"note: without training rows: {self.without_rows}"] * bool(self.idle)

    def _titles(self, silo: str) -> list[str]:
        """Titles of a silo's columns, without the categories of text columns."""
        if self.preparation is None:
            return list(self.columns.get(silo, ()))
        return [step.title for step in self.preparation[silo].steps]

    def _class_counts(self, silo: str) -> dict[str, list[int]]:
        """{client: its number of training rows of each class}; {} where labels are numbers, or the
        silo has none."""
        if self.goal == "number" or self.train.y[silo] is None:
            return {}
        labels, owner = self.train.labels().long(), self.train.owner[silo]
        classes = max(2, len(self.classes), int(labels.max()) + 1)
        names = self.train.topology.clients[silo]
        flat = torch.bincount(owner * classes + labels, minlength=len(names) * classes)
        return dict(zip(names, flat.reshape(len(names), classes).tolist(), strict=True))


def check_data(where: str, data: object, *kinds: type) -> None:
    """Refuse data that is not of these kinds; a Dataset has not been partitioned yet."""
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
