"""Every verb, as a user types it; and the promise of names."""

import argparse
import json
import subprocess
import sys

import pytest

from fedloom.cli.main import CODES, parser
from fedloom.config.catalogue import KINDS
from tests.cli.conftest import records

PROMISED = {
    "": {"--help", "--version", "--debug"},
    "run": {"--wait", "file", "--set", "--out", "--resume", "--more", "--quiet"},
    "sweep": {
        *("file", "--set", "--grid", "--seeds", "--out", "--jobs", "--best", "--quiet", "--json"),
        *("--search", "--trials"),
    },
    "compare": {"folders", "--metric", "--axis", "--out", "--json"},
    "report": {"folder"},
    "reproduce": {
        *("name", "--list", "--full", "--seeds", "--iterations", "--only", "--out", "--device"),
        *("--time-limit", "--quiet", "--json"),
    },
    "list": {"kind", "--json"},
    "explain": {"what", "--set", "--draw", "--json"},
    "example": {"name", "--out"},
    "data": {"name", "--folder", "--verify", "--json"},
    "predict": {"file", "party", "--set", "--for", "--ids", "--out", "--missing", "--quiet"},
    "check": {"file", "--set", "--party", "--json"},
    "rehearse": {"file", "--set", "--out", "--within", "--quiet"},
    "hub": {"file", "party", "--set", "--resume", "--quiet"},
    "client": {"file", "party", "--set", "--resume", "--quiet"},
    "align": {"file", "party", "--set", "--quiet"},
    "status": {"party", "--json"},
    "keys": set(),
}


def options(verb):
    return {
        action.option_strings[-1] if action.option_strings else action.dest
        for action in verb._actions
        if not isinstance(action, argparse._SubParsersAction)
    }


def test_commands_and_options_are_a_promise():
    top = parser()
    (verbs,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    assert options(top) == PROMISED[""]
    options_of = {name: options(verb) - {"--help"} for name, verb in verbs.choices.items()}
    assert options_of == {verb: names for verb, names in PROMISED.items() if verb}


def test_every_verb_teaches(fedloom):
    for verb in PROMISED:
        code, out, _ = fedloom(*([verb] if verb else []), "--help")
        assert code == 0
        assert "fedloom" in out
        assert not verb or f"  fedloom {verb}" in out, f"{verb} --help has no example"


def test_exit_codes_are_told(fedloom):
    _, out, _ = fedloom("--help")
    for code, _ in CODES.values():
        assert f" {code} " in out


def test_run_and_report(fedloom, run_file, tmp_path):
    code, out, err = fedloom("run", run_file, "--out", tmp_path / "a", "--set", "engine.seed=3")
    assert code == 0, err
    assert "tdcd: round 6 of 6" in err
    assert str(tmp_path / "a" / "report.html") in out
    entries = records(tmp_path / "a")
    assert [line["round"] for line in entries] == [0, 2, 4, 6]
    assert entries[-1]["iteration"] == 12
    assert entries[-1]["time"] == 6 * (3 * 10 + 2 * 1)  # rounds x (3 t_comm + Q t_comp)
    assert set(entries[-1]["metrics"]) >= {
        "accuracy",
        "f1",
        "precision",
        "recall",
        "auroc",
        "auprc",
    }
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert manifest["seed"] == 3
    assert manifest["finished"]
    assert manifest["data"]["rows"]["train"] + manifest["data"]["rows"]["test"] == 150
    assert {"torch", "numpy"} <= set(manifest["versions"])
    (tmp_path / "a" / "report.html").unlink()
    assert fedloom("report", tmp_path / "a")[0] == 0
    assert (tmp_path / "a" / "report.html").stat().st_size > 10_000


def test_the_resolved_file_gives_the_same_run(fedloom, run_file, tmp_path):
    fedloom("run", run_file, "--out", tmp_path / "a", "--set", "algorithm.rounds=2", "--quiet")
    code, _, err = fedloom("run", tmp_path / "a" / "run.toml", "--out", tmp_path / "b", "--quiet")
    assert code == 0, err
    assert records(tmp_path / "a") == records(tmp_path / "b")


def test_baselines(fedloom, run_file, tmp_path):
    every = 'evaluation.baselines=["central", "alone", "no-exchange"]'
    short = "algorithm.rounds=2"
    code, out, err = fedloom("run", run_file, "--out", tmp_path, "--set", every, "--set", short)
    assert code == 5  # tmp_path holds the run file
    code, out, err = fedloom(
        "run", run_file, "--out", tmp_path / "a", "--set", every, "--set", short
    )
    assert code == 0, err
    for name in ("central", "alone", "no-exchange"):
        assert name in out
        assert len(records(tmp_path / "a" / "baselines" / name)) == 2
    alone = records(tmp_path / "a" / "baselines" / "alone")[-1]
    accuracies = [metrics["accuracy"] for metrics in alone["by_silo"].values()]
    assert alone["metrics"]["accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))


def test_compare(fedloom, run_file, tmp_path):
    for lr in (0.01, 0.1):
        setting = f"algorithm.lr={lr}"
        fedloom("run", run_file, "--out", tmp_path / str(lr), "--set", setting, "--quiet")
    both = (tmp_path / "0.01", tmp_path / "0.1")
    code, out, _ = fedloom("compare", *both, "--out", tmp_path / "c.png", "--axis", "time")
    assert code == 0
    assert (tmp_path / "c.png").stat().st_size > 5_000
    code, out, _ = fedloom("compare", *both, "--json", "--metric", "train_loss")
    assert len(json.loads(out)) == 2
    assert fedloom("compare", tmp_path / "nothing")[0] == 3


def test_list(fedloom):
    code, out, _ = fedloom("list", "--json")
    catalogue = json.loads(out)
    assert code == 0
    assert set(catalogue) == set(KINDS) >= {"algorithms", "vertical_partitioners", "transports"}
    (tdcd,) = (entry for entry in catalogue["algorithms"] if entry["name"] == "tdcd")
    assert {"local_steps", "lr", "batch"} <= {field["name"] for field in tdcd["fields"]}
    for kind, entries in catalogue.items():
        code, out, _ = fedloom("list", kind)
        assert code == 0
        for entry in entries:
            assert entry["about"], f"{kind} {entry['name']} says nothing about itself"
            assert entry["name"] in out
            for field in entry["fields"]:
                assert field["about"], f"{kind} {entry['name']}.{field['name']} has no words"


def test_explain(fedloom, run_file, tmp_path):
    code, out, _ = fedloom("explain", "tdcd")
    assert code == 0
    assert "hub-embedding" in out
    code, out, _ = fedloom("explain", run_file, "--json", "--draw", tmp_path / "e.png")
    assert code == 0
    assert json.loads(out)
    assert (tmp_path / "e.png").stat().st_size > 5_000
    code, _, err = fedloom("explain", "tdcdd")
    assert code == 2
    assert "neither a run file nor an algorithm" in err


def test_data(fedloom, tmp_path):
    code, out, _ = fedloom("data", "--json", "--folder", tmp_path)
    states = {state["name"]: state for state in json.loads(out)}
    assert code == 0
    assert states["iris"]["state"] == "bundled"
    assert states["mnist"]["state"] == "missing"
    assert str(tmp_path) in states["mnist"]["looked_in"][1]
    code, out, _ = fedloom("data", "mnist", "--folder", tmp_path)
    assert code == 3
    assert "train-images-idx3-ubyte" in out


def test_check(fedloom, run_file):
    code, out, _ = fedloom("check", run_file)
    assert code == 0
    assert "sound" in out
    code, out, _ = fedloom("check", run_file, "--json")
    assert json.loads(out)["data"]["rows"]["train"] > 100
    assert fedloom("check", run_file, "--set", "algorithm.batch=1000000")[0] == 2


def test_sweep_goes_on(fedloom, run_file, tmp_path):
    grid = ("--grid", "algorithm.local_steps=[1, 4]", "--seeds", "2", "--out", tmp_path / "s")
    short = ("--set", "algorithm.rounds=2", "--quiet")
    code, out, err = fedloom("sweep", run_file, *grid, *short, "--json")
    assert code == 0, err
    results = json.loads(out)
    assert len(results["runs"]) == 4
    assert [point["seeds"] for point in results["best"]] == [2, 2]
    assert (tmp_path / "s" / "compare.png").is_file()
    first = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").glob("*/manifest.json")}
    assert len(first) == 4
    code, out, _ = fedloom("sweep", run_file, *grid, *short)
    assert code == 0
    assert "local_steps" in out
    assert {p: p.stat().st_mtime_ns for p in first} == first  # nothing ran again
    code, _, err = fedloom("sweep", run_file, "--seeds", "3", *grid[:2], "--out", tmp_path / "s")
    assert code == 5
    assert "another sweep" in err


def test_a_sweep_says_which_runs_failed(fedloom, run_file, tmp_path):
    grid = ("--grid", "algorithm.lr=[0.1, 1e39]", "--out", tmp_path / "s", "--quiet")
    code, _, err = fedloom("sweep", run_file, *grid)
    assert code == 1
    assert "1 of 2 runs failed: lr=1e+39" in err
    assert (
        fedloom("sweep", run_file, "--grid", "algorithm.lrr=[1]", "--out", tmp_path / "x")[0] == 2
    )
    assert fedloom("sweep", run_file, "--grid", "algorithm.lr=1", "--out", tmp_path / "x")[0] == 2


def test_output_into_a_closed_pipe():
    command = f"{sys.executable} -m fedloom list | head -1"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=150)
    assert ran.stdout.strip() == "algorithms"
    assert "Traceback" not in ran.stderr


def test_only_those_with_labels_can_be_a_baseline(fedloom, run_file, tmp_path):
    settings = (
        "algorithm.name=tdcd-private-labels",
        "algorithm.rounds=2",
        "partition.labels_at=b",
        "algorithm.labels_at=b",
        'evaluation.baselines=["central", "alone", "no-exchange"]',
    )
    given = [word for setting in settings for word in ("--set", setting)]
    code, _, err = fedloom("run", run_file, "--out", tmp_path / "a", "--quiet", *given)
    assert code == 0, err
    assert set(records(tmp_path / "a" / "baselines" / "alone")[-1]["by_silo"]) == {"b"}
    assert len(records(tmp_path / "a" / "baselines" / "central")) == 2  # it pools at b


def test_figures_that_cannot_be_written(fedloom, run_file, tmp_path):
    fedloom("run", run_file, "--out", tmp_path / "a", "--quiet", "--set", "output.report=false")
    (tmp_path / "file").write_text("")
    code, _, err = fedloom("compare", tmp_path / "a", "--out", tmp_path / "file" / "c.png")
    assert code == 6
    assert "Traceback" not in err
    (tmp_path / "a" / "report.html").mkdir()
    code, _, err = fedloom("report", tmp_path / "a")
    assert code == 6
    assert "report.html" in err


def test_best_must_be_a_metric(fedloom, run_file, tmp_path):
    given = ("--out", tmp_path / "s", "--quiet", "--set", "algorithm.rounds=1")
    code, _, err = fedloom("sweep", run_file, *given, "--best", "acuracy")
    assert code == 2
    assert "did you mean 'accuracy'" in err


def test_sweeps_rank_by_validation_rows_never_by_test_rows(fedloom, run_file, tmp_path):
    given = ("sweep", run_file, "--quiet", "--grid", "algorithm.local_steps=[1, 4]")
    short = ("--set", "algorithm.rounds=2", "--out", tmp_path / "s")
    code, _, err = fedloom(*given, *short, "--best", "accuracy")
    assert code == 2
    assert "would choose by the test rows; keep some back (--set data.validation=0.15)" in err
    code, out, err = fedloom(*given, *short, "--set", "data.validation=0.2", "--json")
    assert code == 0, err
    results = json.loads(out)
    losses = {run["settings"]["algorithm.local_steps"]: run["last"] for run in results["runs"]}
    assert [point["mean"] for point in results["best"]] == sorted(
        last["validation"]["loss"] for last in losses.values()
    )


def test_lone_silos_beside_each_other(fedloom, run_file, tmp_path):
    short = ("--set", "algorithm.rounds=1", "--set", "algorithm.combined=true")
    lone = ("--set", "algorithm.name=alone", "--set", 'evaluation.baselines=["no-exchange"]')
    code, _, err = fedloom("run", run_file, "--out", tmp_path / "a", "--quiet", *short, *lone)
    assert code == 0, err
    both = records(tmp_path / "a"), records(tmp_path / "a" / "baselines" / "no-exchange")
    assert both[0] == both[1]  # the same algorithm under two names


def test_an_order_of_visits_is_written_and_replayed(fedloom, run_file, tmp_path):
    """The order that a network gave, without that network and in the other engine."""
    short = ("--set", "algorithm.name=vafl", "--set", "algorithm.rounds=4")
    first, again = tmp_path / "first", tmp_path / "again"
    late = ("--set", "network.sleep=random", "--set", "network.rate=0.05")
    assert fedloom("run", run_file, "--out", first, "--quiet", *short, *late)[0] == 0
    visits = json.loads((first / "schedule.json").read_text())["visits"]
    assert len(visits) == 4
    replay = (
        "--set",
        f"engine.schedule={first / 'schedule.json'}",
        "--set",
        "engine.name=reference",
    )
    assert fedloom("run", run_file, "--out", again, "--quiet", *short, *replay)[0] == 0
    assert json.loads((again / "schedule.json").read_text())["visits"] == visits
    losses = [[r["train_loss"] for r in records(folder)] for folder in (first, again)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # single precision
    assert (first / "figures" / "delays.png").is_file()
    more = ("--set", "algorithm.rounds=5")
    code, _, err = fedloom("check", run_file, *short, *more, *replay)
    assert code == 2
    assert "has 4 rounds, 5 are asked for" in err
    (tmp_path / "no.json").write_text("[1]")
    code, _, err = fedloom("check", run_file, "--set", f"engine.schedule={tmp_path / 'no.json'}")
    assert code == 3
    assert "is not a recorded schedule" in err
