"""Records, ledgers and checkpoints on disk; and the writers for other tools."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import TDCD, Alone, Network, Partition, Run, Task, load_dataset
from fedloom.core import tree
from fedloom.core.errors import DataError, SettingError
from fedloom.core.registry import algorithms
from fedloom.fabric.ledger import Ledger, LedgerEntry
from fedloom.records import checkpoint
from fedloom.records.checkpoint import load_checkpoint, save_checkpoint
from fedloom.records.record import Record, append_record, grew, read_records, write_records
from fedloom.records.writers import open_writers
from fedloom.testing import placement, sample_of, task
from fedloom.testing.samples import examples_of

ONE = Record(2, 20, 64.0, 0.5, {"bottom": 10, "top": 4}, 0.25, {"accuracy": 0.5, "auroc": None})


def test_records_come_back(tmp_path):
    path = tmp_path / "records.jsonl"
    alone = Record(0, 0, None, 0.0, {"bottom": 0, "top": 0}, 1.0, {}, {"a": {"accuracy": 1.0}})
    write_records(path, [alone])
    append_record(path, ONE)
    assert read_records(path) == [alone, ONE]
    told = json.loads(path.read_text().splitlines()[1])
    assert not {"by_silo", "notes", "privacy"} & set(told)  # which it has none of


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "records.jsonl"
    write_records(path, [ONE, ONE])
    path.write_bytes(path.read_bytes()[:-20])
    assert read_records(path) == [ONE]
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(DataError, match="damaged"):
        read_records(path)


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([1.0], False),
        ([1.0, 0.5], False),
        ([1.0, 1.1], True),  # ended above its start
        ([1.0, 11.0, 0.5], True),  # was far above it on the way
        ([1.0, 9.0, 0.5], False),
        ([0.0, 5.0, 0.0], False),
    ],
)
def test_a_loss_that_grew(losses, told):
    assert grew([replace(ONE, train_loss=loss) for loss in losses]) is told


costs = st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), max_size=3)


@settings(max_examples=50, deadline=None)
@given(st.lists(costs, max_size=8))
def test_ledgers_come_back(rounds):
    entries = [
        LedgerEntry(r, "bottom", "up", kind, n, 10 * n)
        for r, lines in enumerate(rounds)
        for kind, n in lines.items()
    ]
    ledger = Ledger.of(entries)
    again = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
    assert list(again) == list(ledger)
    assert again.lines() == ledger.lines()
    assert ledger.total() == sum(entry.bytes for entry in entries)


@pytest.mark.parametrize("name", list(algorithms))
def test_a_checkpoint_goes_on_exactly(name, tmp_path):
    algorithm = examples_of(algorithms[name])[0]

    def run():
        given = {"network": Network(), "precision": "float64"}
        return Run(algorithm, *sample_of(algorithm), **given)

    straight = run().fit(4)
    stopped = run().fit(2)
    save_checkpoint(tmp_path / "c", stopped.snapshot(), [ONE], 1.5)
    found = load_checkpoint(tmp_path / "c")
    assert (found.round, found.records, found.wall) == (2, (ONE,), 1.5)
    resumed = run()
    resumed.restore(found.snapshot(resumed.blank())).fit(4)
    a, b = (algorithm.blocks(r.fed, r.state) for r in (straight, resumed))
    assert tree.largest_difference(a, b) == 0.0
    assert list(resumed.ledger) == list(straight.ledger)
    assert resumed.time == straight.time


def test_a_checkpoint_of_another_algorithm_is_refused(tmp_path):
    algorithm = TDCD(local_steps=1, lr=0.1, batch=9)
    save_checkpoint(tmp_path / "c", Run(algorithm, task(), placement()).fit(1).snapshot(), [], 0)
    other = Run(algorithms["central"](batch=9), task(), placement())
    with pytest.raises(DataError, match="another model or algorithm"):
        load_checkpoint(tmp_path / "c").snapshot(other.blank())


@pytest.mark.parametrize("form", [checkpoint.FORM - 1, checkpoint.FORM + 1])
def test_a_checkpoint_of_another_form_is_refused(tmp_path, monkeypatch, form):
    """Older or newer."""
    run = Run(TDCD(batch=9), task(), placement()).fit(1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORM", form)
        save_checkpoint(tmp_path / "c", run.snapshot(), [], 0)
    with pytest.raises(DataError, match="was written by another version of fedloom"):
        load_checkpoint(tmp_path / "c")


def test_records_of_lone_silos_have_each():
    data = Partition(silos=["left", "right"], clients=2).place(load_dataset("iris"))
    run = Run(Alone(batch=9), Task.of(data), data).fit(2, every=1)
    assert [record.round for record in run.records] == [0, 1, 2]
    last = run.records[-1]
    assert last.train_loss == pytest.approx(run.loss())
    each = [last.by_silo[silo]["accuracy"] for silo in ("left", "right")]
    assert each[0] != each[1]
    assert last.metrics["accuracy"] == pytest.approx(sum(each) / 2)
    with pytest.raises(SettingError, match="every must be at least 1"):
        run.fit(3, every=0)


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_writers(tmp_path, None, "x", {}) as writers:
        for writer in writers:
            writer.write(ONE)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) >= {"train_loss", "test/accuracy", "bytes/top"}
    assert "test/auroc" not in events.Tags()["scalars"]  # undefined is not zero
    (point,) = events.Scalars("train_loss")
    assert (point.step, point.value) == (2, 0.25)


def test_mlflow(tmp_path):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from mlflow.tracking import MlflowClient

    address = f"sqlite:///{tmp_path / 'runs.db'}"
    with open_writers(None, address, "x", {"algorithm": {"lr": 0.1}}) as writers:
        for writer in writers:
            writer.write(ONE)
    client = MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("fedloom")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.metrics["test/accuracy"] == 0.5
    assert found.data.params["algorithm.lr"] == "0.1"


def test_a_writer_that_is_not_installed_is_named(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with (
        pytest.raises(SettingError, match=r"fedloom\[mlflow\]"),
        open_writers(None, str(tmp_path), "x", {}),
    ):
        pass


def test_blank_has_the_form_of_a_snapshot():
    run = Run(TDCD(batch=9), task(), placement()).fit(1)
    blank, real = run.blank(), run.snapshot().state
    assert tree.signature(blank) == tree.signature(dict(real))
    assert all(isinstance(v, torch.Tensor) for v in tree.named(blank).values())
