"""Reads one client's file, CSV or Parquet, as typed columns. Every problem is a DataError.

Messages name the file, the column and the row. They never show a cell, which may be private. Rows
are counted from 1, after the header.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import hashlib
import hmac
import io
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.errors import DataError
from .columns import Cells, arrow_cells, arrow_ids, reading_column
from .id_forms import together

UNNAMED = ("", "__index_level_0__")  # how pandas saves an index without a name


@dataclass(frozen=True)
class Sheet:
    """The content of one client's file. `names`: all its columns except the id, in their order.
    `plain`: the ids before hashing, for advice where ids do not match; they are not sent."""

    where: str  # "client bank/north"
    path: Path
    checksum: str
    ids: npt.NDArray[np.str_] = field(repr=False)
    names: tuple[str, ...]
    columns: dict[str, Cells]  # the requested ones; their repr shows no cells
    plain: npt.NDArray[np.str_] = field(repr=False)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class ReadOptions:
    """How to read a file. `id`: the column of ids; `text`: columns to read as text, even if they
    look like numbers; `drop`: columns to leave out; `only`: the columns to read (none: all);
    `salt`: for hashed ids."""

    id: str
    text: frozenset[str] = frozenset()
    drop: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    salt: str | None = field(default=None, repr=False)

    def takes(self, name: str) -> bool:
        if name == self.id or name in self.drop:
            return False
        return self.only is None or name in self.only


def read_sheet(path: Path, where: str, options: ReadOptions) -> Sheet:
    """Read one file."""
    content = _content(path, where)
    try:
        if content[:4] == b"PAR1" or path.suffix in (".parquet", ".pq"):
            table, comma = _parquet(content, path, where), False
        else:
            table, comma = _csv(content, path, where, options)
        names = [name for name in table.column_names if name != options.id]
        _check_names(table.column_names, path, where, options)
        place = f"{where}: {path.name}, id column {options.id!r}"
        with reading_column(place):
            ids = arrow_ids(table[options.id], place)
        columns = {}
        for name in filter(options.takes, names):
            place = f"{where}: {path.name}, column {name!r}"
            with reading_column(place):
                columns[name] = arrow_cells(table[name], name in options.text, comma, place)
    except UnicodeDecodeError:
        raise DataError(_not_utf8(path, where)) from None
    plain = known = np.array(ids, dtype=str)
    if options.salt is not None:
        known = np.array(hashed(ids, options.salt), dtype=str)
    checksum = hashlib.sha256(content).hexdigest()
    return Sheet(where, path, checksum, known, tuple(names), columns, plain)


def hashed(ids: list[str], salt: str) -> list[str]:
    """HMAC-SHA256 of each id. Equal ids stay equal; without the salt, ids cannot be guessed."""
    key = salt.encode()
    return [hmac.digest(key, id.encode(), "sha256").hex() for id in ids]


def _content(path: Path, where: str) -> bytes:
    """The bytes of a file, unpacked if gzipped."""
    if not path.exists():
        raise DataError(f"{where}: there is no file {path}")
    if not path.is_file():
        raise DataError(f"{where}: {path} is not a file; give one CSV or Parquet file a client")
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise DataError(f"{where}: {path} cannot be read ({problem.strerror})") from None
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error):  # their messages may quote cells
            raise DataError(f"{where}: {path} is damaged gzip; pack or copy it again") from None
    if not content.strip():
        raise DataError(f"{where}: {path} is empty; a client without rows still needs a header")
    return content


def _not_utf8(path: Path, where: str) -> str:
    return f"{where}: {path} is not UTF-8 text; save it as CSV in UTF-8, or as Parquet"


def _of_arrow(content: bytes) -> Any:
    """A copy in memory that Arrow owns, so that Arrow's readers hold no Python object.

    Arrow's threads may release what they read as late as at Python's exit. To release Python memory
    they need the GIL, and Python kills a thread that asks for it then: the process aborts."""
    import pyarrow as pa

    copy = pa.BufferOutputStream()
    copy.write(content)
    return pa.BufferReader(copy.getvalue())


def _parquet(content: bytes, path: Path, where: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(_of_arrow(content))
        table.validate(full=True)
        return table
    except (pa.ArrowException, OSError, ValueError):
        raise DataError(
            f"{where}: {path} is damaged or not Parquet (cut short?); copy it again"
        ) from None


def _csv(content: bytes, path: Path, where: str, options: ReadOptions) -> tuple[Any, bool]:
    """The table, and whether its numbers may have a decimal comma."""
    import pyarrow as pa
    from pyarrow import csv as pacsv

    if content[:4] == b"PK\x03\x04":
        raise DataError(f"{where}: {path} is an Excel or zip file; save it as CSV")
    content = content.removeprefix(b"\xef\xbb\xbf")
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(_not_utf8(path, where))
    if b"\0" in content:
        raise DataError(f"{where}: {path} is neither CSV nor Parquet")
    lines = content.lstrip(b"\r\n")
    lines.decode("utf-8")  # all of it: the reader's own checks are by column
    header = re.split(rb"[\r\n]", lines, maxsplit=1)[0].decode("utf-8")
    unquoted = re.sub(r'"[^"]*"', "", header)
    delimiter = max(",;\t", key=unquoted.count)
    raw = next(csv.reader(io.StringIO(header), delimiter=delimiter), [])
    _check_names([name.strip() for name in raw], path, where, options)
    types = {
        name: pa.string()
        for name in raw
        if name.strip() == options.id or name.strip() in options.text
    }
    try:
        table = pacsv.read_csv(
            _of_arrow(lines + b"\n"),
            parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(column_types=types, strings_can_be_null=True),
        )
    except pa.ArrowException:
        _refuse_ragged(content.decode("utf-8"), delimiter, f"{where}: {path}")
        raise DataError(f"{where}: {path} cannot be read as CSV; check its quotes") from None
    stripped = [name.strip() for name in table.column_names]
    return table.rename_columns(stripped), delimiter == ";"


def _refuse_ragged(text: str, delimiter: str, where: str) -> None:
    """A DataError that counts the lines with more or fewer cells than the header."""
    rows = csv.reader(io.StringIO(text, newline=None), delimiter=delimiter)
    header, wrong = 0, []
    start = 1  # line of the next row; a row may span several lines
    with suppress(csv.Error):  # such as a quote that is never closed
        for row in rows:
            header = header or len(row)
            if row and len(row) != header:
                wrong.append((start, len(row)))
            start = rows.line_num + 1
    if wrong:
        line, cells = wrong[0]
        raise DataError(
            f"{where} has {len(wrong)} lines that do not fit its header: line {line} has {cells} "
            f"cells, the header {header}"
        ) from None


def _check_names(names: list[str], path: Path, where: str, options: ReadOptions) -> None:
    """Refuse a file without the id column, or with a name twice. Other names are not shown: in a
    file without a header they are somebody's row."""
    if options.id not in names:
        same = {together(name): name for name in names}.get(together(options.id))
        close = difflib.get_close_matches(options.id, names, n=1)
        hint = "say which it is; is there a header?"
        if same:
            hint = f"did you mean {same!r}?"
        elif close:
            hint = f"is column {names.index(close[0]) + 1} meant? It is nearly called so"
        raise DataError(f"{where}: {path} has no id column {options.id!r}; {hint}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where}: {path} has several columns {twice[0]!r}; rename them")
    for name in UNNAMED:
        if name in names and options.takes(name) and options.only is None:
            raise DataError(
                f"{where}: column {names.index(name) + 1} of {path} has no name (an index saved "
                f"by pandas?); save it with index=False, or name {name!r} in `drop`"
            )
