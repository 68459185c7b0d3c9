"""fedloom report: the page of a run, again or for the first time."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..report.page import write_report
from . import common


def add(verbs: common.Verbs) -> None:
    verb = common.add_verb(
        verbs,
        "report",
        act,
        "write the HTML report of a run",
        """
        Write the report of a run's folder: one HTML file that needs nothing else, and its figures
        as PNG. Works for a run that is not finished, too.

          fedloom report runs/digits
        """,
    )
    verb.add_argument("folder", type=Path, metavar="DIR", help="a run's folder")


def act(chosen: argparse.Namespace) -> None:
    print(write_report(chosen.folder))
