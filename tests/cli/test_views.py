"""Clients with different views, described in a run file; and its example."""

import json
import re
from pathlib import Path

import pytest

from fedloom.config.runfile import RunFile
from fedloom.data.partition.views import HYFEM_CLASSES, HYFEM_VIEWS
from fedloom.runs.build import build_data
from tests.cli.conftest import records

EXAMPLE = Path(__file__).parents[2] / "examples" / "hyfem-digits.toml"
SHORT = ("--set", "algorithm.rounds=2", "--set", "evaluation.baselines=[]", "--quiet")


def lists(table):
    return "".join(f"{client} = {list(numbers)}\n" for client, numbers in table.items())


def test_the_example(fedloom, tmp_path):
    code, _, err = fedloom("run", EXAMPLE, "--out", tmp_path / "a", *SHORT)
    assert code == 0, err
    (begun, *_, last) = records(tmp_path / "a")
    assert last["train_loss"] < begun["train_loss"]
    assert set(last["metrics"]) >= {"accuracy", "local_accuracy"}
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert list(manifest["data"]["silos"]["views"]["clients"]) == ["ash", "birch", "cedar", "doum"]
    code, _, err = fedloom("run", tmp_path / "a" / "run.toml", "--out", tmp_path / "b", "--quiet")
    assert code == 0, err
    assert records(tmp_path / "a") == records(tmp_path / "b")
    code, output, err = fedloom("explain", EXAMPLE)
    assert code == 0, err
    assert "own-model" in output


def test_the_papers_partition():
    """HyFEM's 8 clients, 12 views and 40 classes, on made-up rows: 58 of 480 cells unused."""
    file = RunFile.parse(
        '[data]\nname = "synthetic"\nrows = 2000\nfeatures = 24\ngoal = "classes"\nclasses = 40\n'
        f"[partition]\nsilos = 12\n[partition.views]\n{lists(HYFEM_VIEWS)}"
        f"[partition.classes]\n{lists(HYFEM_CLASSES)}"
    )
    data = build_data(file)
    assert data.notes == ("58 of 480 cells of class and view are at no client (12.08%)",)
    assert data.train.x["views"].shape[1:] == (12, 2)
    assert data.train.topology.clients == {"views": tuple("01234567")}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("partition.views={ash=[0], birch=[1], cedar=[0], doum=[1, 2]}", "nobody holds 3; give"),
        ("partition.views.doum=[4]", "'doum' has 4; there are 0 to 3"),
        ("partition.views.elm=[0]", "classes and views must be given for the same clients"),
        ("partition.clients=4", "clients: with `views`, rows go by class .*; leave it out"),
        ("partition.labels_at=ash", "labels_at: with `views`"),
        ("partition.views=none", "classes is for clients with different views: it needs `views`"),
        ("partition.file=cut.json", "leave out `file` or `views`"),
        ("data.name=breast-cancer", "cuts images"),
    ],
)
def test_what_is_refused(fedloom, setting, message):
    code, _, err = fedloom("check", EXAMPLE, "--set", setting)
    assert code in (2, 3), err
    assert re.search(message, err), err
