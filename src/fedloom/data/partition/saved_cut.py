"""A cut: the result of a partition, without the rule that drew it.

A saved cut gives the same rows to the same clients, even if the code that drew it changes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core import seal
from ...core.errors import DataError, InputError, reason
from ...core.files import SHARED
from ...core.rng import Ints
from ...core.topology import Topology
from ..dataset import Dataset
from ..federated import Federated
from ..placement import Placement, Shard
from . import vertical
from .vertical import Region, Selection

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Cut:
    """Who has which columns and rows of a data set.

    `parts`: the columns or the region of each block that a silo has (None: all of it). `owner`: the
    index of each row's client in the silo's `clients`, for all rows of the set, training and test.
    `ids`: a checksum of the set's ids."""

    data: str
    ids: str
    parts: Mapping[str, Mapping[str, Selection]]
    clients: Mapping[str, tuple[str, ...]]
    owner: Mapping[str, Ints]
    labels_at: tuple[str, ...]

    def __post_init__(self) -> None:
        Topology(self.clients)
        if not (set(self.parts) == set(self.clients) == set(self.owner) >= set(self.labels_at)):
            raise DataError("a cut must name the same silos for columns, clients and rows")
        if len({len(owner) for owner in self.owner.values()}) > 1:
            raise DataError("a cut must place the same rows in every silo")
        for silo, owner in self.owner.items():
            if not self.parts[silo] or () in self.parts[silo].values():
                raise DataError(f"a cut gives silo {silo} no columns")
            if len(owner) and not 0 <= owner.min() <= owner.max() < len(self.clients[silo]):
                raise DataError(f"a cut gives rows of silo {silo} to clients that do not exist")

    @property
    def silos(self) -> tuple[str, ...]:
        return tuple(self.clients)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cut) and self.to_json() == other.to_json()

    def to_json(self) -> dict[str, Any]:
        """As plain values, with compressed owners."""
        silos = {
            silo: {
                "parts": {name: _plain(part) for name, part in self.parts[silo].items()},
                "clients": list(names),
                "owner": _pack(self.owner[silo], len(names)),
            }
            for silo, names in self.clients.items()
        }
        return {
            "format": FORMAT,
            "data": self.data,
            "ids": self.ids,
            "labels_at": list(self.labels_at),
            "silos": silos,
        }

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Cut:
        try:
            if saved["format"] != FORMAT:
                raise DataError(f"a cut of format {saved['format']}, not {FORMAT}")
            silos = saved["silos"]
            return Cut(
                saved["data"],
                saved["ids"],
                {
                    silo: {name: _selection(part) for name, part in of_silo["parts"].items()}
                    for silo, of_silo in silos.items()
                },
                {silo: tuple(of_silo["clients"]) for silo, of_silo in silos.items()},
                {silo: _unpack(h["owner"], len(h["clients"])) for silo, h in silos.items()},
                tuple(saved["labels_at"]),
            )
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as problem:
            raise DataError(f"this is not a cut ({reason(problem)})") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        seal.write_json(Path(path), self.to_json(), mode=SHARED)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Cut:
        try:
            return Cut.from_json(seal.read_json(Path(path), must=False))
        except (OSError, ValueError) as problem:
            raise DataError(f"{path} cannot be read as a cut ({reason(problem)})") from None


def place(data: Dataset, cut: Cut) -> Federated:
    """Apply a cut to its data set. Test rows go to clients, too."""
    if cut.ids != sum_of_ids(data):
        raise DataError(f"the cut of {cut.data} is for other rows than those of {data.name}")
    train: dict[str, dict[str, Shard]] = {}
    test: dict[str, dict[str, Shard]] = {}
    columns: dict[str, tuple[str, ...]] = {}
    for silo, parts in cut.parts.items():
        x = vertical.features(data, silo, parts)
        if x.ndim == 2 and (named := vertical.names(data, parts)):
            columns[silo] = named
        for side, on_side in ((train, ~data.test), (test, data.test)):
            side[silo] = {}
            for k, client in enumerate(cut.clients[silo]):
                numbers = np.flatnonzero(on_side & (cut.owner[silo] == k))
                rows = torch.from_numpy(numbers)
                y = data.y[rows] if silo in cut.labels_at else None
                side[silo][client] = Shard(data.ids[numbers], x[rows], y)
    return Federated(
        name=data.name,
        goal=data.goal,
        train=Placement.of(train),
        test=Placement.of(test) if data.test.any() else None,
        classes=data.classes,
        columns=columns,
        sources=data.sources,
        cut=cut,
    )


def sum_of_ids(data: Dataset) -> str:
    """A checksum of the ids, in order."""
    return hashlib.sha256(json.dumps(data.ids.tolist()).encode()).hexdigest()


def _plain(part: Selection) -> Any:
    return asdict(part) if isinstance(part, Region) else None if part is None else list(part)


def _selection(part: Any) -> Selection:
    if part is None:
        return None
    return Region(**part) if isinstance(part, dict) else tuple(map(int, part))


def _dtype(clients: int) -> str:
    return "<u1" if clients <= 1 << 8 else "<u2" if clients <= 1 << 16 else "<u4"


def _pack(owner: Ints, clients: int) -> str:
    return base64.b64encode(zlib.compress(owner.astype(_dtype(clients)).tobytes(), 9)).decode()


def _unpack(text: str, clients: int) -> Ints:
    raw = zlib.decompress(base64.b64decode(text, validate=True))
    return np.frombuffer(raw, dtype=_dtype(clients)).astype(np.int64)
