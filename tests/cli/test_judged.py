"""Pooled baselines, intervals and the verdict, from the command line."""

import json

import pytest

from fedloom.config.runfile import RunFile
from fedloom.core.errors import InterruptedRun
from fedloom.records.predictions import NAME, Predictions
from fedloom.runs.job import Job, Watcher
from fedloom.runs.pooled import network

from .conftest import records

ALL = 'evaluation.baselines=["central", "best-pooled", "logistic", "boosting"]'


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(network, "EPOCHS", 8)


def test_pooled_baselines_stand_beside_a_run(fedloom, run_file, tmp_path):
    folder = tmp_path / "a"
    code, out, err = fedloom("run", run_file, "--out", folder, "--set", ALL)
    assert code == 0, err
    assert json.loads((folder / "manifest.json").read_text())["parts"] == [
        *("tdcd", "central", "best-pooled", "logistic", "boosting")
    ]
    table, said = out.split("\n\nAfter ")
    for name in ("best-pooled", "logistic", "boosting"):
        (record,) = records(folder / "baselines" / name)
        (line,) = (line for line in table.splitlines() if line.startswith(name))
        low, high = record["intervals"]["accuracy"]
        assert f"{record['metrics']['accuracy']:.4f}" in line
        assert f"{low:.3f} to {high:.3f}" in line
        assert record["bytes"] == {}
    assert "logistic regression on the pooled columns" in " ".join(said.split())
    for part in (folder, *(folder / "baselines").iterdir()):
        found = Predictions.read(part)
        last = records(part)[-1]
        assert {m: list(ends) for m, ends in found.intervals().items()} == last["intervals"]
        assert (part / NAME).stat().st_mode & 0o777 == 0o600
        assert found.rows == Predictions.read(folder).rows
    text = (folder / "report.html").read_text()
    assert "scikit-learn&#39;s" in text
    assert all("intervals" not in record for record in records(folder)[:-1])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("evaluation.baselines=['ridge']", "baseline ridge: ridge regression is for numbers"),
        ("evaluation.baselines=['logistik']", "did you mean 'logistic'"),
        ("evaluation.contributions=all", "not one of the choices"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    fedloom, run_file, tmp_path, settings, why
):
    code, _, err = fedloom("run", run_file, "--out", tmp_path / "a", "--set", settings)
    assert code == 2
    assert why in err
    assert not (tmp_path / "a").exists()


class Stopper(Watcher):
    """Asks to stop in the middle of a part."""

    def __init__(self, part, after):
        self.job, self._wanted, self._after, self._part = None, part, after, ""

    def part(self, name, rounds, done, metric):
        self._part = name

    def round(self, done):
        if (self._part, done) == (self._wanted, self._after):
            self.job.stop()


def test_a_stop_in_the_middle_of_a_baseline(run_file, tmp_path):
    """It begins again; what was done before stays as it is, and the result is the same."""
    file = RunFile.read(run_file, [ALL])
    watch = Stopper("best-pooled", 3)
    watch.job = Job.new(file, tmp_path / "a", watch)
    with pytest.raises(InterruptedRun, match="stopped after 3 epochs of best-pooled"):
        watch.job.go()
    assert not (tmp_path / "a" / "baselines" / "best-pooled" / "records.jsonl").exists()
    before = (tmp_path / "a" / "records.jsonl").read_text()
    Job.resume(tmp_path / "a").go()
    Job.new(file, tmp_path / "b").go()
    assert (tmp_path / "a" / "records.jsonl").read_text() == before
    for part in (".", "baselines/central", "baselines/best-pooled", "baselines/logistic"):
        assert records(tmp_path / "a" / part) == records(tmp_path / "b" / part)
        found = [(tmp_path / run / part / NAME).read_bytes() for run in "ab"]
        assert found[0] == found[1]


def test_labels_in_one_silo_only(fedloom, run_file, tmp_path):
    """All baselines stand beside it, and the silo with the labels is not left out."""
    settings = (
        "algorithm.name=tdcd-private-labels",
        "partition.labels_at=b",
        "algorithm.labels_at=b",
        'evaluation.baselines=["central", "alone", "best-pooled", "logistic"]',
        "evaluation.contributions=retrained",
    )
    given = [word for setting in settings for word in ("--set", setting)]
    code, out, err = fedloom("run", run_file, "--out", tmp_path / "a", *given)
    assert code == 0, err
    parts = json.loads((tmp_path / "a" / "manifest.json").read_text())["parts"]
    assert parts[-3:] == ["without-a", "best-pooled", "logistic"]
    assert "After 6 rounds TDCD with private labels reaches" in out
    assert "silo b alone" in " ".join(out.split())
    text = (tmp_path / "a" / "report.html").read_text()
    assert "It was not trained without b" in text
