"""fedloom data: which sets are here, where their files were searched, whether they are sound."""

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
    verb = common.add_verb(
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
    verb.add_argument("name", nargs="?", help="only this set")
    verb.add_argument("--folder", type=Path, metavar="DIR", help=f"instead of {ENVIRONMENT}")
    verb.add_argument("--verify", action="store_true", help="check files against their checksums")
    common.add_json(verb)


def act(chosen: argparse.Namespace) -> None:
    names = [chosen.name] if chosen.name else list(datasets)
    states = [state(datasets[name], chosen.folder, chosen.verify) for name in names]
    if chosen.json:
        common.print_json(states)
    else:
        root = chosen.folder or os.environ.get(ENVIRONMENT)
        print(f"looked in: {root or f'nowhere ({ENVIRONMENT} is not set)'}\n")
        common.print_table(
            ("set", "state", "about"),
            [(entry["name"], entry["state"], entry["about"]) for entry in states],
        )
        common.print_broken(datasets.broken)
        for entry in states:
            if entry["problem"] and (chosen.name or entry["state"] == "damaged"):
                print(f"\n{entry['problem']}")
    damaged = [entry for entry in states if entry["state"] == "damaged"]
    if damaged or (chosen.name and states[0]["state"] == "missing"):
        raise DataError(f"{', '.join(entry['name'] for entry in damaged or states)}: not usable")


def state(loader: DatasetLoader, folder: Path | None, verify: bool) -> dict[str, Any]:
    """Whether a set can be used."""
    facts: dict[str, Any] = {"name": loader.name, "about": loader.about, "problem": None}
    facts["looked_in"] = [str(place) for place in loader.places(folder)]
    facts["files"] = list(loader.files)
    facts["get"] = loader.get
    if not loader.files:
        return {**facts, "state": "bundled"}
    try:
        files = loader.find(folder)
    except DataError as problem:
        return {**facts, "state": "missing", "problem": str(problem)}
    facts["found"] = {file: str(path) for file, path in files.paths.items()}
    if not verify:
        return {**facts, "state": "found"}
    try:
        loader.verify(files)
    except DataError as problem:
        return {**facts, "state": "damaged", "problem": str(problem)}
    return {**facts, "state": "verified"}
