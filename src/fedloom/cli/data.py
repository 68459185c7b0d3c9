"""fedloom data: which sets are here, where they were looked for, whether they are sound."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..core.errors import DataError
from ..core.registry import datasets
from ..data.catalog import ENVIRONMENT, DatasetLoader
from . import common


def add(verbs: common.Verbs) -> None:
    one = common.add_verb(
        verbs,
        "data",
        act,
        "which data sets are here, and whether they are sound",
        f"""
        Which data sets are here, where their files were looked for ({ENVIRONMENT}, or --folder),
        and where to get those that are missing.

          fedloom data                     all sets
          fedloom data mnist --verify      check the files of one against their checksums
        """,
    )
    one.add_argument("name", nargs="?", help="only this set")
    one.add_argument("--folder", type=Path, metavar="DIR", help=f"instead of {ENVIRONMENT}")
    one.add_argument("--verify", action="store_true", help="check files against their checksums")
    common.add_json(one)


def act(chosen: argparse.Namespace) -> None:
    names = [chosen.name] if chosen.name else list(datasets)
    found = [state(datasets[name], chosen.folder, chosen.verify) for name in names]
    if chosen.json:
        common.print_json(found)
    else:
        root = chosen.folder or os.environ.get(ENVIRONMENT)
        print(f"looked in: {root or f'nowhere ({ENVIRONMENT} is not set)'}\n")
        common.print_table(
            ("set", "state", "about"), [(one["name"], one["state"], one["about"]) for one in found]
        )
        common.print_broken(datasets.broken)
        for one in found:
            if one["problem"] and (chosen.name or one["state"] == "damaged"):
                print(f"\n{one['problem']}")
    damaged = [one for one in found if one["state"] == "damaged"]
    if damaged or (chosen.name and found[0]["state"] == "missing"):
        raise DataError(f"{', '.join(one['name'] for one in damaged or found)}: not usable")


def state(loader: DatasetLoader, folder: Path | None, verify: bool) -> dict[str, Any]:
    """Whether a set can be used."""
    told: dict[str, Any] = {"name": loader.name, "about": loader.about, "problem": None}
    told["looked_in"] = [str(place) for place in loader.places(folder)]
    told["files"] = list(loader.files)
    told["get"] = loader.get
    if not loader.files:
        return {**told, "state": "bundled"}
    try:
        files = loader.find(folder)
    except DataError as problem:
        return {**told, "state": "missing", "problem": str(problem)}
    told["found"] = {file: str(path) for file, path in files.paths.items()}
    if not verify:
        return {**told, "state": "found"}
    try:
        loader.verify(files)
    except DataError as problem:
        return {**told, "state": "damaged", "problem": str(problem)}
    return {**told, "state": "verified"}
