"""fedloom predict: scores of a finished federation, for one of its parties."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config.runfile import RunFile
from ..core.errors import SettingError
from . import common


def add(verbs: common.Verbs) -> None:
    verb = common.add_verb(
        verbs,
        "predict",
        act,
        "scores of a finished federation, for one of its parties",
        """
        Every party of a finished federation runs this at the same time. The one who asks gives the
        ids of rows and gets their scores; the others say for whom they take part. Rows need not be
        training rows: those in the parties' tables will do.

          fedloom predict run.toml north.toml --ids people.csv --out scores.csv
          fedloom predict run.toml party.toml --for bank/north    everywhere else
        """,
    )
    common.add_run_file(verb)
    verb.add_argument("party", type=Path, metavar="PARTY.toml", help="this party's own file")
    verb.add_argument("--for", dest="asker", metavar="PARTY", help="who asks: SILO/CLIENT or SILO")
    verb.add_argument("--ids", type=Path, metavar="FILE", help="ask for these rows (CSV, Parquet)")
    verb.add_argument("--out", type=Path, metavar="FILE", help="with --ids: where the scores go")
    verb.add_argument(
        "--missing",
        choices=("error", "without"),
        default="error",
        help="with --ids: what if a silo lacks a row; score it without that silo, or (error) stop",
    )
    verb.add_argument("--quiet", action="store_true", help="no progress")


@common.of_network
def act(chosen: argparse.Namespace) -> None:
    from ..deployment.keys.certificates import party_of
    from ..deployment.log import Log
    from ..deployment.party_file import PartyFile
    from ..deployment.prediction.predict import Prediction, Question

    own = PartyFile.read(chosen.party)
    question = None
    if chosen.ids is not None:
        if chosen.out is None:
            raise SettingError("--ids: say with --out where the scores go")
        question = Question(chosen.ids, chosen.out, chosen.missing == "without")
    elif chosen.asker is None:
        raise SettingError("say who asks, with --for; or ask, with --ids")
    asker = own.me if chosen.asker is None else party_of(chosen.asker)
    say = (lambda line: None) if chosen.quiet else (lambda line: print(line, flush=True))
    log = Log(Path(own.party.folder), own.me, say)
    Prediction(RunFile.read(chosen.file, chosen.set), own, asker, log, question).go()
    if question is not None and not chosen.quiet:
        print(f"written: {question.out}")
