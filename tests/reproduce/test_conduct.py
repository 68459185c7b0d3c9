"""Running: what is finished stays, what is not goes on, and step sizes are searched for."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fedloom.core.errors import ExistsError
from fedloom.core.files import write_json
from fedloom.reproduce import results
from fedloom.reproduce.conduct import DIVERGED, Conduct
from fedloom.reproduce.experiment import Experiment
from fedloom.reproduce.results import conclude, latest
from fedloom.runs.job import Job

TOLD = {
    "paper": "made",
    "item": "up",
    "title": "Q varied",
    "claim": "more steps, lower loss",
    "smaller": "no",
    "run": {
        "data": {"name": "synthetic", "rows": 80, "features": 4, "goal": "number"},
        "partition": {"silos": 2, "clients": 2},
        "algorithm": {"name": "tdcd", "batch": 30, "lr": 0.05, "rounds": 20},
        "evaluation": {"every": 2},
    },
    "vary": {"Q": {"key": "algorithm.local_steps", "values": [1, 4]}},
    "panel": [{"x": "round", "y": "train_loss"}],
    "number": [],
    "expect": [
        {
            "kind": "order",
            "claim": "larger Q, lower loss",
            "along": "Q",
            "trend": "down",
            "stat": "mean",
            "y": "train_loss",
        }
    ],
}
MADE = Experiment("made", False, TOLD)


def made(**changes):
    return replace(MADE, description={**TOLD, **changes})


def records(conduct):
    """What was recorded, but for the seconds it took."""
    return {run.folder.name: [{**r, "wall": 0} for r in run.records] for run in conduct.runs}


def test_a_result_beside_its_curves(tmp_path):
    conduct = Conduct(MADE, tmp_path, seeds=2)
    assert conduct.go()
    result = conclude(conduct, True)
    (verdict,) = result["verdicts"]
    assert verdict["held"]
    assert json.loads((tmp_path / "made" / "result.json").read_text()) == result
    assert latest("made", False, tmp_path) == (result, "yours")
    assert latest("made", True, tmp_path) is None
    folder = tmp_path / "made" / "runs" / "Q=1,seed=0"
    assert not (folder / "checkpoint.safetensors").exists()
    assert not (folder / "model").exists()


def test_what_is_finished_is_not_run_again(tmp_path, monkeypatch):
    half = tmp_path / "made" / "runs" / "Q=1,seed=0"  # killed before it had begun
    half.mkdir(parents=True)
    (half / "records.jsonl").write_text("")
    Conduct(MADE, tmp_path, seeds=1).go()
    before = records(Conduct(MADE, tmp_path, seeds=1))
    ran = []
    whole = Job.go
    monkeypatch.setattr(Job, "go", lambda job: ran.append(job.folder.name) or whole(job))
    assert Conduct(MADE, tmp_path, seeds=1).go()
    assert ran == []
    assert Conduct(MADE, tmp_path, seeds=2).go()
    assert sorted(ran) == ["Q=1,seed=1", "Q=4,seed=1"]
    assert records(Conduct(MADE, tmp_path, seeds=1)) == before
    with pytest.raises(ExistsError, match="holds another run"):
        Conduct(made(iterations=8), tmp_path, seeds=1).go()


def test_a_time_limit_makes_pieces_of_the_same_runs(tmp_path):
    straight = Conduct(MADE, tmp_path / "straight", seeds=1)
    straight.go()
    pieces = 0
    while not (piece := Conduct(MADE, tmp_path / "pieces", seeds=1, limit=0.02)).go():
        pieces += 1
        assert pieces < 200
    assert pieces > 1
    assert records(piece) == records(straight)


def test_pieces_are_judged_as_far_as_they_go(tmp_path):
    """Under a limit, runs take turns; a result says that it is not the last."""
    piece = Conduct(MADE, tmp_path, seeds=1, limit=0.001)
    assert not piece.go()
    assert conclude(piece, False) is None  # the second curve has not begun
    for run in piece.runs:
        piece._run(run, 0.0, lambda said: None)
        piece._run(run, 0.0, lambda said: None)
    assert all(len(run.records) > 1 and not run.done for run in piece.runs)
    assert not conclude(piece, False)["finished"]
    before = records(piece)
    assert not Conduct(MADE, tmp_path, seeds=1, limit=0).go()  # only asks
    assert records(piece) == before


def test_the_search_takes_the_lowest_training_loss(tmp_path):
    search = {"key": "algorithm.lr", "values": [0.001, 0.1, 1e6], "iterations": 20}
    conduct = Conduct(made(search=search), tmp_path, seeds=1)
    assert conduct.go()
    picked = [line for line in conduct.search_table() if line["picked"]]
    assert [(line["setting"], line["value"]) for line in picked] == [("Q = 1", 0.1), ("Q = 4", 0.1)]
    lost = tmp_path / "made" / "search" / "Q=4,lr=1000000.0"
    assert (lost / DIVERGED).is_file()
    assert {run.file.values["algorithm"]["lr"] for run in conduct.runs} == {0.1}
    shared = Conduct(made(search={**search, "by": []}), tmp_path, seeds=1)
    assert len(conduct.trials) == 6
    assert len(shared.trials) == 3


def test_the_way_to_a_gpu_needs_no_writer_of_toml_and_no_accountant(tmp_path, monkeypatch):
    for name in ("tomli_w", "dp_accounting"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises
    assert Conduct(MADE, tmp_path, seeds=1, device="cpu").go()


def test_the_device_is_that_of_the_runs(tmp_path):
    machines = {
        "a": {"device": "cuda:0", "gpu": "Some GPU", "cores": 16},
        "b": {"device": "cuda", "cores": 16},  # of before its name was noted
        "c": {"device": "cpu", "cores": 3},
        "d": {"device": "cpu", "cores": 3},
    }
    for name, machine in machines.items():
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "manifest.json", {"machine": machine})
    ones = [SimpleNamespace(folder=tmp_path / name) for name in machines]
    assert results._devices(ones).startswith("Some GPU and cuda and CPU, 3 cores (")
    assert results._devices([]).startswith("CPU, ")
