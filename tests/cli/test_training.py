"""Jobs with epochs, validation rows and early stopping; jobs that go on; searches."""

import json
import os
import shutil
import signal

import pytest

from fedloom import load_model
from fedloom.core.extras import lacking
from fedloom.records.checkpoint import load_checkpoint
from fedloom.report.folder import read_run
from fedloom.report.tables import finals
from fedloom.report.verdict import verdict
from fedloom.report.words import show
from tests.cli.conftest import process, records
from tests.cli.test_stopping import lines, wait_until

STOPPING = """\
[data]
name = "digits"
take = 300
validation = 0.25

[partition]
clients = [2, 3]

[model]
name = "mlp"
hidden = [8]

[algorithm]
local_steps = 5
lr = 0.5
batch = 40
epochs = 12

[evaluation]
every = 2
baselines = ["alone"]

[stopping]
patience = 2

[output]
report = false
checkpoint_every = 3
"""


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    (folder / "run.toml").write_text(STOPPING)
    ran = process("run", folder / "run.toml", "--out", folder / "run", "--quiet")
    _, err = ran.communicate(timeout=120)
    assert ran.returncode == 0, err
    return folder / "run"


@pytest.fixture
def stopping(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(STOPPING)
    return path


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def result(folder):
    """All that a job says and keeps, but for seconds and dates."""
    states = {p: load_checkpoint(folder / p / "checkpoint.safetensors") for p in PARTS}
    tensors = {p: {k: v.tolist() for k, v in s.tensors.items()} for p, s in states.items()}
    said = {key: manifest(folder)[key] for key in ("best", "halted", "epochs")}
    return said, {p: records(folder / p) for p in PARTS}, tensors


PARTS = (".", "baselines/alone")


def test_the_model_of_the_best_evaluation_is_saved(straight):
    told, kept = manifest(straight), records(straight)
    best = told["best"]["tdcd"]
    losses = {r["round"]: r["validation"]["loss"] for r in kept[1:]}
    assert best["round"] == min(losses, key=losses.get) == kept[-1]["best"]
    assert best["value"] == pytest.approx(losses[best["round"]], rel=1e-5)
    assert kept[-1]["round"] == best["round"] + 2 * 2
    assert "has not improved in 2 evaluations" in told["halted"]["tdcd"]
    assert load_model(straight / "model").facts["rounds"] == best["round"]


def test_epochs_are_rounds_of_as_many_rows(straight, fedloom, stopping):
    """225 rows and 40 of them a round: 12 epochs are 67.5 rounds."""
    assert manifest(straight)["config"]["algorithm"]["rounds"] == 68
    assert manifest(straight)["epochs"] == pytest.approx(68 * 40 / 225)
    code, out, _ = fedloom("check", stopping)
    assert code == 0
    assert "68 rounds, 12.1 epochs of the training rows" in out
    assert "225 training rows, 75 validation rows, 100 test rows" in out
    code, out, _ = fedloom("check", stopping, "--json", "--set", "algorithm.minibatch=fresh")
    assert json.loads(out)["rounds"] == 14


@pytest.mark.parametrize("after", [4, 9])
def test_killed_and_resumed_it_ends_as_if_undisturbed(straight, stopping, tmp_path, after):
    folder = tmp_path / "run"
    ran = process("run", stopping, "--out", folder, "--quiet")
    wait_until(lambda: lines(folder / "records.jsonl") >= after or ran.poll() is not None)
    if ran.poll() is None:
        os.kill(ran.pid, signal.SIGKILL)
    ran.wait()
    again = process("run", "--resume", folder, "--quiet")
    _, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert result(folder) == result(straight)


class TestMore:
    def test_a_finished_run_goes_on(self, fedloom, run_file, tmp_path):
        """As one that was longer from the start: 6 and 4 rounds are 10."""
        given = ("--set", 'evaluation.baselines=["alone"]', "--quiet")
        assert fedloom("run", run_file, "--out", tmp_path / "a", *given)[0] == 0
        code, _, err = fedloom("run", run_file, "--out", tmp_path / "a", *given, "--more", "4")
        assert code == 0, err
        longer = (*given, "--set", "algorithm.rounds=10")
        assert fedloom("run", run_file, "--out", tmp_path / "b", *longer)[0] == 0
        for part in PARTS:
            assert records(tmp_path / "a" / part) == records(tmp_path / "b" / part)
        told = manifest(tmp_path / "a")
        (more,) = told["more"]
        assert (more["from"], more["rounds"]) == ({"tdcd": 6, "alone": 6}, 4)
        assert told["finished"] is not None
        assert told["config"]["algorithm"]["rounds"] == 10

    def test_patience_begins_anew(self, straight, stopping, fedloom, tmp_path):
        folder = tmp_path / "run"
        shutil.copytree(straight, folder)
        before = records(folder)
        given = ("run", stopping, "--out", folder, "--quiet")
        code, _, err = fedloom(*given, "--more", "4")
        assert code == 0, err
        after = records(folder)
        for record in (*before, *after):  # of the model that is kept, which may be a later one
            record.pop("intervals", None)
        assert after[: len(before)] == before
        assert after[-1]["round"] == before[-1]["round"] + 4
        first = manifest(straight)["best"]["tdcd"]
        assert manifest(folder)["best"]["tdcd"]["value"] <= first["value"]

    def test_what_cannot_go_on(self, fedloom, run_file, tmp_path):
        given = ("run", run_file, "--out", tmp_path / "a", "--quiet")
        code, _, err = fedloom(*given, "--more", "4")
        assert code == 3
        assert "holds no finished run" in err
        assert fedloom(*given)[0] == 0
        code, _, err = fedloom(*given, "--more", "4", "--set", "algorithm.lr=0.1")
        assert code == 2
        assert "algorithm.lr was another when it was run" in err
        assert fedloom(*given, "--more", "0")[0] == 2
        code, _, err = fedloom("run", "--resume", tmp_path / "a", "--more", "4")
        assert code == 2
        assert len(records(tmp_path / "a")) == 4


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("algorithm.rounds=3", "give `rounds` or `epochs`, not both"),
        ("algorithm.epochs=0", "above 0"),
        ("data.validation=1.5", "above 0 and below 1"),
        ("data.validation=none", "there are no validation rows to stop by"),
        ("stopping.metric=acuracy", "did you mean 'accuracy'"),
        ("stopping.metric=r2", "metric r2 is for number"),
        ("stopping.patience=0", "at least 1"),
    ],
)
def test_what_is_refused_before_training(fedloom, stopping, setting, told):
    code, _, err = fedloom("check", stopping, "--set", setting)
    assert code == 2
    assert told in err


class TestSearch:
    GRID = ("--grid", "algorithm.lr={low = 0.001, high = 1.0, log = true}")

    def test_its_arguments(self, fedloom, run_file):
        if lacking("optuna", "--search"):
            code, _, err = fedloom("sweep", run_file, "--search", "tpe", "--trials", "3")
            assert code == 2
            assert "pip install 'fedloom[optuna]'" in err
            return
        for words, told in (
            (("--search", "tpe", *self.GRID), "--search needs --trials"),
            (("--search", "tpe", "--trials", "2"), "needs what to search over"),
            (("--trials", "2", *self.GRID), "--trials is for --search"),
            (("--search", "tpe", "--trials", "2", "--seeds", "2", *self.GRID), "leave out --seeds"),
            (("--search", "tpe", "--trials", "2", "--grid", "algorithm.lr={low=1}"), "is expected"),
            (("--search", "tpe", "--trials", "2", "--grid", "algorithm.lr={low=-1,high=1}"), "lr"),
        ):
            code, _, err = fedloom("sweep", run_file, *words)
            assert code == 2, words
            assert told in err

    def test_it_draws_points_and_goes_on(self, fedloom, run_file, tmp_path):
        pytest.importorskip("optuna", reason="the extra optuna is not installed")
        given = ("sweep", run_file, "--search", "tpe", *self.GRID, "--out", tmp_path / "s")
        given = (*given, "--set", "data.validation=0.2", "--jobs", "2", "--quiet", "--json")
        code, out, err = fedloom(*given, "--trials", "3")
        assert code == 0, err
        first = json.loads(out)
        assert len(first["runs"]) == 3
        means = [point["mean"] for point in first["best"]]
        assert means == sorted(means)
        rates = [run["settings"]["algorithm.lr"] for run in first["runs"]]
        assert all(0.001 <= rate <= 1 for rate in rates)
        code, out, err = fedloom(*given, "--trials", "4")
        assert code == 0, err
        more = [run["settings"]["algorithm.lr"] for run in json.loads(out)["runs"]]
        assert more[:3] == rates
        assert len(more) == 4

    @pytest.mark.slow
    def test_poor_runs_are_stopped_on_the_way(self, fedloom, run_file, tmp_path):
        """Six that learn, then one that cannot: it is stopped before its end."""
        optuna = pytest.importorskip("optuna", reason="the extra optuna is not installed")
        grid = ("--grid", "algorithm.lr={low = 1e-9, high = 0.1, log = true}")
        given = ("sweep", run_file, "--search", "random", *grid, "--out", tmp_path / "s", "--quiet")
        long = ("data.validation=0.2", "algorithm.rounds=200", "evaluation.every=10")
        given = (*given, "--jobs", "2", *(word for text in long for word in ("--set", text)))
        assert fedloom(*given, "--trials", "1")[0] == 0
        storage = optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(tmp_path / "s" / "study.log"))
        )
        study = optuna.load_study(study_name="s", storage=storage)
        for rate in (0.05, 0.06, 0.07, 0.08, 0.09, 1e-9):
            study.enqueue_trial({"algorithm.lr": rate})
        code, _, err = fedloom(*given, "--trials", "7")
        assert code == 0, err
        again = optuna.load_study(study_name="s", storage=storage)
        states = [trial.state.name for trial in again.trials]
        assert states[1:] == ["COMPLETE"] * 5 + ["PRUNED"]
        assert records(tmp_path / "s" / "lr=1e-09")[-1]["round"] < 200


def test_the_report_is_about_the_model_that_was_kept(straight):
    run = read_run(straight)
    kept = {record["round"]: record for record in records(straight)}
    best = kept[manifest(straight)["best"]["tdcd"]["round"]]
    first = next(row for row in finals(run) if row["part"] == "TDCD")
    assert first["rounds"] == str(records(straight)[-1]["round"])
    assert first["final"] == show("accuracy", best["metrics"]["accuracy"])
    assert f"After {best['round']} rounds" in verdict(run)
