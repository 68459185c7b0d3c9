"""Which rows a query asks for, and which of them a client has.

Where the run has tables with hashed ids, rows are named by the hashes that `align` used, and any
row of a client's table will do, whether the model was trained on it or not. Elsewhere parties have
no ids: rows are named by their common numbers, and the training rows are all there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...config.runfile import RunFile
from ...core.errors import DataError, SettingError
from ...core.topology import Client, Party, title
from ...data.tables.columns import ColumnKind, take
from ...data.tables.files import ReadOptions, Sheet, hashed, read_sheet
from ...data.tables.prepare import OneHot
from ...data.tables.schema import table_of
from ..agreement.agreement import Agreement
from ..agreement.align import read_salt
from ..agreement.own_rows import read_preparation, read_rows
from ..agreement.own_tables import HASH, split_hashes
from ..party_file import PartyFile

NUMBER = "row"  # the column of numbers, where there are no ids


def by_id(file: RunFile) -> bool:
    """Whether rows are known by ids; otherwise by their common numbers."""
    data = file.values["data"]
    return "silos" in data and data["ids"] == "hashed"


@dataclass(frozen=True)
class RowNames:
    """How a party names rows to others."""

    column: str
    salt: str

    @staticmethod
    def of(file: RunFile, own: PartyFile) -> RowNames:
        if not by_id(file):
            return RowNames(NUMBER, "row numbers")
        if own.party.salt is None:
            raise SettingError(
                f"[party]: {title(own.me)} needs the `salt` that clients share, to name rows"
            )
        return RowNames(file.values["data"]["id"], read_salt(Path(own.party.salt)))

    def hashes(self, ids: Sequence[str]) -> Tensor:
        """[rows, 32]"""
        flat = bytes.fromhex("".join(hashed([*ids], self.salt)))
        return torch.frombuffer(bytearray(flat), dtype=torch.uint8).reshape(-1, HASH)

    def asked(self, path: Path, me: Party) -> list[str]:
        """The ids in a CSV or Parquet file, in their order."""
        sheet = read_sheet(path, title(me), ReadOptions(self.column, only=frozenset()))
        ids: list[str] = sheet.ids.tolist()
        if not ids:
            raise DataError(f"{title(me)}: {path} asks for no rows")
        _once(ids, f"{title(me)}: {path}")
        return ids


class OwnRows:
    """Of one client."""

    def __init__(self, file: RunFile, own: PartyFile, agreement: Agreement):
        me, names = own.me, RowNames.of(file, own)
        assert isinstance(me, Client)
        self._me, self._agreement = me, agreement
        self._sheet: Sheet | None = None
        if by_id(file):
            self._read_table(own, me, names)
            assert self._sheet is not None
            flat = bytes.fromhex("".join(self._sheet.ids.tolist()))
            hashes = (
                split_hashes(torch.frombuffer(bytearray(flat), dtype=torch.uint8)) if flat else []
            )
        else:
            view = read_rows(Path(own.party.rows), me, agreement)
            self._x = view.x[me]
            numbers = [str(number) for number in view.rows[me].tolist()]
            hashes = split_hashes(names.hashes(numbers)) if numbers else []
        self._place = {digest: place for place, digest in enumerate(hashes)}

    def _read_table(self, own: PartyFile, me: Client, names: RowNames) -> None:
        if own.party.table is None:
            raise SettingError("[party]: a client predicts from its `table`: name it")
        self._silo = read_preparation(Path(own.party.rows))[me.silo]
        needed = {step.name for step in self._silo.steps}
        text = frozenset(step.name for step in self._silo.steps if isinstance(step, OneHot))
        path = Path(own.party.table)
        wanted = ReadOptions(names.column, text, only=frozenset(needed), salt=names.salt)
        sheet = read_sheet(path, title(me), wanted)
        _once(sheet.ids.tolist(), f"{title(me)}: {path}")
        self._silo.check(sheet.names, f"{title(me)}: {path.name}")
        kinds: dict[str, ColumnKind] = {n: "text" if n in text else "number" for n in needed}
        self._table = table_of(sheet, kinds)
        self._sheet = sheet

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which of these rows are here, [rows] of 0 and 1; and the features of those."""
        places = [self._place.get(digest, -1) for digest in split_hashes(ids)]
        flags = torch.tensor([place >= 0 for place in places], dtype=torch.uint8)
        used = np.array([place for place in places if place >= 0], dtype=np.int64)
        if self._sheet is None:
            return flags, self._x[torch.from_numpy(used)]
        table = {name: take(column, used) for name, column in self._table.items()}
        x = self._silo.apply(table, self._sheet.where)
        shape, _ = self._agreement.facts.features[self._me.silo]
        if tuple(x.shape[1:]) != shape or not bool(x.isfinite().all()):
            raise DataError(
                f"{title(self._me)}: its prepared rows are not finite, or not of the agreed shape"
            )
        return flags, x


def preparation_digest(file: RunFile, own: PartyFile) -> str:
    """The same at a hub and all its clients."""
    if not by_id(file):
        return ""
    preparation = read_preparation(Path(own.party.rows))
    return hashlib.sha256(preparation.to_json().encode()).hexdigest()


def _once(ids: Sequence[str], where: str) -> None:
    repeated = len(ids) - len(set(ids))
    if repeated:
        raise DataError(f"{where}: {repeated} ids occur more than once; keep one of each")
