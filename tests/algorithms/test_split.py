"""FedBCD, SplitNN, FedAvg and FedProx: what they refuse, what moves, who learns what, time."""

from dataclasses import replace

import pytest
import torch

from fedloom import (
    Central,
    Network,
    Placement,
    Run,
    Shard,
    Task,
    TDCDPrivateLabels,
    linear,
    load_model,
    partition,
)
from fedloom.algorithms import FedAvg, FedBCD, FedProx, SplitNN, SplitNNU
from fedloom.config.runfile import RunFile
from fedloom.core import tree
from fedloom.core.errors import DataError, ModelError, PlacementError, ProtocolError, SettingError
from fedloom.core.placed import Rows
from fedloom.core.topology import SERVER
from fedloom.fabric.kinds import Kind
from fedloom.fabric.schedule import Moment, Scripted
from fedloom.records.checkpoint import load_checkpoint, save_checkpoint
from fedloom.runs.build import build_data, build_run
from fedloom.testing import placement, sample_of, task

FROZEN = {"updates": "frozen-gradient", "batch": 5}
Q = 4


def without_labels_in(silo, rows=None):
    shards = (rows or placement()).shards()
    shards[silo] = {name: Shard(s.ids, s.x) for name, s in shards[silo].items()}
    return Placement.of(shards)


# What they refuse, before training


@pytest.mark.parametrize(
    "algorithm", [FedBCD(**FROZEN), SplitNN(batch=5), SplitNNU(batch=5)], ids=str
)
def test_labels_are_needed_where_they_are_said_to_be(algorithm):
    learn, _ = sample_of(algorithm)
    rows = without_labels_in("ash").with_server()
    with pytest.raises(DataError, match="silo ash holds no labels: labels_at must name the silo"):
        Run(algorithm, learn, rows)
    with pytest.raises(SettingError, match="labels_at: 'brich'; did you mean 'birch'"):
        Run(replace(algorithm, labels_at="brich"), learn, rows)
    Run(replace(algorithm, labels_at="birch"), learn, rows).fit(1)


def test_fresh_own_needs_labels_everywhere():
    with pytest.raises(DataError, match=r"cedar holds no labels.*use updates = frozen-gradient"):
        Run(FedBCD(batch=5), task(), without_labels_in("cedar"))
    with pytest.raises(SettingError, match=r"labels_at = 'ash'.*or tdcd-private-labels"):
        Run(FedBCD(batch=5, labels_at="ash"), task(), placement())
    with pytest.raises(SettingError, match=r"labels_at = 'ash'.*or splitnn"):
        Run(FedBCD(batch=5, labels_at="ash"), task(head=True), placement())


def test_a_frozen_gradient_has_no_head_in_every_silo():
    with pytest.raises(ModelError, match="use splitnn, which trains it where the labels are"):
        Run(FedBCD(**FROZEN), task(head=True), placement())


@pytest.mark.parametrize("updates", ["fresh-own", "frozen-gradient"])
def test_one_silo_cannot_take_turns(updates):
    algorithm = FedBCD(batch=5, order="sequential", updates=updates)
    with pytest.raises(SettingError, match=r"order = sequential: there is one silo.*use parallel"):
        Run(algorithm, task(1), placement(1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "serial"}, 'order: "serial" is not one of the choices'),
        ({"updates": "frozen"}, "updates: .* known: fresh-own, frozen-gradient"),
        ({"prox": -1}, "prox must be at least 0, not -1"),
        ({"prox": "much"}, 'prox: a number is expected, not "much"'),
        ({"prox": float("nan")}, "prox: a number is expected, not nan"),
    ],
)
def test_settings_of_fedbcd(settings, message):
    with pytest.raises(SettingError, match=message):
        Run(FedBCD(batch=5, **settings), task(), placement())


def test_the_u_shape_needs_a_server_and_a_middle():
    algorithm = SplitNNU(batch=5)
    learn, rows = sample_of(algorithm)
    with pytest.raises(SettingError, match=r"needs a server: use placement\.with_server\(\)"):
        Run(algorithm, learn, placement())
    for lacking in (task(), task(head=True)):
        with pytest.raises(ModelError, match="needs a middle for the server and a head after it"):
            Run(algorithm, lacking, rows)
    with pytest.raises(ModelError, match="a middle needs a head after it"):
        Task({"a": linear(2, 3)}, "cross-entropy", middle=linear(3, 3))
    x = {silo: torch.randn(20, 2) for silo in rows.x}
    learn = Task(dict.fromkeys(x, linear(2, 3)), "squared", middle=linear(9), head=linear(1))
    with pytest.raises(ModelError, match="the middle"):
        Run(algorithm, learn, partition(x, torch.zeros(20), dict.fromkeys(x, 1)).with_server())


@pytest.mark.parametrize("kind", [FedAvg, FedProx])
def test_one_silo_is_needed(kind):
    with pytest.raises(SettingError, match=r"one silo, and there are 3: use alone .* or tdcd"):
        Run(kind(batch=5), task(), placement())
    with pytest.raises(DataError, match="no silo holds labels"):
        Run(kind(batch=5), task(1), without_labels_in("ash", placement(1)))


@pytest.mark.parametrize("mu", [-0.1, "x", float("inf")])
def test_mu_is_a_number(mu):
    with pytest.raises(SettingError, match=r"mu( must be at least 0|: a number is expected)"):
        FedProx(batch=5, mu=mu)


# What moves


@pytest.mark.parametrize("updates", ["fresh-own", "frozen-gradient"])
@pytest.mark.parametrize("q", [1, 3])
def test_the_order_matters_after_the_first_silo(updates, q):
    """The first silo of a round does the same in either order, the others do not."""
    both = []
    for order in ("parallel", "sequential"):
        algorithm = FedBCD(local_steps=q, lr=0.2, batch=12, order=order, updates=updates)
        run = Run(algorithm, task(), placement(), precision="float64").fit(1)
        both.append(algorithm.blocks(run.fed, run.state))
    apart = {silo: tree.largest_difference(both[0][silo], both[1][silo]) for silo in both[0]}
    assert apart["ash"] < 1e-14
    assert min(apart["birch"], apart["cedar"]) > 1e-5


def test_the_two_meanings_part_after_the_first_step():
    runs = [
        Run(FedBCD(local_steps=3, lr=0.2, batch=12, updates=u), task(), placement()).fit(1)
        for u in ("fresh-own", "frozen-gradient")
    ]
    a, b = (run.algorithm.blocks(run.fed, run.state) for run in runs)
    assert tree.largest_difference(a, b) > 1e-4


@pytest.mark.parametrize("algorithm", [FedProx(batch=12, lr=0.3), FedBCD(batch=12, lr=0.3)])
def test_a_strong_pull_keeps_clients_near_the_start(algorithm):
    name = "mu" if isinstance(algorithm, FedProx) else "prox"
    moved = []
    for weight in (0.0, 2.0):
        pulled = replace(algorithm, **{name: weight})
        run = Run(pulled, *sample_of(pulled), precision="float64")
        before = pulled.start(run.fed)
        run.fit(1)
        moved.append(
            tree.largest_difference(run.fed.read(before.theta), run.snapshot().state["theta"])
        )
    assert 0 < moved[1] < 0.7 * moved[0]


@pytest.mark.parametrize("kind", [SplitNN, SplitNNU])
def test_the_top_is_in_the_label_silo_only(kind):
    learn, rows = task(head=True, middle=True), placement().with_server()
    run = Run(kind(batch=9, labels_at="birch"), learn, rows).fit(2)
    assert set(run.fed.read(run.state.top)) == {"birch"}
    assert all(theta.head == {} for theta in run.fed.read(run.state.theta).values())
    tops = run.ledger.of_round(0)
    assert {line.kind: m for line, (m, _) in tops.items() if line.kind == "top"} == {"top": 2}
    if kind is SplitNNU:
        assert set(run.fed.read(run.state.middle)) == {SERVER}
    assert not {entry.kind for entry in run.ledger} & {"labels", "label", "features"}
    x = {silo: v.float() for silo, v in rows.x.items()}
    assert torch.allclose(run.model()(x), run.predict(), atol=1e-5)
    assert torch.allclose(run.trained().predict(x), run.predict(), atol=1e-5)


@pytest.mark.parametrize("algorithm", [SplitNN(batch=12), FedBCD(**{**FROZEN, "batch": 12})])
def test_without_a_top_the_gradient_is_the_label(algorithm, monkeypatch):
    """What docs and kinds say: the negative entry of the derivative is the class."""
    run = Run(algorithm, task(), placement(), precision="float64")
    seen = {}
    send = run.fed._send

    def record(key, kind, source, to, payload):
        if kind.name == "hub-cut-gradient" and isinstance(payload, Rows):
            seen[to] = payload
        send(key, kind, source, to, payload)

    monkeypatch.setattr(type(run.fed), "_send", lambda self, *args: record(*args))
    run.fit(1)
    ids = run.fed.streams.common("minibatch", 0, 0).sample(run.placement.size, 12)
    assert set(seen) == {"birch", "cedar"}
    for rows in seen.values():
        assert torch.equal(rows.value.argmin(1), run.placement.labels()[torch.from_numpy(ids)])
        assert ((rows.value < 0).sum(1) == 1).all()


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        (SplitNN(local_steps=2, lr=0.3, batch=20), "cut-derivative"),
        (SplitNNU(local_steps=2, lr=0.3, batch=20), "middle-derivative"),
        (FedBCD(local_steps=2, lr=0.3, batch=20, updates="frozen-gradient"), "cut-derivative"),
        (TDCDPrivateLabels(local_steps=1, lr=0.3, batch=20), "derivative"),
        (Central(local_steps=2, lr=0.3, batch=20), "labels"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_rows_without_a_derivative_count_nowhere(algorithm, kind, engine):
    """A label client that is gone when it comes to derivatives, or to labels, is as one that never
    came."""
    blocks = []
    for moment in (Moment(0), Moment(0, kind)):
        gone = Scripted({moment: {"ash": ["1"]}})
        made = {"engine": engine, "schedule": gone, "precision": "float64", "seed": 3}
        head = algorithm.takes_head and not algorithm.needs_server
        run = Run(algorithm, *sample_of(algorithm, head=head), **made).fit(1)
        assert run.record.dropped == {moment: {"ash": ("1",)}}
        blocks.append({name: run.fed.read(v) for name, v in run.state._asdict().items()})
    assert tree.largest_difference(*blocks) < 1e-12


def test_a_model_with_a_middle_is_saved_and_loaded(tmp_path):
    algorithm = SplitNNU(batch=9, lr=0.2)
    learn, rows = sample_of(algorithm)
    run = Run(algorithm, learn, rows).fit(2)
    again = load_model(run.save(tmp_path / "model"))
    x = {silo: v.float() for silo, v in rows.x.items()}
    assert torch.equal(again.predict(x), run.trained().predict(x))


def test_renewing_a_value():
    run = Run(SplitNN(batch=9), task(), placement())
    fed = run.fed
    theta = fed.at_hubs(silo_of, fed.part)
    newer = fed.within("birch").at_hubs(shout, theta)
    assert fed.read(fed.renew(theta, newer)) == {"ash": "ash", "birch": "BIRCH", "cedar": "cedar"}
    with pytest.raises(PlacementError, match="renew: nothing lives at hub birch so far"):
        fed.renew(fed.at("ash", silo_of, fed.part), newer)


def silo_of(part):
    return part.silo


def shout(name):
    return name.upper()


def test_rows_spread_to_a_hub_are_checked_as_its_own():
    """Silos have embeddings of different widths: each gets rows of its own."""
    run = Run(SplitNN(batch=9), task(head=True), placement(), engine="reference")
    fed, kind = run.fed, Kind("slopes", "a test", "embedding")
    fed.begin(0)
    fed.spread(kind, fed.at("ash", gradients, fed.part), frm="ash")
    with pytest.raises(ProtocolError, match="slopes from hub ash has rows of shape"):
        fed.spread(kind, fed.at("ash", all_as_wide, fed.part), frm="ash")


def gradients(part):
    return {
        j: Rows(torch.zeros(2, wide), torch.ones(2).bool()) for j, wide in part.shapes.width.items()
    }


def all_as_wide(part):
    return {j: Rows(torch.zeros(2, 4), torch.ones(2).bool()) for j in part.shapes.width}


# Time


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize(
    ("algorithm", "per_round"),
    [
        (FedAvg(local_steps=Q, batch=12), 10 + Q),
        (FedBCD(local_steps=Q, batch=12), 3 * 10 + Q),
        (FedBCD(local_steps=Q, batch=12, updates="frozen-gradient"), 5 * 10 + Q),
        (SplitNN(local_steps=Q, batch=12), 5 * 10 + Q),
        (SplitNNU(local_steps=Q, batch=12), 7 * 10 + Q + 1),
    ],
    ids=["fedavg", "fedbcd", "frozen", "splitnn", "splitnn-u"],
)
def test_a_round_takes(algorithm, per_round, engine):
    learn, rows = sample_of(algorithm)
    run = Run(algorithm, learn, rows, engine=engine, network=Network(t_comm=10, t_comp=1))
    assert run.fit(2).time == 2 * per_round


# From a run file


UTOML = """
[data]
name = "digits"
[partition]
silos = 2
[model]
name = "linear"
embedding = 4
[model.middle]
name = "mlp"
hidden = [5]
[model.head]
name = "linear"
[algorithm]
name = "splitnn-u"
rounds = 2
lr = 0.3
labels_at = "b"
"""


def test_a_run_file_brings_its_server(tmp_path):
    """And the state of server and label silo goes through a checkpoint."""
    file = RunFile.parse(UTOML)
    data = build_data(file)
    run = build_run(file, data).fit(2)
    assert run.placement.topology.server
    assert run.evaluate()["accuracy"] is not None
    save_checkpoint(tmp_path / "one", run.snapshot(), [], 0.0)
    again = build_run(file, data)
    again.restore(load_checkpoint(tmp_path / "one").snapshot(again.blank()))
    assert torch.equal(again.fit(4).predict(), run.fit(4).predict())


def test_a_middle_needs_an_embedding_and_a_head():
    text = UTOML.replace('[model.head]\nname = "linear"\n', "").replace("embedding = 4", "")
    file = RunFile.parse(text)
    with pytest.raises(SettingError, match="a middle needs an embedding and a head"):
        build_run(file, build_data(file))
