"""Records, ledgers and checkpoints on disk; and the writers for other tools."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import TDCD, Alone, Network, Partition, Run, Task, load_dataset
from fedloom.config.runfile import RunFile
from fedloom.core import tree
from fedloom.core.errors import DataError, SettingError
from fedloom.core.registry import algorithms, writers
from fedloom.fabric.ledger import Ledger, LedgerEntry
from fedloom.records import checkpoint
from fedloom.records.checkpoint import load_checkpoint, save_checkpoint
from fedloom.records.record import Record, append_record, grew, read_records, write_records
from fedloom.records.writers import open_writers
from fedloom.runs.job import Job
from fedloom.testing import placement, sample_of, task
from fedloom.testing.samples import examples_of

ONE = Record(2, 20, 64.0, 0.5, {"bottom": 10, "top": 4}, 0.25, {"accuracy": 0.5, "auroc": None})


def test_records_come_back(tmp_path):
    path = tmp_path / "records.jsonl"
    alone = Record(0, 0, None, 0.0, {"bottom": 0, "top": 0}, 1.0, {}, {"a": {"accuracy": 1.0}})
    write_records(path, [alone])
    append_record(path, ONE)
    assert read_records(path) == [alone, ONE]
    written = json.loads(path.read_text().splitlines()[1])
    assert not {"by_silo", "notes", "privacy"} & set(written)  # which it has none of


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "records.jsonl"
    write_records(path, [ONE, ONE])
    path.write_bytes(path.read_bytes()[:-20])
    assert read_records(path) == [ONE]
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(DataError, match="damaged"):
        read_records(path)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0], False),
        ([1.0, 0.5], False),
        ([1.0, 1.1], True),  # ended above its start
        ([1.0, 11.0, 0.5], True),  # was far above it on the way
        ([1.0, 9.0, 0.5], False),
        ([0.0, 5.0, 0.0], False),
    ],
)
def test_a_loss_that_grew(losses, expected):
    assert grew([replace(ONE, train_loss=loss) for loss in losses]) is expected


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

    with open_writers({"tensorboard": {}}, tmp_path, "x", {}) as writers:
        for writer in writers:
            writer.write(ONE)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) >= {"train_loss", "test/accuracy", "bytes/top"}
    assert "test/auroc" not in events.Tags()["scalars"]  # undefined is not zero
    (point,) = events.Scalars("train_loss")
    assert (point.step, point.value) == (2, 0.25)


def test_mlflow(tmp_path):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from mlflow.tracking import MlflowClient

    address = f"sqlite:///{tmp_path / 'runs.db'}"
    asked = {"mlflow": {"address": address}}
    with open_writers(asked, tmp_path, "x", {"algorithm": {"lr": 0.1}}) as writers:
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
        open_writers({"mlflow": {"address": str(tmp_path)}}, tmp_path, "x", {}),
    ):
        pass


class Lines:
    """A line for each record."""

    def __init__(
        self, folder: Path, title: str, config, name: str = "lines.txt", last: bool = True
    ):
        self.file, self.last = (folder / name).open("w"), last
        self.file.write(f"{title}: {config['algorithm']['name']}\n")

    def write(self, record):
        self.file.write(f"{record.round} {record.train_loss}\n")

    def close(self):
        self.file.write("the end\n" * self.last)
        self.file.close()


@pytest.fixture
def lines():
    with writers.scratch():
        yield writers.register("lines")(Lines)


RUN = """
[data]
name = "iris"
[algorithm]
rounds = 2
[evaluation]
every = 1
[output.writers.lines]
name = "own.txt"
"""


def test_a_writer_of_ones_own_is_named_in_a_run_file(lines, tmp_path):
    file = RunFile.parse(RUN)
    assert RunFile.parse(file.to_toml()).output.writers == {
        "lines": {"name": "own.txt", "last": True}
    }
    Job.new(file, tmp_path / "out").go()
    first, *rounds, last = (tmp_path / "out" / "own.txt").read_text().splitlines()
    assert first == "out tdcd: tdcd"
    assert [line.split()[0] for line in rounds] == ["0", "1", "2"]
    assert last == "the end"
    short = RunFile.parse('[data]\nname = "iris"\n[output]\ntensorboard = true\nmlflow = "x"\n')
    assert short.output.asked_writers == {"tensorboard": {}, "mlflow": {"address": "x"}}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("lines]", "line]"), "unknown records writer 'line'; did you mean 'lines'"),
        (('name = "own.txt"', "last = 1"), "last: true or false is expected, not 1"),
        (('name = "own.txt"', 'nam = "x"'), "unknown key 'nam'; did you mean 'name'"),
        (("lines]", "mlflow]"), "unknown key 'name'"),
    ],
)
def test_a_writer_that_cannot_be(lines, wrong, said):
    with pytest.raises(SettingError, match=said):
        RunFile.parse(RUN.replace(*wrong))


def test_all_writers_are_closed_if_one_cannot_be_opened(lines, tmp_path):
    asked = {"lines": {}, "mlflow": {"address": "nowhere://"}}
    with (
        pytest.raises(SettingError, match="mlflow"),
        open_writers(asked, tmp_path, "x", {"algorithm": {"name": "tdcd"}}),
    ):
        pass
    assert (tmp_path / "lines.txt").read_text().endswith("the end\n")


def test_blank_has_the_form_of_a_snapshot():
    run = Run(TDCD(batch=9), task(), placement()).fit(1)
    blank, real = run.blank(), run.snapshot().state
    assert tree.signature(blank) == tree.signature(dict(real))
    assert all(isinstance(v, torch.Tensor) for v in tree.named(blank).values())
