"""The line of a key in a TOML text, for error messages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)
HEADER = re.compile(r"^\s*\[\[?\s*(.+?)\s*\]\]?\s*(?:#.*)?$")


def _parts(dotted: str) -> tuple[str, ...]:
    """The keys of a dotted key such as a."b.c".d, by TOML's own rules."""
    nested: Mapping[str, object] = tomllib.loads(f"{dotted} = 0")
    parts: list[str] = []
    while nested:
        key, inner = next(iter(nested.items()))
        parts.append(key)
        nested = inner if isinstance(inner, Mapping) else {}
    return tuple(parts)


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """{path of a table or key: its line, from 1} of a valid TOML text. Keys in an inline table have
    the line of the table."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            if header := HEADER.match(line):
                table = _parts(header[1])
                lines.setdefault(table, number)
            elif key := KEY.match(line):
                lines.setdefault((*table, *_parts(key[1])), number)
        except tomllib.TOMLDecodeError:  # text inside a long string that looks like a key
            continue
    return lines


def line_of(path: tuple[str, ...], lines: Mapping[tuple[str, ...], int]) -> int | None:
    """The line of a key, or of the nearest table around it."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None
