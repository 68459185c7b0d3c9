"""What bad input gets at the command line: one sentence that says what to do, and an exit code."""

import gzip
import re

import numpy as np
import pytest

from tests.cli.conftest import process

TABLES = """\
[data]
id = "person"
label = "late"

[data.silos]
bank = {north = "north.csv", south = "south.csv"}
shop = "shop.csv"

[algorithm]
batch = 10
rounds = 2
"""


def rows(start, stop, head, line):
    return head + "\n" + "".join(line.format(i=i, odd=i % 2) + "\n" for i in range(start, stop))


@pytest.fixture
def tables(tmp_path):
    """Sound tables; tests spoil one of them."""
    (tmp_path / "run.toml").write_text(TABLES)
    bank = ("person,income,late", "p{i},{i}.5,{odd}")
    (tmp_path / "north.csv").write_text(rows(0, 30, *bank))
    (tmp_path / "south.csv").write_text(rows(30, 60, *bank))
    (tmp_path / "shop.csv").write_text(rows(0, 60, "person,orders,late", "p{i},{i},{odd}"))
    return tmp_path


def test_sound_tables_run(tables, fedloom):
    code, out, err = fedloom("run", tables / "run.toml", "--out", tables / "out")
    assert code == 0, err
    assert "report.html" in out


@pytest.mark.parametrize(
    ("file", "spoil", "message"),
    [
        ("north.csv", lambda t: t + "p3,1.0,0\np4,1.0,1\n", "2 ids .*more than once"),
        (
            "south.csv",
            lambda t: t + "p3,1.0,1\n",
            "1 ids are held by .*north and south",
        ),
        ("north.csv", lambda t: t.replace("late", "later"), "late"),
        ("south.csv", lambda t: t.replace("income", "incomes"), "income"),
        ("south.csv", lambda t: t.replace(",40.5,", ",lots,"), "income"),
        ("north.csv", lambda t: "", "empty|no rows|no columns"),
        ("shop.csv", lambda t: t.replace("\np", "\nq"), "no id is in every silo"),
        ("north.csv", lambda t: t.replace("person", "persona"), "person"),
    ],
)
def test_spoiled_tables(file, spoil, message, tables, fedloom):
    path = tables / file
    path.write_text(spoil(path.read_text()))
    for verb in ("check", "run"):
        out = ["--out", tables / "out"] if verb == "run" else []
        code, _, err = fedloom(verb, tables / "run.toml", *out)
        assert code == 3, err
        assert err.startswith("fedloom: ")
        assert len(err.splitlines()) == 1
        assert re.search(message, err), err
        assert "Traceback" not in err
        assert not (tables / "out").exists()
        assert not re.search(r"\b[pq]\d+\b|\blots\b|\d\.5\b", err), "somebody's id or cell"


def test_labels_in_no_file(tables, fedloom):
    code, _, err = fedloom("check", tables / "run.toml", "--set", "data.label=lat")
    assert code == 3
    assert "did you mean 'late'" in err


def test_a_missing_table_and_a_missing_set(tables, fedloom, run_file, monkeypatch):
    (tables / "north.csv").unlink()
    code, _, err = fedloom("check", tables / "run.toml")
    assert code == 3
    assert "north.csv" in err
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)
    code, _, err = fedloom("check", run_file, "--set", "data.name=mnist")
    assert code == 3
    assert "FEDLOOM_DATA is not set" in err
    missing = f"data.folder={tables / 'nowhere'}"
    code, _, err = fedloom("run", run_file, "--set", "data.name=mnist", "--set", missing)
    assert code == 3
    assert str(tables / "nowhere") in err
    assert "train-images-idx3-ubyte.gz" in err


def test_a_corrupt_set(tmp_path, fedloom, run_file):
    images = np.zeros((10, 28, 28), dtype=np.uint8).tobytes()
    for name in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(images))
    for name in ("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"\0" * 18)[:-9])  # cut short
    given = ("--set", "data.name=mnist", "--set", f"data.folder={tmp_path}")
    code, _, err = fedloom("check", run_file, *given)
    assert code == 3
    assert "is damaged or another version (SHA-256" in err
    code, out, err = fedloom("data", "mnist", "--folder", tmp_path, "--verify")
    assert code == 3
    assert "damaged" in out


def test_a_typo(run_file, fedloom):
    run_file.write_text(run_file.read_text().replace("local_steps", "local_step"))
    code, _, err = fedloom("run", run_file)
    assert code == 2
    assert f"{run_file}:8: algorithm.local_step: unknown key" in err
    assert "did you mean 'local_steps'" in err


@pytest.mark.parametrize(
    ("setting", "code", "message"),
    [
        ("engine.device=cuda:9", 2, "torch finds no GPU|device"),
        ("model.name=cnn", 2, "wants images"),
        ("data.name=[1]", 2, "unknown data set"),
        ("partition.clients=[1, 2, 3]", 2, "clients"),
        ("evaluation.baselines=['tdcd']", 2, "not one of the choices"),
        ("network.speed={nobody = 2}", 2, "nobody"),
        ("partition.file=nowhere.json", 3, "nowhere.json"),
    ],
)
def test_settings_that_do_not_fit(setting, code, message, run_file, fedloom):
    code_found, _, err = fedloom("check", run_file, "--set", setting)
    assert (code_found, bool(re.search(message, err))) == (code, True), err


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("vafl", ["algorithm.group=3"], r"group \(t\) is 3, .* only 2 silos .* say 2 or less"),
        ("vafl", ["algorithm.group=0"], "algorithm.group: must be at least 1, not 0"),
        ("vafl", ["algorithm.max_delay=0"], "algorithm.max_delay: must be at least 1, not 0"),
        ("vafl", ["partition.labels_at=b"], r"silo a holds no labels: labels_at .*\(here: b\)"),
        ("splitnn", ["partition.labels_at=b"], r"silo a holds no labels: labels_at .*\(here: b\)"),
        ("tdcd", ["partition.labels_at=b"], "silo a holds no labels: .*tdcd-private-labels"),
        (
            "fedbcd",
            ["algorithm.order=sequential", "partition.silos=1", "partition.clients=2"],
            "order = sequential: there is one silo.*use parallel",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["check", "run"])
def test_algorithms_that_cannot_run_so(verb, name, settings, message, run_file, fedloom, tmp_path):
    """Refused before training, with what to change."""
    out = ["--out", tmp_path / "out"] if verb == "run" else []
    given = [
        word for setting in (f"algorithm.name={name}", *settings) for word in ("--set", setting)
    ]
    code, _, err = fedloom(verb, run_file, *given, *out)
    assert code in (2, 3), err
    assert re.search(message, err), err
    assert not (tmp_path / "out").exists()


def test_debug_shows_where(run_file):
    ran = process("--debug", "check", run_file, "--set", "model.name=cnn")
    _, err = ran.communicate(timeout=150)
    assert ran.returncode == 1
    assert "Traceback" in err


def test_an_output_folder_that_cannot_be(run_file, tmp_path, fedloom):
    (tmp_path / "file").write_text("")
    code, _, err = fedloom("run", run_file, "--out", tmp_path / "file" / "run")
    assert code == 6
    assert "cannot be written" in err
