"""Finished federations that are asked for scores."""

import csv
import json
from concurrent.futures import ThreadPoolExecutor

import torch

from fedloom.config.fingerprint import fingerprint
from fedloom.config.runfile import RunFile
from fedloom.core.errors import FedLoomError
from fedloom.core.topology import Client
from fedloom.deployment.agreement.agreement import Agreement
from fedloom.deployment.log import Log
from fedloom.deployment.party_file import PartyFile
from fedloom.deployment.prediction.predict import Prediction, Question
from fedloom.records.checkpoint import save_checkpoint
from fedloom.records.history import CHECKPOINT
from fedloom.records.snapshot import Snapshot

SLOW = 150  # seconds: nothing takes longer, or it is an error


RUN = """\
[data]
name = "iris"

[partition]
clients = [2, 1]

[algorithm]
name = "NAME"
batch = 20
rounds = 2
"""


def text_of(name, model=""):
    """A small run of an algorithm, on real rows."""
    return RUN.replace("NAME", name) + model


def finish(made, run):
    """What training leaves with every party, taken from the reference (they are equal: see
    test_processes)."""
    for party in run.placement.topology.parties:
        finish_one(made, run, party)


def finish_one(made, run, party, rounds=None):
    trained, out = run.snapshot(), made.of(party) / "out"
    out.mkdir(exist_ok=True)
    rounds = rounds or trained.round
    own = {name: {p: v for p, v in at.items() if p == party} for name, at in trained.state.items()}
    snapshot = Snapshot(rounds, own, trained.ledger, trained.record, None, trained.releases)
    save_checkpoint(out / CHECKPOINT, snapshot, (), 0.0)
    agreed = Agreement.read(made.folder / "agreement.json").to_json()
    of = fingerprint(RunFile.read(made.folder / "run.toml"), agreed)
    (out / "done.json").write_text(json.dumps({"rounds": rounds, "run": of}))


def parties_of(made):
    agreed = json.loads((made.folder / "agreement.json").read_text())
    clients = [Client(silo, name) for silo, names in agreed["clients"].items() for name in names]
    return [*agreed["clients"], *clients, *(["server"] if agreed["server"] else [])]


def write_ids(made, ids, column="row"):
    path = made.folder / "asked.csv"
    path.write_text("\n".join([column, *map(str, ids)]) + "\n")
    return path


def ask(made, asker, ids, column="row", without=False, believed=None, away=()):
    """Every party in a thread of its own: {party: None or error}. `believed`: who asks, as some
    have it; `away`: who does not come."""
    path, file = write_ids(made, ids, column), RunFile.read(made.folder / "run.toml")

    def go(party):
        own = PartyFile.read(made.of(party) / "party.toml")
        log = Log(made.of(party) / "out", party, lambda line: None)
        question = None
        if party == asker:
            question = Question(path, made.folder / "scores.csv", without)
        try:
            Prediction(file, own, (believed or {}).get(party, asker), log, question).go()
        except FedLoomError as problem:
            return problem
        return None

    parties = [party for party in parties_of(made) if party not in away]
    with ThreadPoolExecutor(len(parties)) as pool:
        return dict(zip(parties, pool.map(go, parties, timeout=SLOW), strict=True))


def read_scores(made):
    """Scores, and who contributed, in the order of the file."""
    with (made.folder / "scores.csv").open() as file:
        lines = list(csv.DictReader(file))
    names = [name for name in lines[0] if name.startswith("score")]
    scores = [[float(line[name] or "nan") for name in names] for line in lines]
    return torch.tensor(scores), [line["contributed"] for line in lines]
