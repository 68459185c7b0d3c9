"""Writes TOML: tables of tables, as in run files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dumps(tables: Mapping[str, Any]) -> str:
    """TOML text of tables of text, numbers and lists. `tomllib.loads` gives the same tables again,
    with silos in the same order."""
    return "\n".join(_lines(tables, ())) + "\n"


def inline(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"TOML has no {type(value).__name__}")


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The table's own keys, then its tables, each under its header. TOML cannot return to a table
    after another header, so a silo that is a table is written inline if one that is not follows."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path[-1:] == ("silos",) and plain:
        keys = list(table)
        plain = {key: table[key] for key in keys[: keys.index(list(plain)[-1]) + 1]}
    if path and (plain or not table):
        yield f"[{'.'.join(map(_key, path))}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {inline(value)}"
    if plain:
        yield ""
    for key, value in table.items():
        if key not in plain:
            yield from _lines(value, (*path, key))


def _key(key: Any) -> str:
    text = str(key)
    return text if PLAIN_KEY.fullmatch(text) else inline(text)
