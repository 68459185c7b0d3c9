"""What bad input gets: a clear error that names the cause, before any training."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import (
    TDCD,
    Alone,
    Central,
    Placement,
    Run,
    Shard,
    Task,
    TDCDPrivateLabels,
    linear,
    mlp,
    partition,
)
from fedloom.algorithms import Cosine, StepDecay
from fedloom.core.errors import DataError, ModelError, NotFiniteError, SettingError
from fedloom.fabric.schedule import Drawn, Moment, Scripted
from fedloom.testing import placement, task


def shard(ids, width=2, y=True, value=1.0):
    ids = np.asarray(ids)
    x = torch.full((len(ids), width), value)
    return Shard(ids, x, torch.zeros(len(ids)) if y else None)


def two_silos(**changes):
    shards = {
        "bank": {"north": shard([1, 2]), "south": shard([3, 4])},
        "insurer": {"only": shard([1, 2, 3, 4])},
    }
    for silo, clients in changes.items():
        shards[silo] = clients
    return shards


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ({}, "at least one silo"),
        (two_silos(bank={}), "silo bank has no clients"),
        (two_silos(bank={"north": shard([])}), "silo bank holds no rows"),
        (
            two_silos(bank={"north": shard([1, 2]), "south": shard([2, 3, 4])}),
            "silo bank: 1 ids are held twice, by clients north and south",
        ),
        (
            two_silos(bank={"north": shard([1, 2, 2])}),
            "client bank/north: 1 ids occur more than once",
        ),
        (
            two_silos(bank={"north": shard([1, 2, 3])}),
            "silo bank lacks 1 of the 4 ids that silo insurer holds",
        ),
        (
            two_silos(bank={"north": shard([1, 2, 3, 4, 5])}),
            "silo insurer lacks 1 of the 5 ids that silo bank holds",
        ),
        (
            two_silos(bank={"north": Shard([1, 2, 3, 4], torch.ones(4, 2), torch.ones(4))}),
            "labels disagree between silos bank and insurer on 4 rows",
        ),
        (
            two_silos(bank={"north": shard([1, 2, 3, 4], value=math.nan)}),
            "client bank/north: NaN or infinity in the features of 4 rows",
        ),
        (
            two_silos(bank={"north": Shard([1, 2, 3, 4], torch.ones(4, 2), [0, 0, math.inf, 0])}),
            "client bank/north: NaN or infinity in the labels of 1 rows",
        ),
        (
            two_silos(bank={"north": Shard([1, 2, 3, 4], torch.ones(3, 2))}),
            "client bank/north: 4 ids, 3 rows of features",
        ),
        (
            two_silos(bank={"north": Shard([1, 2, 3, 4], torch.ones(4, 2), [0, 1])}),
            "client bank/north: 4 ids, 2 rows of labels",
        ),
        (
            two_silos(bank={"north": Shard([1, 2, 3, 4], [["a", "b"]] * 4)}),
            "client bank/north: features are not numbers",
        ),
        (
            two_silos(bank={"north": shard([1, 2]), "south": shard([3, 4], width=3)}),
            "client bank/south: features differ in shape or type",
        ),
        (
            two_silos(bank={"north": shard([1, 2]), "south": shard([3, 4], y=False)}),
            "silo bank: some clients have labels and some have none",
        ),
        (
            two_silos(bank={"north": shard(["1", "2", "3", "4"])}),
            "ids are of different types in silos bank and insurer",
        ),
        (
            two_silos(bank={"north": Shard([1, 2, 3, 4], None)}),
            "client bank/north: 4 ids, but no features",
        ),
        (
            two_silos(bank={"north": Shard([1, 2, 3, 4], torch.ones(4))}),
            "client bank/north: features must have columns",
        ),
        (
            two_silos(bank={"north": Shard([], torch.ones(4, 2))}),
            "client bank/north: no ids, 4 rows of features",
        ),
        (
            two_silos(bank={"north": Shard([1, None, 3, 4], torch.ones(4, 2))}),
            "client bank/north: ids must be whole numbers or text",
        ),
        (two_silos(bank={"north": ([1], [2])}), "client bank/north: a Shard is expected"),
        ({"server": {"a": shard([1])}}, "'server' cannot be a silo's name"),
        ({"a/b": {"a": shard([1])}}, "'a/b' cannot be a silo's name"),
    ],
)
def test_rows(shards, message):
    with pytest.raises(DataError, match=message):
        Placement.of(shards)


def test_what_is_close_enough_is_taken():
    """Whole numbers of any width, labels of any precision or with a column of their own."""
    shards = two_silos(
        bank={"north": Shard(np.array([4, 3, 2, 1], dtype=np.uint8), torch.ones(4, 2).double())}
    )
    shards["bank"]["north"] = Shard(
        shards["bank"]["north"].ids, torch.ones(4, 2), torch.zeros(4, 1).double()
    )
    assert Placement.of(shards).size == 4
    assert Placement.of({1: {2: shard(["a", "b"])}}).topology.clients == {"1": ("2",)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels_at": "lfet"}, "labels_at: 'lfet'; did you mean 'left'"),
        ({"ids": [1, 2]}, "2 ids for 8 rows"),
        ({"clients": {"left": -1, "right": 1}}, "rows cannot be cut by"),
        ({"clients": {"left": [0, 0], "right": 1}}, "rows cannot be cut by"),
        ({"clients": {"left": 1}}, "have clients"),
        ({"y": torch.ones(3)}, "differ in their number of rows"),
    ],
)
def test_partitions(changes, message):
    x = {"left": torch.ones(8, 2), "right": torch.ones(8, 1)}
    settings = {"x": x, "y": torch.ones(8), "clients": {"left": 2, "right": np.int64(2)}, **changes}
    with pytest.raises(SettingError, match=message):
        partition(settings.pop("x"), settings.pop("y"), settings.pop("clients"), **settings)


def test_labels_at_one_silo_by_name():
    rows = partition(
        {"a": [[1.0], [2.0]], "b": [[1], [2]]}, [0, 1], {"a": 1, "b": 1}, labels_at="b"
    )
    assert rows.y["a"] is None
    assert rows.y["b"].tolist() == [0, 1]


def test_errors_do_not_print_ids():
    secret = "patient-4711"
    with pytest.raises(DataError) as problem:
        Placement.of({"a": {"x": shard([secret]), "y": shard([secret])}})
    assert secret not in str(problem.value)


def test_a_client_without_rows_is_allowed_and_takes_no_step():
    shards = two_silos(bank={"north": shard([1, 2, 3, 4]), "empty": Shard([], None)})
    learn = Task({"bank": linear(2), "insurer": linear(2)}, "squared")
    runs = {
        engine: Run(TDCD(local_steps=2, batch=2), learn, Placement.of(shards), engine=engine)
        for engine in ("stacked", "reference")
    }
    for run in runs.values():
        run.fit(2)
    a, b = (run.export("bank").weight for run in runs.values())
    assert torch.allclose(a, b)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_steps": 0}, "TDCD: local_steps must be at least 1, not 0"),
        ({"lr": 0}, "TDCD: lr must be above 0, not 0"),
        ({"lr": -0.1}, "lr must be above 0, not -0.1"),
        ({"lr": math.nan}, "lr: a number or a step-size rule is expected, not nan"),
        ({"local_steps": 2.5}, "TDCD: local_steps: a whole number is expected, not 2.5"),
        ({"lr": "0.1"}, 'lr: a number or a step-size rule is expected, not "0.1"'),
        ({"lr": None}, "lr: a number or a step-size rule is expected, not None"),
        ({"lr": Cosine}, "is expected, not the class Cosine"),
        ({"batch": 0}, "TDCD: batch must be at least 1, not 0"),
        ({"batch": "2"}, 'TDCD: batch: a whole number is expected, not "2"'),
        ({"batch": 37}, r"batch \(B\) is 37, but there are only 36 common rows"),
        ({"l2": -1}, "l2 must be at least 0, not -1"),
        ({"l2": math.nan}, "l2: a number is expected, not nan"),
        ({"minibatch": "freshh"}, "minibatch: .* did you mean 'fresh'"),
        ({"weighting": "row"}, "weighting: .* did you mean 'rows'"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(SettingError, match=message):
        Run(TDCD(**{"batch": 10, **settings}), task(), placement())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "fast"}, 'Run: engine: "fast" is not one of the choices; known: reference, st'),
        ({"precision": "float16"}, "precision: .* did you mean 'float64'"),
        ({"chunk": 0}, "Run: chunk must be at least 1, not 0"),
        ({"chunk": 2.5}, "Run: chunk: a whole number is expected, not 2.5"),
        ({"device": "gpu"}, "device: 'gpu'; known are cpu, cuda"),
    ],
)
def test_options(options, message):
    with pytest.raises(SettingError, match=message):
        Run(TDCD(batch=10), task(), placement(), **options)


def test_step_sizes():
    with pytest.raises(SettingError, match="StepDecay: every must be at least 1, not 0"):
        StepDecay(0.1, 0.5, 0)
    with pytest.raises(SettingError, match="Cosine: lr must be above 0, not -1"):
        Cosine(-1, 10)
    assert Cosine(0.1, 10)(10) == 0


def test_a_schedule_may_only_name_who_is_there():
    for absent, message in (
        ({"oak": ["0"]}, "names silo 'oak', which does not exist"),
        ({"ash": ["9"]}, "names client ash/9, which does not exist"),
    ):
        with pytest.raises(SettingError, match=message):
            Run(TDCD(batch=9), task(), placement(), schedule=Scripted({Moment(1): absent}))


def test_negative_step_sizes_of_a_function():
    with pytest.raises(SettingError, match="step sizes cannot be negative"):
        Run(TDCD(batch=9, lr=lambda t: -1.0), task(), placement()).fit(1)


def test_tasks_of_the_wrong_things():
    with pytest.raises(ModelError, match=r'row by row: MSELoss\(reduction="none"\)'):
        Task({"a": linear(1)}, nn.MSELoss())
    wanted = "loss: text or a table or a Loss or a function is expected, not 5"
    with pytest.raises(SettingError, match=wanted):
        Task({"a": linear(1)}, 5)
    with pytest.raises(SettingError, match=r'blocks.a: a Module or a function is .* not "mlp"'):
        Task({"a": "mlp"}, "squared")
    with pytest.raises(ModelError, match=r"must make a torch.nn.Module, not 5"):
        Task({"a": lambda: 5}, "squared")


def test_exports_by_the_right_name():
    run = Run(TDCD(batch=9), task(), placement())
    with pytest.raises(SettingError, match="nothing is trained yet"):
        run.export("ash")
    with pytest.raises(SettingError, match="there is no silo 'ahs'; did you mean 'ash'"):
        run.fit(1).export("ahs")


def test_presence_is_a_probability():
    with pytest.raises(SettingError, match="presence must be between 0 and 1"):
        Drawn(1.5)


@pytest.mark.parametrize(
    ("learn", "message"),
    [
        (
            Task({"ash": linear(4, 3), "birch": linear(3, 2), "cedar": mlp(4, [], 3)}, "squared"),
            "does not take rows of shape",
        ),
        (Task({"ash": linear(4, 3)}, "squared"), "blocks for silos .* data of"),
    ],
)
def test_blocks_that_do_not_fit_the_data(learn, message):
    with pytest.raises(ModelError, match=message):
        Run(TDCD(batch=10), learn, placement())


def with_widths(*widths, **options):
    x = {silo: torch.randn(20, 2) for silo in "ab"}
    rows = partition(x, torch.arange(20) % 3, {"a": 2, "b": 2})
    blocks = {silo: linear(2, width) for silo, width in zip("ab", widths, strict=True)}
    return Task(blocks, "cross-entropy", **options), rows


def test_widths_that_do_not_match_for_a_sum():
    learn, rows = with_widths(10, 8)
    with pytest.raises(ModelError, match="widths do not match for a sum: a 10, b 8"):
        Run(TDCD(batch=5), learn, rows)


def test_a_concatenation_needs_a_head():
    learn, rows = with_widths(4, 5, combine="concat")
    with pytest.raises(ModelError, match="needs a head"):
        Run(TDCD(batch=5), learn, rows)


def test_too_few_scores_for_the_labels():
    learn, rows = with_widths(2, 2)
    with pytest.raises(ModelError, match="2 scores a row, the labels go up to 2"):
        Run(TDCD(batch=5), learn, rows)


def test_unknown_names_get_the_nearest():
    with pytest.raises(SettingError, match="unknown loss 'squard'; did you mean 'squared'"):
        Task({"a": linear(1)}, "squard")
    with pytest.raises(SettingError, match='combine: "add" is not one of the choices'):
        Task({"a": linear(1)}, "squared", combine="add")


@pytest.mark.parametrize(
    ("loss", "labels", "message"),
    [
        ("binary-cross-entropy", [0.0, 2.0], "labels must be 0 or 1"),
        ("cross-entropy", [0.0, 1.5], "labels must be whole numbers"),
        ("cross-entropy", [-1.0, 1.0], "labels must be whole numbers from 0"),
    ],
)
def test_labels_that_do_not_fit_the_loss(loss, labels, message):
    rows = partition({"a": torch.randn(2, 2)}, torch.tensor(labels), {"a": 1})
    with pytest.raises(DataError, match=message):
        Run(TDCD(batch=1), Task({"a": linear(2)}, loss), rows)


def without_labels_in(silo):
    full = placement()
    shards = full.shards()
    shards[silo] = {name: Shard(s.ids, s.x) for name, s in shards[silo].items()}
    return Placement.of(shards)


@pytest.mark.parametrize("algorithm", [TDCD(batch=5), Alone(batch=5)])
def test_labels_are_needed_in_every_silo(algorithm):
    with pytest.raises(DataError, match="silo cedar holds no labels"):
        Run(algorithm, task(), without_labels_in("cedar"))


def test_labels_are_needed_where_they_are_said_to_be():
    rows = without_labels_in("ash")
    with pytest.raises(DataError, match="silo ash holds no labels"):
        Run(TDCDPrivateLabels(batch=5), task(), rows)
    with pytest.raises(SettingError, match="labels_at: 'brich'; did you mean 'birch'"):
        Run(TDCDPrivateLabels(batch=5, labels_at="brich"), task(), rows)
    with pytest.raises(DataError, match="labels_at must name the silo that holds them"):
        Run(Central(batch=5), task(), rows)
    Run(TDCDPrivateLabels(batch=5, labels_at="birch"), task(), rows).fit(1)


def test_private_labels_have_no_form_with_a_head():
    with pytest.raises(ModelError, match="no form with a trainable head"):
        Run(TDCDPrivateLabels(batch=5), task(head=True), placement())


@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_divergence_stops_the_run_and_keeps_the_last_good_state(engine):
    learn = Task({s: linear(2, 1) for s in "ab"}, "squared")
    x = {silo: torch.randn(20, 2, generator=torch.Generator().manual_seed(0)) for silo in "ab"}
    rows = partition(x, torch.ones(20), {"a": 3, "b": 2})
    run = Run(TDCD(lr=1e12, batch=10), learn, rows, engine=engine)
    with pytest.raises(NotFiniteError, match=r"round 0: NaN or infinity in update from client a/0"):
        run.fit(5)
    assert run.round == 0
    calm = Run(TDCD(lr=3.0, batch=20, local_steps=3), learn, rows, engine=engine)
    with pytest.raises(NotFiniteError, match=r"from client [ab]/\d"):
        calm.fit(2000)
    assert calm.round > 0
    assert torch.isfinite(calm.predict()).all()
    assert calm.snapshot().round == calm.round


def test_rows_to_predict_must_fit():
    run = Run(TDCD(batch=10), task(), placement()).fit(1)
    with pytest.raises(DataError, match=r"trained on silos .* not on \['ash', 'birch'\]"):
        run.predict(placement(silos=2))
    other = partition(
        {s: torch.randn(5, 2) for s in ("ash", "birch", "cedar")},
        None,
        {"ash": 1, "birch": 1, "cedar": 1},
    )
    with pytest.raises(DataError, match=r"silo ash: features of shape \(2,\), trained on \(4,\)"):
        run.predict(other)


@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_divergence_at_a_hub_stops_the_run_too(engine):
    x = {silo: torch.randn(20, 2, generator=torch.Generator().manual_seed(0)) for silo in "ab"}
    rows = partition(x, torch.ones(20), {"a": 3, "b": 2})
    learn = Task(dict.fromkeys("ab", linear(2, 1)), "squared")
    run = Run(Central(lr=1e12, batch=10, local_steps=20), learn, rows, engine=engine)
    with pytest.raises(NotFiniteError, match="round 0: NaN or infinity in theta at hub a"):
        run.fit(3)


def test_both_engines_blame_the_same_client():
    class Bomb(nn.Module):
        """Infinite where the first feature is above a threshold."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return torch.where(x[:, :1] > 2, 1 / (self.weight * 0), self.weight * x[:, :1])

    x = torch.zeros(12, 2)
    x[7, 0] = 3.0
    rows = partition({"a": x}, torch.ones(12), {"a": 4}, seed=1)
    said = []
    for engine in ("stacked", "reference"):
        with pytest.raises(NotFiniteError, match="in embedding from client a/") as problem:
            Run(TDCD(batch=None), Task({"a": Bomb}, "squared"), rows, engine=engine).fit(1)
        said.append(str(problem.value))
    assert said[0] == said[1]
