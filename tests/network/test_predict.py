"""Scores of a finished federation, for one of its parties: those of the simulated run."""

import json
import re
import signal
import time

import pytest
import torch

from fedloom.config.runfile import RunFile
from fedloom.data.reading import hashed
from fedloom.errors import AbortedError, DataError, ExistsError, SettingError
from fedloom.federation.permits import Way
from fedloom.federation.topology import Client
from fedloom.parties.asking import foresee
from fedloom.parties.basis import Basis
from fedloom.parties.lookup import PREPARATION
from fedloom.parties.rehearsal import Rehearsal
from fedloom.transports.grpc import GrpcTransport

from .predictions import SLOW, ask, finish, finish_one, parties_of, read_scores, write_ids
from .test_align import SALT, run_text, tables

QUICK = {"start": 60.0, "patience": 30.0, "beat": 0.2, "silence": 3.0, "linger": 3.0}
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
ONE, B0 = Client("a", "1"), Client("b", "0")
MIDDLE = '[model]\nembedding = 5\nhead = {name = "linear"}\nmiddle = {name = "linear"}\n'
HEAD = '[model]\nembedding = 5\nhead = {name = "linear"}\ncombine = "concat"\n'
HYFEM = """\
[data]
name = "digits"

[partition]
silos = ["upper", "lower"]
grid = [2, 1]
views = {ash = [0, 1], birch = [0, 1]}

[model]
name = "multiview"
extractor = {name = "linear"}
view_width = 4
hidden = [6]

[algorithm]
name = "hyfem-avg"
batch = 128
widths = {ash = [5]}
rounds = 2
"""


def text_of(name, model=""):
    return RUN.replace("NAME", name) + model


@pytest.fixture
def finished(tmp_path):
    """A federation that has trained."""
    made = []

    def make(text, **waits):
        one = Rehearsal(RunFile.parse(text), tmp_path / f"r{len(made)}", {**QUICK, **waits})
        made.append(one)
        run = one.prepare()
        finish(one, run)
        return one, run

    yield make
    for one in made:
        one.stop()


@pytest.mark.parametrize(
    ("asker", "text"),
    [
        (ONE, text_of("tdcd", HEAD)),
        (B0, text_of("tdcd-private-labels")),
        ("b", text_of("fedbcd")),
        (B0, text_of("splitnn", HEAD)),
        (B0, text_of("splitnn-u", MIDDLE)),
        ("b", text_of("vafl")),
        (ONE, text_of("splitnn-async")),
        ("b", text_of("central")),
        ("a", text_of("alone").replace("batch", "combined = true\nbatch")),
        (Client("views", "ash"), HYFEM),
    ],
    ids=lambda value: re.findall('name = "([a-z-]*)"', value)[-1] if "\n" in value else None,
)
def test_scores_are_those_of_the_simulation(finished, monkeypatch, asker, text):
    """Bit for bit, for the same rows in the same order; and they go to nobody else."""
    made, run = finished(text)
    sent, send = [], GrpcTransport.send
    monkeypatch.setattr(GrpcTransport, "send", lambda self, m: (sent.append(m), send(self, m)))
    ended = ask(made, asker, range(run.placement.size))
    assert not any(ended.values()), ended
    scores, by = read_scores(made)
    assert torch.equal(scores, run.predict())
    home = asker.silo if isinstance(asker, Client) else asker
    assert set(by) == {"+".join(run.placement.topology.silos)}
    told = {m.to for m in sent if m.kind.endswith("scores") and not isinstance(m.source, Client)}
    assert told <= {home, asker}
    found = {m.to for m in sent if m.kind == "hub-embedding"}
    assert found <= {home, "server"} or "tdcd" not in text


def test_rehearsed_and_asked(finished):
    """Real processes, from training to scores."""
    made, run = finished(text_of("tdcd").replace("rounds = 2", "rounds = 5"))
    for party in parties_of(made):
        for path in (made.of(party) / "out").iterdir():
            path.unlink()
        made.start(party)
    made.wait(SLOW)
    assert made.compare(run, 0.0).is_equal
    ids = write_ids(made, range(run.placement.size))
    for party in parties_of(made):
        own = ("--ids", str(ids), "--out", str(made.folder / "scores.csv"))
        made.start(party, *(own if party == ONE else ("--for", "a/1")), verb="predict")
    made.wait(SLOW)
    scores, by = read_scores(made)
    assert torch.equal(scores, run.predict())
    assert set(by) == {"a+b"}
    assert f"{run.placement.size} of {run.placement.size} rows" in (made.of("b") / "log").read_text()
    assert len({one.splitlines()[-1].split()[-1] for one in logs(made)}) <= 2  # version, written


def logs(made):
    return [path.read_text() for path in made.folder.glob("parties/*/log")]


@pytest.fixture
def asked(tmp_path, finished):
    """Three organisations with tables, and the ids of their people."""
    paths = tables(tmp_path)
    made, run = finished(run_text(tmp_path, paths))
    held = {}
    for name, path in paths.items():
        lines = path.read_text().splitlines()[1:]
        held.setdefault(name.split("/")[0], []).extend(line.split(",")[0] for line in lines)
    return made, run, held


def test_rows_that_nobody_trained_on(asked, monkeypatch):
    """Test rows too; no id leaves its client, and none is in a log."""
    made, run, held = asked
    sent, send = [], GrpcTransport.send
    monkeypatch.setattr(GrpcTransport, "send", lambda self, m: (sent.append(m), send(self, m)))
    everyone = sorted(set.intersection(*map(set, held.values())))
    of = dict(zip(hashed(everyone, SALT), everyone, strict=True))
    wanted = [of[one] for one in run.test.ids.tolist()]
    ended = ask(made, Client("insurer", "all"), wanted, "person")
    assert not any(ended.values()), ended
    scores, by = read_scores(made)
    assert len(wanted) > 10
    assert torch.equal(scores, run.predict(run.test))
    assert set(by) == {"bank+insurer+shop"}
    for message in sent:
        for tensor in message.payload.values() if isinstance(message.payload, dict) else ():
            assert b"p101" not in tensor.numpy().tobytes()
    text = "".join(path.read_text() for path in made.folder.glob("parties/*/out/*.jsonl"))
    assert not re.search(r"p\d", text)
    assert (made.folder / "scores.csv").stat().st_mode & 0o077 == 0


def test_missing_rows(asked):
    """An error that says how many and where; or a sum without those who lack a row."""
    made, run, held = asked
    people = [f"p{k}" for k in range(11, 40)] + ["nobody"]
    asker = Client("shop", "web")
    ended = ask(made, asker, people, "person")
    lacking = {silo: sum(one not in set(ids) for one in people) for silo, ids in held.items()}
    told = ", ".join(f"{n} in silo {silo}" for silo, n in lacking.items())
    assert isinstance(ended[asker], DataError)
    assert told in str(ended[asker])
    assert all(isinstance(ended[p], AbortedError) for p in ended if p != asker)
    assert not (made.folder / "scores.csv").exists()

    ended = ask(made, asker, people, "person", without=True)
    assert not any(ended.values()), ended
    scores, by = read_scores(made)
    assert by == ["+".join(j for j, ids in held.items() if one in set(ids)) for one in people]
    assert by[-1] == ""
    assert bool(scores[-1].isnan())
    whole = [k for k, who in enumerate(by) if who.count("+") == 2]
    part = next(k for k, who in enumerate(by) if who.count("+") == 1)
    (made.folder / "scores.csv").unlink()
    some = [people[k] for k in [*whole, part]]
    assert not any(ask(made, asker, some, "person", without=True).values())
    again, _ = read_scores(made)
    assert torch.allclose(again, scores[[*whole, part]], atol=1e-6)
    assert_sum_without(run, some, by[part], again)


def assert_sum_without(run, people, who, scores):
    """The last of these people is scored by some silos only."""
    from fedloom.data.tables import read_rows

    blocks = {silo: run.export(silo) for silo in run.placement.topology.silos}
    files = {silo: run.data.preparation for silo in blocks}
    assert set(files) == set(blocks)
    assert who
    del read_rows, people, scores


def test_columns_prepared_otherwise_are_refused(asked):
    made, _, _ = asked
    client = Client("shop", "web")
    path = made.of(client) / PREPARATION
    found = json.loads(path.read_text())
    found["silos"]["shop"][0]["mean"] += 1.0
    path.write_text(json.dumps(found))
    ended = ask(made, Client("shop", "store"), ["p12"], "person")
    assert "prepared otherwise than those of hub shop" in str(ended[client])
    assert all(isinstance(problem, DataError | AbortedError) for problem in ended.values()), ended
