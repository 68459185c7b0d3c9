"""A client's own table and its hub's part in preparing it, for `align.py`: what `read_tables` does
on all tables, in the pieces that each party can do by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...config.runfile import RunFile
from ...core.errors import DataError, SettingError
from ...core.rng import Ints
from ...core.topology import Client, title
from ...data.labels import Target, find_target, has_label, refuse_text
from ...data.tables.columns import Cells, ColumnKind, Table, TextColumn, is_number, take
from ...data.tables.common_rows import split_by_hash
from ...data.tables.files import ReadOptions, read_sheet
from ...data.tables.id_overlap import Overlap
from ...data.tables.prepare import CategorySummary, NumberSummary, SiloPreparation, Summary, fit
from ...data.tables.schema import table_of
from ...data.validation import validation_rows
from .id_variants import variants_of
from .shared_facts import wants_balance

HASH = 32  # bytes


@dataclass(frozen=True)
class TableSettings:
    """What [data] of a run file says about tables, as far as organisations can use it."""

    id: str
    label: str
    goal: Any
    test: float
    numbers: Sequence[str]
    categories: Sequence[str]
    drop: Sequence[str]
    rare: int
    min_match: float
    validation: float | None
    balanced: bool = False  # whether weights of classes follow from the labels

    @staticmethod
    def of(file: RunFile) -> TableSettings:
        data = file.values["data"]
        if "silos" not in data:
            raise SettingError("data: align needs tables, [data.silos], not a data set")
        if data["ids"] != "hashed":
            raise SettingError(
                'data: ids = "hashed" is needed: plain ids would leave the organisation'
            )
        if data["goal"] is None:
            raise SettingError("data: goal is needed: nobody sees all labels to guess it from")
        if isinstance(data["test"], str):
            raise SettingError("data: test must be a share here, not a column")
        values = {f.name: data[f.name] for f in fields(TableSettings) if f.name in data}
        return TableSettings(**values, balanced=wants_balance(file))


class OwnTable:
    """A client's file, read."""

    def __init__(self, path: Path, salt: str, me: Client, settings: TableSettings):
        given, self._me, self._salt = settings, me, salt
        self._settings = settings
        text, drop = frozenset(given.categories), frozenset(given.drop) - {given.label}
        wanted = ReadOptions(given.id, text, drop, salt=salt)
        self._sheet = read_sheet(path, title(me), wanted)
        ids = self._sheet.ids
        if len(set(ids.tolist())) < len(ids):
            raise DataError(f"{self._sheet.where}: ids occur more than once; keep one row of each")
        self._labels = self._sheet.columns.get(given.label)
        self._rows: Ints = np.arange(len(ids))
        if self._labels is not None:
            refuse_text(given.label, {me: self._labels}, given.goal)
            self._rows = np.flatnonzero(has_label(self._labels))
        self._features = [
            name for name in self._sheet.names if name not in (given.label, *given.drop)
        ]

    def ids(self) -> Tensor:
        """Hashes of the ids of rows that can be used, [rows, 32]."""
        hexed = "".join(self._sheet.ids[self._rows].tolist())
        flat = np.frombuffer(bytes.fromhex(hexed), dtype=np.uint8)
        return torch.from_numpy(flat.reshape(-1, HASH).copy())

    def variants(self, common: Tensor) -> dict[str, Tensor]:
        """Hashed forms of the ids that are not common."""
        others = self._rows[common.numpy() == 0]
        return variants_of(self._sheet.plain[others].tolist(), self._salt)

    def columns(self) -> dict[str, Any]:
        """Names and kinds of the columns; no cell of them."""
        kinds = {name: _kind_of(self._sheet.columns[name]) for name in self._features}
        return {"features": kinds, "labels": self._labels is not None}

    def labels(self, common: Tensor, numbers: Tensor, train: int) -> dict[str, Any] | None:
        """Which labels there are among the common rows and, where classes are to count alike, in
        how many training rows (numbered below `train`); none where labels are numbers."""
        if self._labels is None or self._settings.goal == "number":
            return None
        cells, is_common = self._labels, common.numpy().astype(bool)
        labels = take(cells.values, self._rows[is_common])
        own = numbers.numpy()[is_common]
        trained = (own >= 0) & (own < train)
        if isinstance(labels, TextColumn):
            codes = [code for code in np.unique(labels.codes).tolist() if code >= 0]
            told = {"text": [labels.names[code] for code in codes]}
            counts = [int((labels.codes[trained] == code).sum()) for code in codes]
        else:
            told = {"numbers": np.unique(labels).tolist()}
            counts = [int((labels[trained] == number).sum()) for number in told["numbers"]]
        more = {"counts": counts} if self._settings.balanced else {}
        return {"kind": cells.kind, **told, **more}

    def summary(self, kinds: Mapping[str, ColumnKind], numbers: Tensor) -> dict[str, Any]:
        """Of the training rows, column by column."""
        used = self._rows[numbers.numpy() >= 0]
        table = {name: take(column, used) for name, column in self._table(kinds).items()}
        return {name: asdict(column) for name, column in Summary.of(table).columns.items()}

    def rows(
        self,
        kinds: Mapping[str, ColumnKind],
        numbers: Tensor,
        preparation: SiloPreparation,
        target: Target,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Canonical numbers of the training rows, ascending; features; labels, if there are any."""
        place = np.flatnonzero(numbers.numpy() >= 0)
        place = place[np.argsort(numbers.numpy()[place])]
        used, where = self._rows[place], self._sheet.where
        table = {name: take(column, used) for name, column in self._table(kinds).items()}
        x, y = preparation.apply(table, where), None
        if self._labels is not None:
            y = target.encode(Cells(self._labels.kind, take(self._labels.values, used)), where)
        return numbers[torch.from_numpy(place)], x, y

    def _table(self, kinds: Mapping[str, ColumnKind]) -> Table:
        return table_of(self._sheet, kinds)


def _kind_of(cells: Cells) -> list[Any]:
    """A column's kind; of text, how many cells, and how many could be numbers."""
    if not isinstance(cells.values, TextColumn):
        return [cells.kind, 0, 0]
    words = cells.values
    numeric = np.array([*(is_number(name.replace(",", ".")) for name in words.names), False])
    return ["text", int((words.codes >= 0).sum()), int(numeric[words.codes].sum())]


def kinds_of(
    silo: str, tables: Mapping[Client, Any], settings: TableSettings
) -> dict[str, ColumnKind]:
    """Whether each column of a silo is numbers or text, from its clients' `columns`."""
    first, *others = tables
    names = list(tables[first]["features"])
    for other in others:
        if set(tables[other]["features"]) != set(names):
            raise DataError(
                f"silo {silo}: clients {first.name} and {other.name} have different columns"
            )
        if tables[other]["labels"] != tables[first]["labels"]:
            raise DataError(
                f"silo {silo}: of clients {first.name} and {other.name}, one has labels"
            )
    kinds: dict[str, ColumnKind] = {}
    for name in names:
        seen_kinds = [table["features"][name] for table in tables.values()]
        has_text = any(kind == "text" for kind, _, _ in seen_kinds)
        kinds[name] = "text" if has_text else "number"
        if name in settings.numbers or name in settings.categories:
            kinds[name] = "number" if name in settings.numbers else "text"
            continue
        counted = any(kind in ("number", "flag") for kind, _, _ in seen_kinds)
        texts = sum(cells for _, cells, _ in seen_kinds)
        numeric = sum(count for _, _, count in seen_kinds)
        if has_text and (counted or 2 * numeric > texts):
            raise DataError(
                f"silo {silo}, column {name!r}: numbers and text are mixed; correct the cells, or "
                "name the column in `categories`"
            )
    return kinds


def rows_of(
    hashes: Mapping[Client, Tensor],
    others: Sequence[Tensor],
    test: float,
    validation: float | None = None,
) -> tuple[int, int, dict[Client, tuple[Tensor, Tensor]]]:
    """How many training rows there are, and validation rows after them; for each client the number
    of each of its rows (-1: neither), and which are common. Ids of all silos, as hashes."""
    own_hashes = {client: split_hashes(ids) for client, ids in hashes.items()}
    holders: dict[bytes, Client] = {}
    for client, ids in own_hashes.items():
        for digest in ids:
            if holders.setdefault(digest, client) != client:
                both = f"{title(holders[digest])} and {title(client)}"
                raise DataError(f"{both} have rows of the same ids; keep each at one of them")
    common = sorted(set(holders).intersection(*(split_hashes(ids) for ids in others)))
    testing = split_by_hash((digest.hex() for digest in common), test)
    train = [
        digest for digest, is_test in zip(common, testing.tolist(), strict=True) if not is_test
    ]
    held: list[bytes] = []
    if validation is not None and train:
        mask = validation_rows((digest.hex() for digest in train), validation)
        held = [digest for digest, out in zip(train, mask.tolist(), strict=True) if out]
        train = [digest for digest, out in zip(train, mask.tolist(), strict=True) if not out]
    number, known = {digest: k for k, digest in enumerate([*train, *held])}, set(common)
    own_rows = {
        client: (
            torch.tensor([number.get(digest, -1) for digest in ids], dtype=torch.int64),
            torch.tensor([digest in known for digest in ids], dtype=torch.uint8),
        )
        for client, ids in own_hashes.items()
    }
    return len(train), len(held), own_rows


def refuse_poor(overlap: Overlap, train: int, least: float) -> None:
    """Nothing to train on, or suspiciously little."""
    common, _ = overlap.silos[overlap.smallest]
    if not common:
        advice = overlap.advice or "ids must be written alike, and the salt be one"
        raise DataError(f"no id is in every silo: {advice}")
    overlap.check(least)
    if not train:
        raise DataError(f"all {common} common rows are for testing; none are left to train")


def split_hashes(ids: Tensor) -> list[bytes]:
    """[rows, HASH] as a list."""
    flat = ids.numpy().tobytes()
    return [flat[at : at + HASH] for at in range(0, len(flat), HASH)]


def fitted(silo: str, sums: Sequence[Mapping[str, Any]], rare: int) -> SiloPreparation:
    """A silo's preparation from its clients' summaries."""
    summaries = [
        Summary(
            {
                n: CategorySummary(**c) if "counts" in c else NumberSummary(**c)
                for n, c in columns.items()
            }
        )
        for columns in sums
    ]
    made, _ = fit(silo, reduce(add, summaries), rare)
    if not made.steps:
        raise DataError(f"silo {silo} has no columns to learn from, besides ids and labels")
    return made


def target_of(settings: TableSettings, labels_of: Mapping[Client, Any]) -> Target:
    """What labels mean, from those that occur at each client."""
    if settings.goal == "number":
        return Target("number")
    cells = {client: _cells(labels) for client, labels in labels_of.items()}
    return find_target(settings.label, cells, settings.goal)[0]


def class_counts(settings: TableSettings, labels_of: Mapping[Client, Any]) -> list[int]:
    """How many training rows of a silo are of each class, from what its clients told."""
    target = target_of(settings, labels_of)
    total = np.zeros(len(target.classes))
    for client, labels in labels_of.items():
        codes = target.encode(_cells(labels), title(client)).long().numpy()
        total += np.bincount(codes, labels["counts"], minlength=len(total))
    return [int(count) for count in total]


def _cells(labels: Mapping[str, Any]) -> Cells:
    if "text" in labels:
        words = TextColumn(tuple(labels["text"]), np.arange(len(labels["text"])))
        return Cells(labels["kind"], words)
    return Cells(labels["kind"], np.array(labels["numbers"], dtype=np.float64))
