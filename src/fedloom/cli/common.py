"""What several verbs share: options, tables, JSON."""

from __future__ import annotations

import argparse
import functools
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import SettingError
from ..core.extras import extra_of

Verbs = Any


def add_verb(
    verbs: Verbs, name: str, action: Callable[[argparse.Namespace], None], help: str, about: str
) -> argparse.ArgumentParser:
    """A verb with its own --help."""
    verb: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=help,
        description=textwrap.dedent(about).strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(action=action)
    return verb


def of_network(action: Callable[..., None]) -> Callable[..., None]:
    """An action that needs the extra `network`: an error names it where it is not installed."""

    @functools.wraps(action)
    def act(*given: Any) -> None:
        try:
            action(*given)
        except ModuleNotFoundError as missing:
            if extra_of(missing.name or "") != "network":
                raise
            raise SettingError(
                f"{missing.name} is not installed: pip install 'fedloom[network]'"
            ) from None

    return act


def add_run_file(verb: argparse.ArgumentParser, nargs: str | None = None) -> None:
    verb.add_argument("file", nargs=nargs, type=Path, metavar="RUN.toml", help="the run file")
    add_set(verb)


def add_set(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override a key of the run file (again for more)",
    )


def add_json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="as JSON, for programs")


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Aligned columns; numbers to the right."""
    rows = [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(head), *rows]) for i in range(len(head))]
    right = [all(_numeric(row[i]) for row in rows) and bool(rows) for i in range(len(head))]
    for row in [list(head), *rows]:
        cells = [
            cell.rjust(width) if left else cell.ljust(width)
            for cell, width, left in zip(row, widths, right, strict=True)
        ]
        print("  ".join(cells).rstrip())


def print_broken(lost: Mapping[str, str]) -> None:
    """What other packages declare and cannot be loaded."""
    for which, why in lost.items():
        print(f"\n{which} cannot be loaded: {why}")


def _numeric(cell: str) -> bool:
    return cell in ("", "-") or re.fullmatch(r"-?[\d.,]+(e-?\d+)?( \w{1,2})?", cell) is not None


def toml(value: Any) -> str:
    """A value as it stands in a run file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def human_bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def shown(value: float | None) -> str:
    """A metric for people."""
    return "-" if value is None else f"{value:.4f}"
