"""The front door, and what is said to those who give it the wrong things."""

import dataclasses
import math
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch

import fedloom
from fedloom import (
    TDCD,
    Cosine,
    Drawn,
    InverseSqrt,
    Network,
    Partition,
    Placement,
    Run,
    Shard,
    StepDecay,
    Task,
    load_dataset,
    mlp,
)
from fedloom.algorithms import Algorithm
from fedloom.core.errors import FedLoomError
from fedloom.core.registry import algorithms
from fedloom.engines.limits import DEFAULT

NAMES = sorted(algorithms)
ALGORITHMS = {
    name: kind
    for name, kind in vars(fedloom).items()
    if isinstance(kind, type) and issubclass(kind, Algorithm)
}
IRIS = Partition(silos=["left", "right"], clients=[2, 3]).place(load_dataset("iris"))
TASK = Task.of(IRIS, "linear")
RUN = Run(TDCD(local_steps=1, batch=20), TASK, IRIS).fit(1)
MODEL = RUN.trained()
ROWS = {"left": torch.randn(6, 2), "right": torch.randn(6, 2)}
LABELS = torch.arange(6) % 3
SHARDS = {"left": {"one": Shard([1, 2], [[0.0], [1.0]], [0, 1])}}


class Strange:
    """Nobody expects one."""

    def __repr__(self):
        return "<strange: secret cell 4711>"


RUBBISH = [
    None,
    True,
    0,
    -1,
    2.5,
    math.nan,
    math.inf,
    "10",
    "",
    b"x",
    [],
    ["a"],
    [1.5],
    (),
    {},
    {"left": 3},
    {"nobody": "x"},
    {1: 2},
    set(),
    Strange(),
    Strange,
    TDCD,
    len,
    lambda: 3,
    torch.zeros(0),
    torch.zeros(3, 4),
    torch.tensor(1.0),
    np.zeros(3),
    np.float32(1.5),
    Path("nowhere"),
    TDCD(),
    TASK,
    IRIS,
    IRIS.train,
    Shard([1], [[1.0]]),
    load_dataset("iris"),
]


def fresh():
    return Run(TDCD(local_steps=1, batch=20), TASK, IRIS)


@pytest.fixture
def calls(tmp_path):
    """Every public name and method, with arguments that are right."""
    table = tmp_path / "table.csv"
    table.write_text("id,age,label\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(20)))
    saved = RUN.save(tmp_path / "saved")
    return {
        **{name: (kind, dataclasses.asdict(kind())) for name, kind in ALGORITHMS.items()},
        "Privacy": (fedloom.Privacy, dataclasses.asdict(fedloom.Privacy("noise-only", noise=0.1))),
        "Pooled": (
            fedloom.Pooled,
            {
                "name": "logistic",
                "task": TASK,
                "data": IRIS,
                "seed": 1,
                "precision": "float64",
                "device": "cpu",
                "metrics": ["auroc"],
            },
        ),
        "Callback": (fedloom.Callback, {}),
        "Stop": (fedloom.Stop, {"why": "enough"}),
        "Stopping": (fedloom.Stopping, dataclasses.asdict(fedloom.Stopping())),
        "Constant": (fedloom.Constant, {"lr": 0.1}),
        "DelayBound": (
            fedloom.DelayBound,
            {"smoothness": 1.0, "delay": 2, "steps": 9, "scale": 1.0},
        ),
        "InverseTime": (fedloom.InverseTime, {"convexity": 1.0, "offset": 2.0, "scale": 2.0}),
        "Cosine": (Cosine, {"lr": 0.1, "steps": 9, "floor": 0.0}),
        "InverseSqrt": (InverseSqrt, {"lr": 0.1, "scale": 1.0}),
        "StepDecay": (StepDecay, {"lr": 0.1, "factor": 0.5, "every": 3}),
        **{
            kind.__name__: (kind, dataclasses.asdict(kind()))
            for kind in (fedloom.SGD, fedloom.Adam, fedloom.AdamW, fedloom.Relaxed, fedloom.HubAdam)
        },
        "Drawn": (Drawn, {"presence": 0.5, "seed": 1}),
        "Network": (Network, dataclasses.asdict(Network())),
        "Partition": (Partition, dataclasses.asdict(Partition())),
        "Partition.place": (Partition().place, {"data": load_dataset("iris")}),
        "Partition.cut": (Partition().cut, {"data": load_dataset("iris")}),
        "Placement.of": (Placement.of, {"shards": SHARDS, "server": False}),
        "Placement.only": (IRIS.train.only, {"silos": ["left"]}),
        "Placement.held": (IRIS.train.held, {"silo": "left"}),
        "Shard": (lambda **a: Placement.of({"a": {"b": Shard(**a)}}), vars(SHARDS["left"]["one"])),
        "linear": (fedloom.linear, {"inputs": 3, "outputs": 1, "bias": True, "flatten": False}),
        "mlp": (mlp, {"inputs": 3, "hidden": [4], "outputs": 1, "flatten": False, "norm": "none"}),
        "cnn": (
            fedloom.cnn,
            {"channels": 1, "size": (8, 8), "outputs": 4, "width": 2, "norm": "none"},
        ),
        "lstm": (fedloom.lstm, {"inputs": 3, "hidden": 2, "outputs": 1}),
        "resnet18": (
            fedloom.resnet18,
            {"channels": 3, "outputs": 2, "width": 4, "norm": "group"},
        ),
        "load_dataset": (load_dataset, {"name": "iris", "folder": None, "verify": True}),
        "load_model": (
            fedloom.load_model,
            {"folder": saved, "blocks": None, "head": None, "loss": None},
        ),
        "partition": (
            fedloom.partition,
            {"x": ROWS, "y": LABELS, "clients": {"left": 2, "right": 1}, "ids": None}
            | {"labels_at": None, "seed": 0, "mirrored": False},
        ),
        "read_tables": (
            fedloom.read_tables,
            {"files": {"bank": {"all": table}}, "id": "id", "label": "label", "goal": None}
            | {"test": 0.25, "numbers": (), "categories": (), "drop": (), "rare": 1}
            | {"ids": "plain", "salt": None, "show_ids": False, "min_match": 0.5}
            | {"name": "tables"},
        ),
        "Task": (
            Task,
            {"blocks": {"left": fedloom.linear(2, 3), "right": fedloom.linear(2, 3)}}
            | {"loss": "cross-entropy", "head": None, "middle": None, "combine": "sum"},
        ),
        "Task.of": (
            Task.of,
            {"data": IRIS, "model": "mlp", "hidden": [4], "loss": None, "embedding": None}
            | {"head": None, "middle": None, "combine": "sum", "silos": None},
        ),
        "Run": (
            Run,
            {"algorithm": TDCD(batch=20), "task": TASK, "data": IRIS, "seed": 0}
            | {"engine": "stacked", "schedule": None, "precision": "float32", "device": "cpu"}
            | {"chunk": None, "replay": 9, "compile": False, "network": None, "metrics": ()}
            | {"secrets": None, "executor": "traced", "limits": DEFAULT, "threshold": 0.5},
        ),
        "Run.fit": (
            lambda **a: fresh().fit(**a),
            {"rounds": 1, "every": None, "progress": False} | {"stop": None, "callbacks": ()},
        ),
        "Run.predict": (
            RUN.predict,
            {"rows": "all", "at": None, "client": None, "at_a_time": None},
        ),
        "Run.loss": (RUN.loss, {"rows": "train"}),
        "Run.evaluate": (RUN.evaluate, {"rows": "test"}),
        "Run.add_record": (RUN.add_record, {"at_a_time": None}),
        "Run.export": (RUN.export, {"silo": "left"}),
        "Run.save": (lambda folder: RUN.save(inside(tmp_path, folder)), {"folder": "made"}),
        "Run.restore": (lambda **a: fresh().restore(**a), {"snapshot": RUN.snapshot()}),
        "Model.predict": (MODEL.predict, {"x": ROWS, "at": None}),
        "Model.predict_tables": (
            MODEL.predict_tables,
            {"files": {"left": table}, "id": None, "at": None, "ids": "plain", "salt": None}
            | {"min_match": 0.5},
        ),
        "Model.probabilities": (MODEL.probabilities, {"scores": torch.zeros(2, 3)}),
        "Model.decide": (MODEL.decide, {"scores": torch.zeros(2, 3), "at": None}),
        "Model.evaluate": (MODEL.evaluate, {"placement": IRIS.test, "at": None, "more": ()}),
        "Model.save": (lambda folder: MODEL.save(inside(tmp_path, folder)), {"folder": "made"}),
    }


def inside(place, folder):
    """A name, or whatever is given for one, in a folder that may be written to."""
    return place / folder if isinstance(folder, str | Path) else folder


CALLS = [
    *ALGORITHMS,
    *("Pooled", "Callback", "Stop", "Stopping"),
    *("Privacy", "Constant", "DelayBound", "InverseTime", "Cosine", "InverseSqrt", "StepDecay"),
    *("SGD", "Adam", "AdamW", "Relaxed", "HubAdam"),
    *("Drawn", "Network", "Partition", "Partition.place", "Partition.cut", "Placement.of"),
    *("Placement.only", "Placement.held", "Shard", "linear", "mlp", "cnn", "lstm", "resnet18"),
    *("load_dataset", "load_model", "partition", "read_tables", "Task", "Task.of", "Run"),
    *(
        "Run.fit",
        "Run.predict",
        "Run.loss",
        "Run.evaluate",
        "Run.add_record",
        "Run.export",
        "Run.save",
    ),
    *("Run.restore", "Model.predict", "Model.predict_tables", "Model.probabilities"),
    *("Model.decide", "Model.evaluate", "Model.save"),
]


def test_nothing_is_left_out(calls):
    """Everything at the front door, and every argument."""
    assert set(calls) == set(CALLS)
    assert set(fedloom.__all__) - {"errors"} == {name.split(".")[0] for name in CALLS}
    for kind, own in ((Run, "Run"), (fedloom.Model, "Model")):
        methods = {n for n, m in vars(kind).items() if callable(m) and not n.startswith("_")}
        internal = {"engine", "model", "trained", "snapshot", "blank", "facts"}
        internal |= {"stop_early", "renew_patience", "predictions", "threshold_of"}
        assert {f"{own}.{name}" for name in methods - internal} <= set(CALLS)
    for name, (call, given) in calls.items():
        wants = signature(call).parameters.values()
        named = {one.name for one in wants if one.kind is not one.VAR_KEYWORD}
        assert named - set(given) <= {"notes", "ranks", "zero"}, name


@pytest.mark.parametrize("name", CALLS)
def test_rubbish_gets_a_sentence(name, calls, tmp_path, monkeypatch):
    """Whatever is given for an argument: it works, or an error of ours says what is wrong; and
    nothing of what an object holds is shown."""
    monkeypatch.chdir(tmp_path)
    call, given = calls[name]
    if name != "Model.predict_tables":
        call(**given)
    for argument in given:
        for rubbish in RUBBISH:
            try:
                call(**{**given, argument: rubbish})
            except FedLoomError as problem:
                text = str(problem)
                assert text, (argument, rubbish)
                assert "4711" not in text
                assert "tensor(" not in text
            except Exception as problem:
                raise AssertionError(f"{name}({argument}={rubbish!r}): {problem!r}") from problem
