"""What each silo adds: the joint model without a silo's embedding, and trained without it."""

import json

import pytest
import torch

from fedloom import TDCD, Partition, Run, Task, load_dataset
from fedloom.config.runfile import RunFile
from fedloom.core.errors import SettingError
from fedloom.core.registry import algorithms
from fedloom.records.predictions import Predictions
from fedloom.runs.contributions import Embeddings, replaced, why_not
from fedloom.runs.job import Job
from fedloom.testing import sample_of
from fedloom.testing.samples import examples_of

MODELS = {
    "sums": {"name": "linear"},
    "a head": {"name": "mlp", "hidden": [3], "embedding": 2, "head": "linear"},
    "concat": {"name": "linear", "embedding": 2, "head": "linear", "combine": "concat"},
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_an_embedding_is_replaced_by_its_mean(model):
    """By hand, from the exported blocks."""
    data = Partition(silos=["a", "b", "c"], clients=[1, 2, 2]).place(load_dataset("wine"))
    settings = dict(model)
    task = Task.of(data, settings.pop("name"), **settings)
    run = Run(TDCD(lr=0.1, local_steps=2, batch=40), task, data, precision="float64").fit(5)
    joint = run.model()
    head = joint.head or torch.nn.Identity()

    def embedded(rows):
        return {j: b(rows.x[j].double()) for j, b in zip("abc", joint.blocks, strict=True)}

    def scores(phis):
        if model.get("combine") == "concat":
            return head(torch.cat(list(phis.values()), 1))
        return head(sum(phis.values()))

    with torch.no_grad():
        train, test = embedded(data.train), embedded(data.test)
        torch.testing.assert_close(scores(test), run.predict(), rtol=1e-10, atol=1e-10)
        found = replaced(run)
        for silo in "abc":
            average = train[silo].mean(0).expand_as(test[silo])
            expected = scores({**test, silo: average})
            torch.testing.assert_close(found[silo], expected, rtol=1e-10, atol=1e-10)
            assert not torch.allclose(expected, scores(test))


@pytest.mark.parametrize("name", list(algorithms))
def test_the_parts_are_those_of_every_joint_algorithm(name):
    """With nothing replaced, they predict what the run does."""
    for example in examples_of(algorithms[name])[:1]:
        run = Run(example, *sample_of(example), precision="float64")
        if not example.joint or example.one_silo:
            assert "silo" in why_not(run)
            continue
        embeddings = Embeddings(run.fit(1))
        with torch.no_grad():
            placed = embeddings.placed(run.placement, torch.arange(run.placement.size))
            scores = embeddings.scores(sum(placed.values()))
        torch.testing.assert_close(scores, run.predict(), rtol=1e-9, atol=1e-9)


FILE = """\
[data]
name = "iris"
[partition]
silos = ["a", "b", "c"]
clients = [1, 2, 2]
[model]
name = "linear"
[algorithm]
local_steps = 2
lr = 0.05
batch = 20
rounds = 2
[output]
report = false
"""


def run_in(folder, *settings):
    file = RunFile.parse(FILE, settings)
    Job.new(file, folder).go()
    return json.loads((folder / "manifest.json").read_text())["parts"]


def test_it_is_done_where_it_can_be(tmp_path):
    assert run_in(tmp_path / "a") == ["tdcd"]
    assert list(Predictions.read(tmp_path / "a").without) == ["a", "b", "c"]
    run_in(tmp_path / "b", "evaluation.contributions=off")
    assert not Predictions.read(tmp_path / "b").without
    run_in(tmp_path / "c", "algorithm.name=alone")
    assert not Predictions.read(tmp_path / "c").without
    assert list(Predictions.read(tmp_path / "c").by_hub) == ["a", "b", "c"]


@pytest.mark.parametrize("head", [(), ("model.embedding=2", 'model.head={name="linear"}')])
@pytest.mark.parametrize("combine", ["sum", "concat"])
def test_training_without_each_silo(tmp_path, head, combine):
    if combine == "concat" and not head:
        pytest.skip("a concatenation has a head")
    also = ("evaluation.contributions=retrained", f"model.combine={combine}")
    parts = run_in(tmp_path / "a", *head, *also, "model.silos.b.zero=true")
    assert parts == ["tdcd", "without-a", "without-b", "without-c"]


def test_training_without_a_silo_is_a_run_of_the_others(tmp_path):
    parts = run_in(tmp_path / "a", "evaluation.contributions=retrained")
    assert parts == ["tdcd", "without-a", "without-b", "without-c"]
    file = RunFile.parse(FILE)
    data = file.partition.place(load_dataset("iris")).only(["a", "c"])
    run = Run(file.algorithm, Task.of(data), data, network=file.network).fit(2)
    found = Predictions.read(tmp_path / "a" / "baselines" / "without-b")
    assert torch.equal(next(iter(found.by_hub.values())), run.predict())


def test_a_silo_that_is_needed_is_not_left_out(tmp_path):
    private = (
        "algorithm.name=tdcd-private-labels",
        "algorithm.labels_at=b",
        "partition.labels_at=b",
    )
    parts = run_in(tmp_path / "a", *private, "evaluation.contributions=retrained")
    assert parts == ["tdcd-private-labels", "without-a", "without-c"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["algorithm.name=alone"], "not with alone, its silos have no joint model"),
        (["algorithm.name=fedavg", 'partition.silos=["a"]', "partition.clients=[2]"], "one silo"),
    ],
)
@pytest.mark.parametrize("asked", ["replaced", "retrained"])
def test_what_has_no_contributions_is_refused(tmp_path, settings, why, asked):
    with pytest.raises(SettingError, match=why):
        run_in(tmp_path / "a", *settings, f"evaluation.contributions={asked}")
    assert not (tmp_path / "a").exists()
