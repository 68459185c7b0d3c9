"""Names and kinds of columns. They must be the same at all clients of a silo."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

import numpy as np

from ...core.errors import DataError, SettingError, nearest
from .columns import ColumnKind, Table, TextColumn, as_floats, as_text, is_number, not_numbers
from .files import Sheet

Sheets = Mapping[str, Mapping[str, Sheet]]  # {silo: {client: file}}


def silos_with(sheets: Sheets, column: str, what: str) -> list[str]:
    """The silos that have a column. An error if there are none, or if only some files of a silo
    have it."""
    silos = []
    for silo, clients in sheets.items():
        without = [name for name, sheet in clients.items() if column not in sheet.names]
        if without and len(without) < len(clients):
            raise DataError(
                f"silo {silo}: {what} column {column!r} is missing at {', '.join(without)}; all "
                "clients of a silo must have it, or none"
            )
        if not without:
            silos.append(silo)
    if not silos:
        hint = nearest(column, _all_names(sheets))
        raise DataError(f"no silo has the {what} column {column!r}{hint}")
    return silos


def _all_names(sheets: Sheets) -> set[str]:
    return {
        name for clients in sheets.values() for sheet in clients.values() for name in sheet.names
    }


def check_schema(silo: str, clients: Mapping[str, Sheet], drop: Collection[str]) -> None:
    """Refuse a file whose columns, without dropped ones, differ from those of most files of its
    silo. Their order does not matter."""
    have = {client: set(sheet.names).difference(drop) for client, sheet in clients.items()}
    (usual, _), *_ = Counter(map(frozenset, have.values())).most_common(1)
    for client, sheet in clients.items():
        lacks, extra = sorted(usual - have[client]), sorted(have[client] - usual)
        if not lacks and not extra:
            continue
        parts = [f"lacks {', '.join(map(repr, lacks))}"] if lacks else []
        parts += [f"alone has {', '.join(map(repr, extra))}"] if extra else []
        close = difflib.get_close_matches(lacks[0], extra, n=1) if lacks else []
        hint = f" (is {close[0]!r} meant as {lacks[0]!r}?)" if close else ""
        raise DataError(
            f"{sheet.where}: {sheet.path.name} {' and '.join(parts)}{hint}; give all files of "
            f"silo {silo} the same columns"
        )


def features_of(
    sheets: Sheets,
    special: Set[str | None],
    numbers: Sequence[str],
    categories: Sequence[str],
    drop: Sequence[str],
) -> dict[str, list[str]]:
    """The feature columns of each silo, in the order of its first file."""
    known = _all_names(sheets) - special
    given = {"numbers": numbers, "categories": categories, "drop": drop}
    taken: dict[str, str] = {}
    for option, names in given.items():
        for name in names:
            if name not in known:
                raise SettingError(f"{option}: no feature column {name!r}{nearest(name, known)}")
            if taken.setdefault(name, option) != option:
                raise SettingError(f"column {name!r} is named in both {taken[name]} and {option}")
    first = {silo: next(iter(clients.values())).names for silo, clients in sheets.items()}
    used = known.difference(drop)
    return {silo: [name for name in names if name in used] for silo, names in first.items()}


def kinds_of(
    clients: Mapping[str, Sheet],
    names: Iterable[str],
    numbers: Collection[str],
    categories: Collection[str],
) -> dict[str, ColumnKind]:
    """Whether each column of a silo is numbers or text. `numbers` and `categories` name columns
    whose kind the user has set."""
    kinds: dict[str, ColumnKind] = {}
    for name in names:
        if name in numbers or name in categories:
            kinds[name] = "number" if name in numbers else "text"
            continue
        cells_of = {client: sheet.columns[name] for client, sheet in clients.items()}
        wordy = {
            c: cells.values for c, cells in cells_of.items() if isinstance(cells.values, TextColumn)
        }
        counted = [c for c, cells in cells_of.items() if cells.kind in ("number", "flag")]
        kinds[name] = "text" if wordy else "number"
        if not wordy or not (counted or _mostly_numbers(wordy.values())):
            continue
        client, words = next(iter(wordy.items()))
        wrong = not_numbers(words)
        but = f", unlike those of client {counted[0]}" if counted else ""
        raise DataError(
            f"{clients[client].where}: column {name!r} has {len(wrong)} cells of {len(words)} that "
            f"are not numbers (the first in row {wrong[0] + 1} of {clients[client].path.name})"
            f"{but}; correct them, or name it in `categories`"
        )
    return kinds


def _mostly_numbers(columns: Iterable[TextColumn]) -> bool:
    """Whether most cells of a text column are numbers: the others are probably mistakes."""
    seen = numeric_cells = 0
    for words in columns:
        numeric = [is_number(name.replace(",", ".")) for name in words.names]
        seen += int((words.codes >= 0).sum())
        numeric_cells += int(np.array([*numeric, False])[words.codes].sum())
    return 2 * numeric_cells > seen


def table_of(sheet: Sheet, kinds: Mapping[str, ColumnKind]) -> Table:
    """A client's columns, converted to their kinds in the silo."""
    table = {}
    for name, kind in kinds.items():
        values = sheet.columns[name].values
        where = f"{sheet.where}: {sheet.path.name}, column {name!r}"
        table[name] = as_text(values) if kind == "text" else as_floats(values, where)
    return table
