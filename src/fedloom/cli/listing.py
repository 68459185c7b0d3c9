"""fedloom list: what can be named in a run file."""

from __future__ import annotations

import argparse
from typing import Any

from ..config.catalogue import KINDS, broken, catalogue
from . import common


def add(verbs: common.Verbs) -> None:
    one = common.add_verb(
        verbs,
        "list",
        act,
        "algorithms, models, data sets, losses and metrics, with their settings",
        """
        What a run file can name, with the settings each takes.

          fedloom list                     names and one line each
          fedloom list algorithms          with their settings
          fedloom list datasets --json     for programs
        """,
    )
    one.add_argument("kind", nargs="?", choices=KINDS, help="only these, with their settings")
    common.add_json(one)


def act(chosen: argparse.Namespace) -> None:
    kinds = [chosen.kind] if chosen.kind else KINDS
    found, lost = {kind: catalogue(kind) for kind in kinds}, broken(kinds)
    if chosen.json:
        common.print_json({**found, "broken": lost} if lost else found)
        return
    for number, (kind, entries) in enumerate(found.items()):
        if not chosen.kind:
            print(f"{chr(10) if number else ''}{kind}")
            width = max(len(entry["name"]) for entry in entries)
            for entry in entries:
                print(f"  {entry['name']:{width}}  {entry['about']}")
        else:
            for entry in entries:
                _show(entry)
    common.print_broken(lost)


def _show(entry: dict[str, Any]) -> None:
    print(f"{entry['name']}: {entry['about']}")
    for field in entry["fields"]:
        default = "required" if field["required"] else f"default {common.toml(field['default'])}"
        about = f": {field['about']}" if field["about"] else ""
        print(f"    {field['name']} ({field['type']}, {default}){about}")
