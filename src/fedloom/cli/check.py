"""fedloom check: everything a run would do before its first round."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..algorithms.verification.costs import cost
from ..config.runfile import RunFile
from ..core.errors import SettingError
from ..models.losses.choose import described
from ..models.losses.weights import in_words
from ..runs.build import build_data
from ..runs.job import length_of
from ..runs.parts import all_parts
from . import common
from .progress import length


def add(verbs: common.Verbs) -> None:
    verb = common.add_verb(
        verbs,
        "check",
        act,
        "validate a run file and its data, without training",
        """
        Read a run file and its data, cut them, build and check the models, and say who would hold
        what and what a round would send. Nothing is trained and nothing is written.

          fedloom check digits.toml --set partition.clients=20
          fedloom check run.toml --party party.toml    before taking part in a federation
        """,
    )
    common.add_run_file(verb)
    verb.add_argument(
        "--party", type=Path, metavar="PARTY.toml", help="check this party's files, keys and peers"
    )
    common.add_json(verb)


def act(chosen: argparse.Namespace) -> None:
    file = RunFile.read(chosen.file, chosen.set)
    if chosen.party is not None:
        _check_party(file, chosen.party, chosen.json)
        return
    data = build_data(file)
    parts = all_parts(file, data)
    run = parts.main
    summary = data.summary()
    weights = run.facts().model
    promises = run.algorithm.promises()
    total = cost(run.algorithm, run.facts())
    sent = {tier: sum(b for line, (_, b) in total.items() if line.tier == tier) for tier in TIERS}
    if chosen.json:
        facts: dict[str, Any] = {"data": summary, "notes": list(data.notes)}
        facts["parts"] = parts.names
        facts["without_rows"] = [str(client) for client in data.idle]
        facts["loss"] = described(run.task.loss)
        facts["privacy"] = promises
        facts["rounds"], facts["epochs"] = length_of(file, data)
        common.print_json({**facts, "model_bytes": dict(weights), "round_bytes": sent})
        return
    rows = summary["rows"]
    held = f"{rows['validation']} validation rows, " if "validation" in rows else ""
    print(f"data: {data.name}, {rows['train']} training rows, {held}{rows['test']} test rows")
    for note in data.notes:
        print(f"note: {note}")
    for line in [] if data.overlap is None else data.overlap.lines():
        print(line)
    common.print_table(
        ("silo", "clients", "rows each", "row shape", "labels", "model"),
        [
            (
                silo,
                len(facts["clients"]),
                _range([train for train, _ in facts["clients"].values()]),
                " x ".join(map(str, facts["shape"])),
                "yes" if facts["labels"] else "no",
                common.human_bytes(weights[silo]),
            )
            for silo, facts in summary["silos"].items()
        ],
    )
    for line in (*in_words(getattr(run.task.loss, "class_weights", None), data), *promises):
        print(line)
    sizes = ", ".join(f"{common.human_bytes(sent[tier])} {words}" for tier, words in TIERS.items())
    if file.engine.name == "stacked":
        print(f"engine: {run.fed}")
    rounds, epochs = length_of(file, data)
    names = ", ".join(parts.names)
    print(f"a round sends at most {sizes}; {length(rounds, epochs)}; parts: {names}")
    but = f", but without training rows: {data.without_rows}" if data.idle else ""
    print(f"{chosen.file}: sound{but}")


@common.of_network
def _check_party(file: RunFile, path: Path, json: bool) -> None:
    from ..deployment.party.preflight import preflight
    from ..deployment.party_file import PartyFile

    findings = list(preflight(file, PartyFile.read(path)))
    if json:
        common.print_json([finding._asdict() for finding in findings])
    else:
        words = {True: "ok", None: "note", False: "bad"}
        rows = [(words[f.good], f.what, f.message) for f in findings]
        common.print_table(("", "", ""), rows)
    if any(finding.good is False for finding in findings):
        raise SettingError(f"{path}: this party is not ready")


TIERS = {"bottom": "inside silos", "top": "between hubs"}


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
