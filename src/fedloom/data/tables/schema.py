"""Which columns there are, and of which kind: the same at all clients of a silo."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

import numpy as np

from ...core.errors import DataError, SettingError, nearest
from .columns import Kind, Table, Words, as_floats, as_words, is_number, not_numbers
from .files import Sheet

Sheets = Mapping[str, Mapping[str, Sheet]]  # {silo: {client: file}}


def silos_with(sheets: Sheets, column: str, what: str) -> list[str]:
    """The silos all of whose files have a column; an error if there are none, or if only some
    files of a silo have it."""
    found = []
    for silo, clients in sheets.items():
        without = [name for name, sheet in clients.items() if column not in sheet.names]
        if without and len(without) < len(clients):
            raise DataError(
                f"silo {silo}: {what} column {column!r} is missing at {', '.join(without)}; all "
                "clients of a silo must have it, or none"
            )
        if not without:
            found.append(silo)
    if not found:
        hint = nearest(column, _all_names(sheets))
        raise DataError(f"no silo has the {what} column {column!r}{hint}")
    return found


def _all_names(sheets: Sheets) -> set[str]:
    return {name for clients in sheets.values() for one in clients.values() for name in one.names}


def check_schema(silo: str, clients: Mapping[str, Sheet], drop: Collection[str]) -> None:
    """But for dropped ones, all files of a silo must have the columns that most of them have, in
    any order."""
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
    """The columns of each silo to learn from, in the order of its first file."""
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
) -> dict[str, Kind]:
    """Whether each column is numbers or text, the same at all clients of a silo; `numbers` and
    `categories` are so whatever they look like."""
    kinds: dict[str, Kind] = {}
    for name in names:
        if name in numbers or name in categories:
            kinds[name] = "number" if name in numbers else "text"
            continue
        held = {client: sheet.columns[name] for client, sheet in clients.items()}
        wordy = {c: cells.values for c, cells in held.items() if isinstance(cells.values, Words)}
        counted = [c for c, cells in held.items() if cells.kind in ("number", "flag")]
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


def _mostly_numbers(columns: Iterable[Words]) -> bool:
    """Whether a column of text looks like numbers with slips in it."""
    seen = looks = 0
    for words in columns:
        numeric = [is_number(name.replace(",", ".")) for name in words.names]
        seen += int((words.codes >= 0).sum())
        looks += int(np.array([*numeric, False])[words.codes].sum())
    return 2 * looks > seen


def table_of(sheet: Sheet, kinds: Mapping[str, Kind]) -> Table:
    """A client's columns, each of the kind it has in its silo."""
    table = {}
    for name, kind in kinds.items():
        values = sheet.columns[name].values
        where = f"{sheet.where}: {sheet.path.name}, column {name!r}"
        table[name] = as_words(values) if kind == "text" else as_floats(values, where)
    return table
