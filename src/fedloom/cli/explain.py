"""fedloom explain: who would send what to whom."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config.runfile import RunFile
from ..core.errors import SettingError
from ..core.extras import need
from ..core.registry import algorithms
from ..explain import explain, explain_algorithm
from ..runs.build import build_data, build_run
from . import common


def add(verbs: common.Verbs) -> None:
    verb = common.add_verb(
        verbs,
        "explain",
        act,
        "every message that would leave every party",
        """
        Every message that would leave every party in a round: its kind, from whom to whom, shape,
        bytes, protection; and a sequence diagram. Found by running one round of an algorithm (on a
        small made-up federation) or of a run file (on its own data), message by message.

          fedloom explain tdcd
          fedloom explain digits.toml --draw messages.png
        """,
    )
    verb.add_argument("what", metavar="ALGORITHM|RUN.toml", help="a name, or a run file")
    common.add_set(verb)
    verb.add_argument("--draw", type=Path, metavar="FILE.png", help="draw the sequence diagram")
    common.add_json(verb)


def act(chosen: argparse.Namespace) -> None:
    if chosen.draw is not None:
        need("report", "--draw")
    if chosen.what in set(algorithms):
        if chosen.set:
            raise SettingError("--set needs a run file")
        explanation = explain_algorithm(chosen.what)
    elif Path(chosen.what).is_file():
        file = RunFile.read(chosen.what, chosen.set)
        explanation = explain(build_run(file, build_data(file)))
    else:
        known = ", ".join(algorithms)
        raise SettingError(f"{chosen.what}: neither a run file nor an algorithm ({known})")
    if chosen.json:
        common.print_json(explanation.to_json())
    else:
        print(explanation.text())
    if chosen.draw is not None:
        explanation.draw(chosen.draw)
        if not chosen.json:
            print(f"\ndiagram: {chosen.draw}")
