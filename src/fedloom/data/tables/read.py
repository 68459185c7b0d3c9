"""Reads users' own tables: one CSV or Parquet file a client, matched by id.

    data = read_tables({"bank": {"north": "north.csv", "south": "south.csv"},
                        "insurer": "insurer.parquet"}, id="customer", label="left")

Ids are compared as text, without blanks around them: the number 7 in one file is "7" in another,
but "07" is somebody else. Rows whose ids are not in every silo are dropped, and counted in the
notes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from os import PathLike
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from ...core.checked import checked
from ...core.errors import DataError, SettingError
from ...core.rng import Ints
from ...core.settings import Count, Share, shown
from ...core.topology import Client, Topology, title
from ..dataset import Goal
from ..federated import Federated
from ..labels import Target, find_target, has_label, refuse_text
from ..placement import Placement, Shard
from .columns import Cells, ColumnKind, Table, take
from .common_rows import (
    CommonRows,
    RowNumbers,
    keep_common,
    refuse_duplicates,
    split_by_column,
    split_by_hash,
)
from .files import ReadOptions, Sheet, read_sheet
from .id_overlap import LEAST, Overlap
from .prepare import OneHot, Preparation, SiloPreparation, Summary, fit
from .schema import Sheets, check_schema, features_of, kinds_of, silos_with, table_of

File = str | PathLike[str]
IdKind = Literal["plain", "hashed"]
TablePaths = Mapping[str, Mapping[str, File] | File]
SiloTables = Mapping[str, Mapping[str, Table]]
Labels = Mapping[Client, Cells]  # of the silos that have them

ONLY_CLIENT = "all"  # the client of a silo that is given as one file


@checked("files")
def read_tables(
    files: TablePaths,
    *,
    id: Annotated[str, "the column of ids, in every file"] = "id",
    label: Annotated[str, "the column of labels, in the silos that have it"] = "label",
    goal: Annotated[Goal | None, "none: guessed from the labels"] = None,
    test: Annotated[float | str, "share drawn by a hash of the id, or a column of 0 and 1"] = 0.25,
    numbers: Annotated[Sequence[str], "columns that are numbers"] = (),
    categories: Annotated[Sequence[str], "columns that are text, whatever they look like"] = (),
    drop: Annotated[Sequence[str], "columns to leave out"] = (),
    rare: Annotated[Count, "categories in fewer training rows become other"] = 1,
    ids: Annotated[IdKind, "hashed: HMAC-SHA256 of the id with a salt, on reading"] = "plain",
    salt: Annotated[str | None, "a secret text that all silos share, for hashed ids"] = None,
    show_ids: Annotated[bool, "whether errors may show ids"] = False,
    min_match: Annotated[
        Share, "the least share of the smallest silo's ids that must be in every silo"
    ] = LEAST,
    name: str = "tables",
) -> Federated:
    """Read and prepare {silo: {client: path}}, or {silo: path} for a silo of one client."""
    _check_settings(id, label, test)
    split = test if isinstance(test, str) else None
    wanted = ReadOptions(
        id,
        text=frozenset([*categories, *([split] if split else [])]),
        drop=frozenset(drop) - {label, split},
        salt=_salt(ids, salt),
    )
    sheets = _read(files, lambda silo: wanted)
    labelled = silos_with(sheets, label, "label")
    for silo, clients in sheets.items():
        check_schema(silo, clients, drop)
    features = features_of(sheets, {label, split}, numbers, categories, drop)
    tables: dict[str, dict[str, Table]] = {}
    for silo, clients in sheets.items():
        kinds = kinds_of(clients, features[silo], numbers, categories)
        tables[silo] = {name: table_of(sheet, kinds) for name, sheet in clients.items()}
    labels = _labels(sheets, label, labelled)
    refuse_text(label, labels, goal)
    common, overlap, notes = _align(sheets, labels, show_ids)
    overlap.check(min_match)
    used = {at: _cells(cells, common.rows[at.silo][at.name]) for at, cells in labels.items()}
    target, more = find_target(label, used, goal)
    notes += more
    testing = (
        split_by_column(sheets, common, split) if split else split_by_hash(common.ids, float(test))
    )
    if testing.all():
        raise DataError(f"all {len(testing)} common rows are for testing; none are left to train")
    if test and not testing.any():
        notes.append(f"none of the {len(testing)} common rows is for testing")
    train = common.select(~testing)
    silos = {}
    for silo, of_clients in tables.items():
        silos[silo], more = _fit(silo, of_clients, train[silo], rare)
        notes += more
    preparation = Preparation(silos, target.goal, target.classes, id)
    placed = _place(sheets, tables, train, preparation, labels)
    tested = None
    if testing.any():
        tested = _place(sheets, tables, common.select(testing), preparation, labels)
    return Federated(
        name,
        target.goal,
        placed,
        tested,
        target.classes,
        {silo: made.columns for silo, made in silos.items()},
        tuple(notes),
        {
            f"{s}/{c}": sheet.checksum
            for s, of_clients in sheets.items()
            for c, sheet in of_clients.items()
        },
        preparation,
        overlap=overlap,
    )


@checked("files")
def read_rows(
    files: TablePaths,
    preparation: Preparation,
    *,
    id: str | None = None,
    label: str | None = None,
    ids: IdKind = "plain",
    salt: str | None = None,
    show_ids: bool = False,
    min_match: Share = LEAST,
    notes: list[str] | None = None,
) -> Placement:
    """Read new tables and prepare them with a fitted preparation. Columns that are not needed are
    ignored. `id`: the column of ids, if not that of the training tables. `label`: the column of
    labels; none: the rows have no labels. `notes` gets a line for each reason to drop rows. A share
    below `min_match` is refused, as by `read_tables`."""
    id = id or preparation.id
    needed = {silo: {step.name for step in made.steps} for silo, made in preparation.silos.items()}
    text = {
        silo: frozenset(step.name for step in made.steps if isinstance(step, OneHot))
        for silo, made in preparation.silos.items()
    }
    if set(files) != set(needed):
        raise DataError(f"files for silos {sorted(files)}, the model has {sorted(needed)}")
    secret = _salt(ids, salt)
    also = [label] if label else []
    sheets = _read(
        files,
        lambda silo: ReadOptions(
            id, text[silo], only=frozenset([*needed[silo], *also]), salt=secret
        ),
    )
    tables: dict[str, dict[str, Table]] = {}
    for silo, clients in sheets.items():
        tables[silo] = {}
        kinds: dict[str, ColumnKind] = {
            column: "text" if column in text[silo] else "number" for column in needed[silo]
        }
        for name, sheet in clients.items():
            preparation[silo].check(sheet.names, f"{sheet.where}: {sheet.path.name}")
            tables[silo][name] = table_of(sheet, kinds)
    labels: Labels = {}
    if label is not None:
        labels = _labels(sheets, label, silos_with(sheets, label, "label"))
        refuse_text(label, labels, preparation.goal)
    common, overlap, dropped = _align(sheets, labels, show_ids)
    overlap.check(min_match)
    if notes is not None:
        notes += dropped
    return _place(sheets, tables, common.rows, preparation, labels)


def _check_settings(id: str, label: str, test: float | str) -> None:
    named = [id, label, *([test] if isinstance(test, str) else [])]
    if not all(named):
        raise SettingError("the id, label and test columns must have names")
    if len(set(named)) < len(named):
        raise SettingError(f"the id, label and test columns must differ: {', '.join(named)}")
    if not isinstance(test, str) and not 0 <= test < 1:
        raise SettingError(f"test must be a share from 0 to below 1, or a column, not {test}")


def _salt(ids: str, salt: str | None) -> str | None:
    if ids == "hashed" and not salt:
        raise SettingError("hashed ids need a salt: a secret text that all silos share")
    if ids == "plain" and salt is not None:
        raise SettingError("a salt is of use only with ids='hashed'")
    return salt


def _read(files: TablePaths, wanted: Callable[[str], ReadOptions]) -> dict[str, dict[str, Sheet]]:
    """Read every file: {silo: {client: Sheet}}."""
    if not isinstance(files, Mapping):
        wanted_form = "{silo: {client: path}} or {silo: path}"
        raise SettingError(f"files: {wanted_form} is expected, not {shown(files)}")
    paths: dict[str, dict[str, Path]] = {}
    for silo, files_of_silo in files.items():
        clients = (
            files_of_silo if isinstance(files_of_silo, Mapping) else {ONLY_CLIENT: files_of_silo}
        )
        for name, path in clients.items():
            if not isinstance(path, str | PathLike):
                raise SettingError(f"client {silo}/{name}: a path is expected, not {shown(path)}")
        paths[str(silo)] = {str(name): Path(path) for name, path in clients.items()}
    Topology({silo: tuple(clients) for silo, clients in paths.items()})
    return {
        silo: {
            name: read_sheet(path, title(Client(silo, name)), wanted(silo))
            for name, path in clients.items()
        }
        for silo, clients in paths.items()
    }


def _labels(sheets: Sheets, label: str, silos: Sequence[str]) -> Labels:
    return {
        Client(silo, name): sheet.columns[label]
        for silo in silos
        for name, sheet in sheets[silo].items()
    }


def _cells(cells: Cells, rows: Ints) -> Cells:
    return Cells(cells.kind, take(cells.values, rows))


def _rows(table: Table, rows: Ints) -> Table:
    return {name: take(column, rows) for name, column in table.items()}


def _align(sheets: Sheets, labels: Labels, show_ids: bool) -> tuple[CommonRows, Overlap, list[str]]:
    """The common rows, how well ids match, and notes on the rows that are dropped."""
    notes = []
    rows: RowNumbers = {}
    for silo, clients in sheets.items():
        refuse_duplicates(silo, clients, show_ids)
        rows[silo] = {name: np.arange(len(sheet)) for name, sheet in clients.items()}
    for client, cells in labels.items():
        rows[client.silo][client.name] = np.flatnonzero(has_label(cells))
    for silo, clients in sheets.items():
        size = sum(map(len, clients.values()))
        lost = size - sum(map(len, rows[silo].values()))
        if lost:
            notes.append(f"{silo}: {lost} of {size} rows dropped: they have no label")
    common, overlap, more = keep_common(sheets, rows)
    return common, overlap, notes + more


def _fit(
    silo: str, tables: Mapping[str, Table], rows: Mapping[str, Ints], rare: int
) -> tuple[SiloPreparation, list[str]]:
    """A silo's preparation, from the sum of its clients' summaries of their training rows."""
    summaries = [Summary.of(_rows(table, rows[name])) for name, table in tables.items()]
    made, notes = fit(silo, reduce(add, summaries), rare)
    if not made.steps:
        raise DataError(f"silo {silo} has no columns to learn from, besides ids and labels")
    empty = [name for name, numbers in rows.items() if not len(numbers)]
    return made, notes + [f"client {silo}/{name} has no training rows" for name in empty]


def _place(
    sheets: Sheets, tables: SiloTables, rows: RowNumbers, preparation: Preparation, labels: Labels
) -> Placement:
    """A placement of some rows of every client, prepared."""
    target = Target(preparation.goal, preparation.classes)
    shards: dict[str, dict[str, Shard]] = {}
    for silo, clients in sheets.items():
        shards[silo] = {}
        for name, sheet in clients.items():
            own_rows, cells = rows[silo][name], labels.get(Client(silo, name))
            shards[silo][name] = Shard([], None)
            if len(own_rows):
                x = preparation.apply(silo, _rows(tables[silo][name], own_rows), sheet.where)
                y = None if cells is None else target.encode(_cells(cells, own_rows), sheet.where)
                shards[silo][name] = Shard(sheet.ids[own_rows], x, y)
    return Placement.of(shards)
