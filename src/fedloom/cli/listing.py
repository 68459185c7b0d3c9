"""fedloom list: what can be named in a run file, or in a party file."""

from __future__ import annotations

import argparse
from typing import Any

from ..config.catalogue import KINDS, broken, catalogue
from . import common


def add(verbs: common.Verbs) -> None:
    verb = common.add_verb(
        verbs,
        "list",
        act,
        "what can be named in a run file or a party file, with settings",
        """
        What a run file can name, with the settings each takes: algorithms, models, data sets,
        losses, metrics, partitioners, records writers, executors; and of a party file: transports.

          fedloom list                     names and one line each
          fedloom list algorithms          with their settings
          fedloom list datasets --json     for programs
        """,
    )
    verb.add_argument("kind", nargs="?", choices=KINDS, help="only these, with their settings")
    common.add_json(verb)


def act(chosen: argparse.Namespace) -> None:
    kinds = [chosen.kind] if chosen.kind else KINDS
    entries, lost = {kind: catalogue(kind) for kind in kinds}, broken(kinds)
    if chosen.json:
        common.print_json({**entries, "broken": lost} if lost else entries)
        return
    for number, (kind, named) in enumerate(entries.items()):
        if not chosen.kind:
            print(f"{chr(10) if number else ''}{kind}")
            width = max((len(entry["name"]) for entry in named), default=0)
            for entry in named:
                print(f"  {entry['name']:{width}}  {entry['about']}")
        else:
            for entry in named:
                _show(entry)
    common.print_broken(lost)


def _show(entry: dict[str, Any]) -> None:
    print(f"{entry['name']}: {entry['about']}")
    for field in entry["fields"]:
        default = "required" if field["required"] else f"default {common.toml(field['default'])}"
        about = f": {field['about']}" if field["about"] else ""
        print(f"    {field['name']} ({field['type']}, {default}){about}")
