"""Relative paths, with the command started in another folder than that of the files it names.

Paths in a run file or a party file are relative to that file; paths on the command line, those in
--set included, to the folder where the command is started."""

import json
import os
import shutil

import pytest

from fedloom.config.runfile import RunFile
from fedloom.core.files import write_text
from fedloom.deployment.party_file import PartyFile
from fedloom.runs.processes import Started
from tests.cli.conftest import records

WITHIN = 120  # seconds: nothing here takes longer, or it is an error

ASYNC = """\
[data]
name = "iris"

[partition]
clients = [2, 1]

[algorithm]
name = "vafl"
lr = 0.05
batch = 20
rounds = 3
"""

TABLES = """\
[data]
id = "person"
label = "left"
goal = "binary"
ids = "hashed"
salt_file = "secrets/salt"

[data.silos]
insurer = "tables/insurer.csv"

[data.silos.bank]
north = "tables/north.csv"
south = "tables/south.csv"

[algorithm]
name = "tdcd-private-labels"
labels_at = "bank"
batch = 20
rounds = 2
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The files are in files/, the command is started in work/."""
    for name in ("files", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "files" / "run.toml").write_text(ASYNC)
    return tmp_path


def write_tables(folder):
    """Forty people, known to both organisations."""
    for name in ("tables", "secrets"):
        (folder / name).mkdir()
    write_text(folder / "secrets" / "salt", "nobody can guess this salt")
    lines = {"north": ["person,income,left"], "south": ["person,income,left"]}
    lines["insurer"] = ["person,claims"]
    for person in range(40):
        lines["north" if person % 2 else "south"].append(f"p{person},{person % 7},{person % 3 % 2}")
        lines["insurer"].append(f"p{person},{person % 5}")
    for name, rows in lines.items():
        (folder / "tables" / f"{name}.csv").write_text("\n".join(rows) + "\n")
    (folder / "run.toml").write_text(TABLES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("algorithm", "order"),
    [("vafl", "drawn"), ("splitnn-async", "drawn"), ("vafl", "arrival")],
)
def test_rehearsals_of_asynchronous_algorithms(elsewhere, fedloom, algorithm, order):
    choice = ("--set", f"algorithm.name={algorithm}", "--set", f"engine.order={order}")
    code, out, err = fedloom("rehearse", "../files/run.toml", "--out", "rr", *choice)
    assert code == 0, err
    assert "equal to the reference" in out
    left = {path.name for path in (elsewhere / "work").iterdir()}
    assert left == {"rr"}
    assert not (elsewhere / "work" / "rr" / "rr").exists()


@pytest.mark.timeout(300)
def test_tables_salt_keys_and_scores_of_a_federation(elsewhere, fedloom):
    """Rehearsed, and asked for scores by processes that are started elsewhere."""
    write_tables(elsewhere / "files")
    code, _, err = fedloom("rehearse", "../files/run.toml", "--out", "../live", "--quiet")
    assert code == 0, err
    (elsewhere / "work" / "ids.csv").write_text("person\np3\np4\n")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = {"bank-north": ("--ids", "ids.csv", "--out", "scores.csv")}
    asked = {}
    for party in ("bank", "insurer", "bank-north", "bank-south", "insurer-all"):
        files = ("../live/run.toml", f"../live/parties/{party}/party.toml")
        words = ("predict", *files, *options.get(party, ("--for", "bank/north")))
        asked[party] = Started(words, env, elsewhere / f"{party}.log")
    codes = {party: process.wait(WITHIN) for party, process in asked.items()}
    logs = "".join(path.read_text() for path in elsewhere.glob("*.log"))
    assert set(codes.values()) == {0}, logs
    assert len((elsewhere / "work" / "scores.csv").read_text().splitlines()) == 3


def test_files_that_a_run_file_names(elsewhere, fedloom):
    """A saved cut, a schedule, tables and the file of a salt, from beside the run file."""
    files = elsewhere / "files"
    assert fedloom("run", "../files/run.toml", "--out", "first", "--quiet")[0] == 0
    for name in ("partition.json", "schedule.json"):
        shutil.move(f"first/{name}", files / name)
    again = ASYNC.replace("clients = [2, 1]", 'file = "partition.json"')
    (files / "again.toml").write_text(again + '\n[engine]\nschedule = "schedule.json"\n')
    code, _, err = fedloom("run", "../files/again.toml", "--out", "again", "--quiet")
    assert code == 0, err
    assert records("first") == records("again")
    code, _, err = fedloom("run", "--resume", "again", "--quiet")
    assert code == 0, err
    write_tables(files)
    assert fedloom("check", "../files/run.toml")[0] == 0
    read = RunFile.read("../files/run.toml").values["data"]
    assert read["salt_file"] == str(files / "secrets" / "salt")
    assert read["silos"]["insurer"] == str(files / "tables" / "insurer.csv")
    assert read["silos"]["bank"]["north"] == str(files / "tables" / "north.csv")


def test_files_that_the_command_line_names(elsewhere, fedloom):
    """As a shell completes them: from where the command is started."""
    assert fedloom("run", "../files/run.toml", "--out", "first", "--quiet")[0] == 0
    words = ("--set", "engine.schedule=first/schedule.json")
    words += ("--set", "partition.file=first/partition.json")
    code, _, err = fedloom("run", "../files/run.toml", "--out", "again", "--quiet", *words)
    assert code == 0, err
    assert records("first") == records("again")
    write_tables(elsewhere / "work")
    (elsewhere / "files" / "run.toml").write_text(TABLES)
    file = RunFile.read("../files/run.toml", ["data.silos.bank.north=tables/north.csv"])
    assert file.values["data"]["silos"]["bank"]["north"] == str(
        elsewhere / "work" / "tables" / "north.csv"
    )
    asked = file.replaced("engine", schedule="first/schedule.json").engine.schedule
    assert asked == str(elsewhere / "work" / "first" / "schedule.json")


@pytest.mark.timeout(300)
def test_a_sweep_goes_on_in_the_folder_it_was_started_in(elsewhere, fedloom, monkeypatch):
    """Processes are copied from one that may have begun elsewhere; a schedule among the keys."""
    assert fedloom("run", "../files/run.toml", "--out", "first", "--quiet")[0] == 0
    for place in ("work", "other"):
        (elsewhere / place).mkdir(exist_ok=True)
        monkeypatch.chdir(elsewhere / place)
        grid = ("--grid", 'engine.schedule=["../work/first/schedule.json"]')
        code, out, err = fedloom(
            "sweep", "../files/run.toml", "--out", "sw", "--quiet", "--json", *grid
        )
        logs = "".join(path.read_text() for path in (elsewhere / place).glob("sw/files/*.log"))
        assert code == 0, err + logs
        (line,) = json.loads(out)["runs"]
        assert (elsewhere / place / "sw" / line["name"] / "report.html").is_file()


def test_outputs_of_other_verbs(elsewhere, fedloom):
    assert fedloom("run", "../files/run.toml", "--out", "first", "--quiet")[0] == 0
    for words, made in (
        (("compare", "first", "--out", "new/figure.png"), "new/figure.html"),
        (("explain", "../files/run.toml", "--draw", "drawn/messages.png"), "drawn/messages.png"),
        (("report", "first"), "first/report.html"),
        (("keys", "ca", "bank", "--at", "keys/bank"), "keys/bank/ca.pem"),
        (("keys", "issue", "bank/north", "--at", "keys/bank"), "keys/bank/bank-north.pem"),
        (("keys", "allow", "keys/allow.toml", "keys/bank/bank-north.pem"), "keys/allow.toml"),
    ):
        code, _, err = fedloom(*words)
        assert code == 0, (words, err)
        assert (elsewhere / "work" / made).is_file(), words


PARTY = """\
listen = "127.0.0.1:0"

[party]
name = "bank"
agreement = "agreement.json"
rows = "rows.safetensors"
folder = "out"
secret = "../secret"

[keys]
certificate = "keys/bank.pem"
key = "keys/bank.key"
allow = "allow.toml"

[peers.shop]
ca = "keys/shop.pem"
address = "127.0.0.1:1"
"""


def test_files_that_a_party_file_names(elsewhere):
    """Relative to where the party file is, also where it is a link to a file somewhere else."""
    files = elsewhere / "files"
    (files / "party.toml").write_text(PARTY)
    (elsewhere / "mounted").mkdir()
    (elsewhere / "mounted" / "party.toml").symlink_to(files / "party.toml")
    for beside in ("files", "mounted"):
        own = PartyFile.read(type(files)("..") / beside / "party.toml")
        folder = elsewhere / beside
        assert own.party.folder == str(folder / "out")
        assert os.path.normpath(own.party.secret) == str(elsewhere / "secret")
        assert own.keys.key == str(folder / "keys" / "bank.key")
        assert own.peers["shop"].ca == str(folder / "keys" / "shop.pem")
