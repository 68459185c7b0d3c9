"""Scores of a finished federation, for one of its parties: those of the simulated run."""

import re
from dataclasses import replace

import pytest
import torch

from fedloom.config.runfile import RunFile
from fedloom.core.errors import AbortedError, DataError, ExistsError, RefusedError, SettingError
from fedloom.core.topology import Client, Topology
from fedloom.data.tables.files import hashed
from fedloom.data.tables.prepare import SiloPreparation
from fedloom.deployment.agreement.agreement import Agreement
from fedloom.deployment.agreement.own_rows import read_preparation, write_preparation
from fedloom.deployment.agreement.shared_facts import SharedFacts
from fedloom.deployment.log import Log
from fedloom.deployment.party_file import PartyFile
from fedloom.deployment.prediction.lookup import OwnRows, RowNames
from fedloom.deployment.prediction.predict import Prediction, Question
from fedloom.deployment.prediction.query import expected_messages
from fedloom.deployment.prediction.scores import write_scores
from fedloom.fabric.permits import Route
from fedloom.models.losses import loss_of
from fedloom.transports.grpc.transport import GrpcTransport
from tests.deployment.test_align import SALT, run_text, tables
from tests.helpers.predictions import ask, finish_one, parties_of, read_scores, text_of
from tests.helpers.spelled import carried

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
    assert torch.equal(scores, run.predict("train"))
    home = asker.silo if isinstance(asker, Client) else asker
    assert set(by) == {"+".join(run.placement.topology.silos)}
    receivers_of_scores = {
        m.to for m in sent if m.kind.endswith("scores") and not isinstance(m.source, Client)
    }
    assert receivers_of_scores <= {home, asker}
    receivers_of_embeddings = {m.to for m in sent if m.kind == "hub-embedding"}
    assert receivers_of_embeddings <= {home, "server"} or "tdcd" not in text


@pytest.fixture
def asked(tmp_path, finished):
    """Three organisations with tables, and the ids of their people."""
    paths = tables(tmp_path)
    made, run = finished(run_text(tmp_path, paths))
    people = {}
    for name, path in paths.items():
        lines = path.read_text().splitlines()[1:]
        people.setdefault(name.split("/")[0], []).extend(line.split(",")[0] for line in lines)
    return made, run, people


def test_rows_that_nobody_trained_on(asked, monkeypatch):
    """Test rows too; no id leaves its client, and none is in a log."""
    made, run, people = asked
    sent, send = [], GrpcTransport.send
    monkeypatch.setattr(GrpcTransport, "send", lambda self, m: (sent.append(m), send(self, m)))
    everyone = sorted(set.intersection(*map(set, people.values())))
    of = dict(zip(hashed(everyone, SALT), everyone, strict=True))
    wanted = [of[row] for row in run.test.ids.tolist()]
    ended = ask(made, Client("insurer", "all"), wanted, "person")
    assert not any(ended.values()), ended
    scores, by = read_scores(made)
    assert len(wanted) > 10
    assert torch.equal(scores, run.predict(run.test))
    assert set(by) == {"bank+insurer+shop"}
    assert {"predict-ids", "predict-scores", "embedding"} <= {message.kind for message in sent}
    long = [person for person in wanted if len(person) > 3]  # shorter ones are there by chance
    assert long
    assert carried(sent, [SALT, *long]) == []
    text = "".join(path.read_text() for path in made.folder.glob("parties/*/out/*.jsonl"))
    assert not re.search(r"p\d", text)
    assert (made.folder / "scores.csv").stat().st_mode & 0o077 == 0


def test_missing_rows(asked):
    """An error that says how many and where; or a sum without those who lack a row."""
    made, run, tables = asked
    people = [f"p{k}" for k in range(11, 40)] + ["nobody"]
    asker = Client("shop", "web")
    ended = ask(made, asker, people, "person")
    lacking = {
        silo: sum(person not in set(ids) for person in people) for silo, ids in tables.items()
    }
    missing = ", ".join(f"{n} in silo {silo}" for silo, n in lacking.items())
    assert isinstance(ended[asker], DataError)
    assert missing in str(ended[asker])
    assert all(isinstance(ended[p], AbortedError) for p in ended if p != asker)
    assert not (made.folder / "scores.csv").exists()

    ended = ask(made, asker, people, "person", without=True)
    assert not any(ended.values()), ended
    scores, by = read_scores(made)
    assert by == [
        "+".join(j for j, ids in tables.items() if person in set(ids)) for person in people
    ]
    assert by[-1] == ""
    assert bool(scores[-1].isnan())
    some = next(k for k, who in enumerate(by) if who.count("+") == 1)
    assert torch.allclose(scores[some], added_up(made, run, people[some], by[some]), atol=1e-6)


@pytest.mark.parametrize(
    ("people", "row", "why"),
    [
        (["p11", "p12", "p11"], "", "1 ids occur more than once"),
        (["p11", "p12,Ulm"], "", "do not fit its header: line 3 has 2 cells"),
        (["p11"], "p12,Ulm\n", "column 'visits': 1 of .* cells are not numbers"),
        (["p11"], "p12,7\np12,8\n", "ids occur more than once"),
        (["p11"], "p12,Ulm,Bonn\n", "do not fit its header"),
    ],
)
def test_errors_show_nobodys_data(asked, people, row, why):
    """Ids that are asked for, and a client's own table, are read before anybody waits."""
    made, _, _ = asked
    asker = Client("shop", "web")
    table = made.folder.parent / "shop-web.csv"
    table.write_text(table.read_text() + row)
    others = [party for party in parties_of(made) if party != asker]
    problem = ask(made, asker, people, "person", away=others)[asker]
    assert isinstance(problem, DataError)
    assert re.search(why, str(problem)), problem
    logs = [path.read_text() for path in made.folder.glob("parties/*/out/*.jsonl")]
    assert not re.search(r"\bp\d|Ulm|Bonn", "".join([str(problem), *logs]))


def added_up(made, run, person, silos):
    """What these silos' blocks give for a person."""
    file, total = RunFile.read(made.folder / "run.toml"), 0.0
    agreement, salted = Agreement.read(made.folder / "agreement.json"), RowNames("", SALT)
    for client in parties_of(made):
        if isinstance(client, Client) and client.silo in silos.split("+"):
            own = PartyFile.read(made.of(client) / "party.toml")
            _, x = OwnRows(file, own, agreement).find(salted.hashes([person]))
            total = total + run.export(client.silo)(x).sum(0)
    return total.detach()


def test_columns_prepared_otherwise_are_refused(asked):
    made, _, _ = asked
    client = Client("shop", "web")
    rows = made.of(client) / "rows.safetensors"
    preparation = read_preparation(rows)
    first, *others = preparation["shop"].steps
    shop = SiloPreparation((replace(first, mean=first.mean + 1.0), *others))
    write_preparation(rows, replace(preparation, silos={"shop": shop}))
    ended = ask(made, Client("shop", "store"), ["p12"], "person")
    assert "prepared otherwise than those of hub shop" in str(ended[client])
    assert all(isinstance(problem, DataError | AbortedError) for problem in ended.values()), ended


def test_blocks_of_different_rounds_do_not_combine(finished):
    made, run = finished(text_of("tdcd"))
    finish_one(made, run, "b", rounds=1)
    ended = ask(made, ONE, [0, 1, 2])
    for hub in ("a", "b"):
        assert "blocks of different rounds do not belong together: a 2, b 1" in str(ended[hub])
        assert isinstance(ended[hub], DataError | AbortedError)  # the second may hear of it first
    assert any(isinstance(ended[hub], DataError) for hub in ("a", "b"))
    assert isinstance(ended[ONE], AbortedError)
    assert not (made.folder / "scores.csv").exists()


@pytest.mark.parametrize(
    ("goal", "loss", "names"),
    [
        ("binary", "binary-cross-entropy", ["score", "probability", "class", "contributed"]),
        ("number", "poisson", ["score", "value", "contributed"]),
    ],
)
def test_scores_in_words(tmp_path, goal, loss, names):
    """The class above the threshold, and counts of a loss whose scores are their logarithms."""
    out, there = tmp_path / "scores.csv", torch.tensor([[1, 1], [1, 0], [0, 0]])
    specs = dict.fromkeys(("a", "b"), ((2,), torch.float32))
    topology = Topology({"a": ("x",), "b": ("y",)})
    classes = ("no", "yes") if goal == "binary" else ()
    facts = SharedFacts(topology, 9, goal, classes, 1, specs, ((), torch.float32), ("a",))
    scores = torch.tensor([[1.0], [0.5], [0.0]])
    write_scores(out, "id", ["p", "q", "r"], scores, there, facts, loss_of(loss), 0.7)
    header, first, second, third = (line.split(",") for line in out.read_text().splitlines())
    assert header == ["id", *names]
    assert float(first[2]) == pytest.approx(0.731059 if goal == "binary" else 2.718282, rel=1e-6)
    assert third[1:-1] == [""] * (len(names) - 1)
    if goal == "binary":
        assert (first[3], second[3]) == ("yes", "no")  # 0.73 and 0.62


def test_what_is_said_before_anybody_waits(finished, tmp_path):
    made, run = finished(text_of("tdcd", HEAD))
    b = ["a", *(party for party in parties_of(made) if party not in ("a", "b"))]
    problem = ask(made, "b", [0], without=True, away=b)["b"]
    assert isinstance(problem, SettingError)
    assert "none can be left out" in str(problem)
    assert isinstance(ask(made, "b", [0, 1, 0], away=b)["b"], DataError)
    assert isinstance(ask(made, "b", [], away=b)["b"], DataError)
    assert isinstance(ask(made, "server", [0], away=["b", *b[1:]])["a"], SettingError)
    (made.of("b") / "out" / "done.json").unlink()
    assert "no finished run is there" in str(ask(made, "b", [0], away=b)["b"])
    (made.folder / "scores.csv").write_text("somebody's")
    assert isinstance(ask(made, "b", [0], away=b)["b"], ExistsError)
    rule = RunFile.read(made.folder / "run.toml", ['evaluation.threshold="f1"'])
    own = PartyFile.read(made.of("b") / "party.toml")
    question = Question(tmp_path / "ids.csv", tmp_path / "scores.csv")
    with pytest.raises(
        SettingError, match="the best F1 is sought on validation rows, which nobody"
    ):
        Prediction(rule, own, "b", Log(tmp_path, "b", print), question)
    alone, facts = RunFile.parse(text_of("alone")), SharedFacts.of(run)
    with pytest.raises(SettingError, match="every silo predicts by itself"):
        expected_messages(alone, facts, "a")


def test_only_the_asking_hub_may_be_told(finished):
    """The list of permitted messages is that of this question."""
    made, run = finished(text_of("tdcd"))
    forms = expected_messages(made.file, SharedFacts.of(run), "b").forms
    assert Route("hub-embedding", "a", "b") in forms
    assert Route("hub-embedding", "b", "a") not in forms
    assert expected_messages(made.file, SharedFacts.of(run), "a").adds_up
    pooled = RunFile.parse(text_of("central"))
    assert not expected_messages(pooled, SharedFacts.of(run), "a").adds_up


def test_whoever_answers_for_somebody_else_is_refused(finished):
    """A party says for whom it takes part; a client that means another is not let in."""
    made, _ = finished(text_of("tdcd"), start=4.0, patience=2.0)
    ended = ask(made, "a", [0, 1], believed={ONE: B0})
    assert isinstance(ended[ONE], RefusedError)
    assert all(isinstance(ended[p], AbortedError) for p in ended if p != ONE), ended
    assert "client a/1" in str(ended["a"])
