"""Columns of a table in memory, and their conversion from pyarrow's.

A column of numbers is a float64 array, NaN where a cell is missing. A column of text is a
`TextColumn`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ...core.errors import DataError, reason
from ...core.rng import Floats, Ints

ColumnKind = Literal["number", "flag", "text", "empty"]

LONGEST_ID = 200
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class TextColumn:
    """A column of text: row i is `names[codes[i]]`. The code of a missing cell is -1."""

    names: tuple[str, ...] = field(repr=False)
    codes: Ints = field(repr=False)

    def __len__(self) -> int:
        return len(self.codes)


Column = Floats | TextColumn
Table = Mapping[str, Column]


def take(column: Column, rows: Any) -> Column:
    """Some rows of a column."""
    if isinstance(column, TextColumn):
        return TextColumn(column.names, column.codes[rows])
    return column[rows]


def as_column(values: Any) -> Column:
    """A column from a list or an array of numbers or text; None and NaN are missing cells."""
    if isinstance(values, TextColumn):
        return values
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    cells = [None if cell is None or cell != cell else cell for cell in array.tolist()]
    if all(cell is None or isinstance(cell, int | float) for cell in cells):
        return np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
    text = ["" if cell is None else str(cell).strip() for cell in cells]
    names = sorted(set(text) - {""})
    places = {name: place for place, name in enumerate(names)}
    return TextColumn(
        tuple(names), np.array([places.get(cell, -1) for cell in text], dtype=np.int64)
    )


def as_text(column: Column) -> TextColumn:
    """A column as text; whole numbers without a decimal point."""
    if isinstance(column, TextColumn):
        return column
    missing = np.isnan(column)
    known, codes = np.unique(column[~missing], return_inverse=True)
    all_codes = np.full(len(column), -1)
    all_codes[~missing] = codes
    return TextColumn(tuple(number_text(value) for value in known.tolist()), all_codes)


def number_text(value: float) -> str:
    """A number as text: 3, not 3.0."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def is_number(text: str) -> bool:
    return NUMBER.fullmatch(text) is not None


def not_numbers(words: TextColumn) -> Ints:
    """The rows whose cells are neither numbers nor missing."""
    wrong = np.array([not is_number(name) for name in words.names] + [False])
    return np.flatnonzero(wrong[words.codes])


def as_floats(column: Column, where: str) -> Floats:
    """A column as numbers, or an error that counts the cells that are not finite numbers."""
    if isinstance(column, TextColumn):
        wrong = not_numbers(column)
        if len(wrong):
            raise DataError(
                f"{where}: {len(wrong)} of {len(column)} cells are not numbers (the first in row "
                f"{wrong[0] + 1}); correct them or leave them empty"
            )
        numbers = [float(name) if is_number(name) else np.nan for name in column.names]
        column = np.array([*numbers, np.nan])[column.codes]
    endless = int(np.isinf(column).sum())
    if endless:
        raise DataError(f"{where}: {endless} cells are infinite; correct them or leave them empty")
    return column


@dataclass(frozen=True)
class Cells:
    """A column by its kind in the file: numbers, flags (1 and 0), text, or empty."""

    kind: ColumnKind
    values: Column = field(repr=False)


@contextmanager
def reading_column(where: str) -> Iterator[None]:
    """An Arrow error inside becomes a DataError without Arrow's message, which quotes cells."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as problem:
        raise DataError(
            f"{where}: cannot be read ({reason(problem)}); convert it or name it in `drop`"
        ) from None


def arrow_ids(column: Any, where: str) -> list[str]:
    """Ids as text, stripped of blanks; whole numbers in decimal."""
    import pyarrow as pa
    from pyarrow import compute as pc

    column = _decoded(column)
    if pa.types.is_floating(column.type):
        numbers = column.to_numpy(zero_copy_only=False)
        if not (np.isnan(numbers) | (numbers % 1 == 0)).all():
            raise DataError(f"{where}: ids must be whole numbers or text, not fractions")
        column = pa.array(numbers, from_pandas=True).cast(pa.int64(), safe=False)
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    if not _is_text(column.type) and not pa.types.is_null(column.type):
        raise DataError(f"{where}: ids must be whole numbers or text, not {column.type}")
    ids = pc.utf8_trim_whitespace(column.cast(pa.string()))
    missing = ids.null_count + (pc.sum(pc.equal(ids, "")).as_py() or 0)
    if missing:
        raise DataError(f"{where}: {missing} of {len(ids)} ids are missing; give them or take out")
    if len(ids) and pc.max(pc.utf8_length(ids)).as_py() > LONGEST_ID:
        raise DataError(f"{where}: ids are longer than {LONGEST_ID} characters; is it the id?")
    return ids.to_pylist()


def arrow_cells(column: Any, text: bool, comma: bool, where: str) -> Cells:
    """A column by its type in the file. Text that is all numbers, or all true and false, is
    converted."""
    import pyarrow as pa

    column = _decoded(column)
    kind = column.type
    if pa.types.is_null(kind) or column.null_count == len(column):
        return Cells("empty", np.full(len(column), np.nan))
    if pa.types.is_temporal(kind) and not text:
        raise DataError(
            f"{where}: dates and times cannot be used as they are; convert the column to numbers "
            "(days since some date), or name it in `drop` or `categories`"
        )
    if pa.types.is_boolean(kind):
        flags = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
        words = _words(column.cast(pa.string())) if text else None
        return Cells("text", words) if words else Cells("flag", flags)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        if not text:
            return _numbers(numbers, where)
        if pa.types.is_floating(kind) and (numbers[~np.isnan(numbers)] % 1 == 0).all():
            column = pa.array(numbers, from_pandas=True).cast(pa.int64(), safe=False)
        return Cells("text", _words(column.cast(pa.string())))
    if text and pa.types.is_temporal(kind):
        return Cells("text", _words(column.cast(pa.string())))
    if not _is_text(kind):
        if pa.types.is_binary(kind):
            raise DataError(f"{where}: not UTF-8 text; save the file in UTF-8 or drop the column")
        raise DataError(f"{where}: {kind} cannot be made into numbers; name it in `drop`")
    words = _words(column)
    return Cells("text", words) if text else _guessed(words, comma, where)


def _numbers(numbers: Any, where: str) -> Cells:
    values = as_floats(np.asarray(numbers, dtype=np.float64), where)
    return Cells("empty" if np.isnan(values).all() else "number", values)


def _guessed(words: TextColumn, comma: bool, where: str) -> Cells:
    """Text as numbers or flags, if all cells are."""
    if not words.names:
        return Cells("empty", np.full(len(words), np.nan))
    low = [name.lower() for name in words.names]
    if set(low) <= {"true", "false"}:
        return Cells("flag", np.array([*(name == "true" for name in low), np.nan])[words.codes])
    if comma:
        points = tuple(name.replace(",", ".") for name in words.names)
        if all(map(is_number, points)):
            words = TextColumn(points, words.codes)
    if all(map(is_number, words.names)):
        return _numbers(as_floats(words, where), where)
    return Cells("text", words)


def _words(column: Any) -> TextColumn:
    """A column of strings, stripped of blanks; empty ones are missing."""
    import pyarrow as pa
    from pyarrow import compute as pc

    column = pc.utf8_trim_whitespace(column.cast(pa.string()))
    column = pc.if_else(pc.equal(column, ""), None, column)
    coded = column.dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return TextColumn(tuple(coded.dictionary.to_pylist()), codes)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _decoded(column: Any) -> Any:
    """As one array without a dictionary."""
    import pyarrow as pa

    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # older versions, or none at all
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
