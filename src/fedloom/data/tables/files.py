"""One client's file, CSV or Parquet, as typed columns; whatever is wrong with it is a DataError.

Messages name the file, the column and the row; they never show a cell, since that is somebody's.
Rows are counted from 1, after the header.
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
    """What one client's file holds. `names` are all its columns but the id, in their order; `plain`
    the ids before hashing, which are compared where `ids` do not match, and go no further."""

    where: str  # "client bank/north"
    path: Path
    checksum: str
    ids: npt.NDArray[np.str_] = field(repr=False)
    names: tuple[str, ...]
    columns: dict[str, Cells]  # those that were asked for; their cells are not shown
    plain: npt.NDArray[np.str_] = field(repr=False)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Wanted:
    """How to read: which column is the id, which columns are text whatever they look like, which
    are left out (or, with `only`, which are read), and the salt ids are hashed with."""

    id: str
    text: frozenset[str] = frozenset()
    drop: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    salt: str | None = field(default=None, repr=False)

    def takes(self, name: str) -> bool:
        if name == self.id or name in self.drop:
            return False
        return self.only is None or name in self.only


def read_sheet(path: Path, where: str, wanted: Wanted) -> Sheet:
    """Read one file."""
    content = _content(path, where)
    try:
        if content[:4] == b"PAR1" or path.suffix in (".parquet", ".pq"):
            table, comma = _parquet(content, path, where), False
        else:
            table, comma = _csv(content, path, where, wanted)
        names = [name for name in table.column_names if name != wanted.id]
        _check_names(table.column_names, path, where, wanted)
        told = f"{where}: {path.name}, id column {wanted.id!r}"
        with reading_column(told):
            ids = arrow_ids(table[wanted.id], told)
        columns = {}
        for name in filter(wanted.takes, names):
            told = f"{where}: {path.name}, column {name!r}"
            with reading_column(told):
                columns[name] = arrow_cells(table[name], name in wanted.text, comma, told)
    except UnicodeDecodeError:
        raise DataError(_not_utf8(path, where)) from None
    plain = known = np.array(ids, dtype=str)
    if wanted.salt is not None:
        known = np.array(hashed(ids, wanted.salt), dtype=str)
    checksum = hashlib.sha256(content).hexdigest()
    return Sheet(where, path, checksum, known, tuple(names), columns, plain)


def hashed(ids: list[str], salt: str) -> list[str]:
    """HMAC-SHA256 of each id: equal ids stay equal, and who lacks the salt cannot try them out."""
    key = salt.encode()
    return [hmac.digest(key, one.encode(), "sha256").hex() for one in ids]


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
        except (OSError, EOFError, zlib.error):  # their messages may quote what they met
            raise DataError(f"{where}: {path} is damaged gzip; pack or copy it again") from None
    if not content.strip():
        raise DataError(f"{where}: {path} is empty; a client without rows still needs a header")
    return content


def _not_utf8(path: Path, where: str) -> str:
    return f"{where}: {path} is not UTF-8 text; save it as CSV in UTF-8, or as Parquet"


def _of_arrow(content: bytes) -> Any:
    """A copy in memory of Arrow's own, and no Python object is given to its readers besides.

    Threads of Arrow let go of what they read when they get round to it, perhaps only when Python is
    on its way out. If that is memory of Python's they ask for its lock, and Python ends a thread
    that asks so late: the process aborts."""
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


def _csv(content: bytes, path: Path, where: str, wanted: Wanted) -> tuple[Any, bool]:
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
    bare = re.sub(r'"[^"]*"', "", header)
    delimiter = max(",;\t", key=bare.count)
    raw = next(csv.reader(io.StringIO(header), delimiter=delimiter), [])
    _check_names([name.strip() for name in raw], path, where, wanted)
    types = {
        name: pa.string()
        for name in raw
        if name.strip() == wanted.id or name.strip() in wanted.text
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
    """Count the lines that have more or fewer cells than the header, and name the first."""
    rows = csv.reader(io.StringIO(text, newline=None), delimiter=delimiter)
    header, wrong = 0, []
    start = 1  # of the next row, which may go over several lines
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


def _check_names(names: list[str], path: Path, where: str, wanted: Wanted) -> None:
    """The id column is there and no name twice. Unlike elsewhere, other names are not shown:
    in a file without a header they would be somebody's row."""
    if wanted.id not in names:
        same = {together(name): name for name in names}.get(together(wanted.id))
        close = difflib.get_close_matches(wanted.id, names, n=1)
        hint = "say which it is; is there a header?"
        if same:
            hint = f"did you mean {same!r}?"
        elif close:
            hint = f"is column {names.index(close[0]) + 1} meant? It is nearly called so"
        raise DataError(f"{where}: {path} has no id column {wanted.id!r}; {hint}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where}: {path} has several columns {twice[0]!r}; rename them")
    for name in UNNAMED:
        if name in names and wanted.takes(name) and wanted.only is None:
            raise DataError(
                f"{where}: column {names.index(name) + 1} of {path} has no name (an index saved "
                f"by pandas?); save it with index=False, or name {name!r} in `drop`"
            )
