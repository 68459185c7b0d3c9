"""fedloom example: run files that come with the package, to run and to change."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

from ..core.errors import ExistsError, SettingError, nearest
from ..core.files import SHARED, write_text
from . import common


def add(verbs: common.Verbs) -> None:
    verb = common.add_verb(
        verbs,
        "example",
        act,
        "write a run file to begin with",
        """
        Write a run file that comes with FedLoom, to run and to change; without a name, list them.
        Nothing is fetched: data are made up, or come with scikit-learn (the extra `data`).

          fedloom example diabetes
          fedloom run diabetes.toml
        """,
    )
    verb.add_argument("name", nargs="?", metavar="NAME", help="which; see the list")
    verb.add_argument(
        "--out", type=Path, metavar="FILE", help="where to; NAME.toml, if it is not said"
    )


def act(chosen: argparse.Namespace) -> None:
    known = examples()
    if chosen.name is None:
        common.print_table(["example", "what it is"], [(n, _title(t)) for n, t in known.items()])
        return
    if chosen.name not in known:
        raise SettingError(f"unknown example {chosen.name!r}{nearest(chosen.name, known)}")
    file = chosen.out or Path(f"{chosen.name}.toml")
    if file.exists():
        raise ExistsError(f"{file} already exists: give another name with --out")
    write_text(file, known[chosen.name], SHARED)
    print(f"{file} is written. Now: fedloom run {file}")


def examples() -> dict[str, str]:
    """The run files by name."""
    paths = sorted(files(__package__).joinpath("examples").iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text(encoding="utf-8") for file in paths}


def _title(text: str) -> str:
    """The first sentence of the comment that a run file begins with."""
    comment = " ".join(line.removeprefix("#").strip() for line in text.split("\n\n")[0].split("\n"))
    return comment.split(". ")[0] + "."
