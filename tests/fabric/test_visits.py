"""Visits: orders are recorded and replayed, states go on, costs are exact, bad input is refused."""

import json
import math
from dataclasses import replace

import pytest
import torch

from fedloom import Drawn, Network, Placement, Run
from fedloom.algorithms import VAFL, DelayBound, InverseTime, SplitNNAsync
from fedloom.algorithms.verification.costs import cost
from fedloom.config.runfile import RunFile
from fedloom.core import tree
from fedloom.core.errors import DataError, SettingError
from fedloom.core.topology import SERVER, Topology
from fedloom.core.tree import largest_difference
from fedloom.engines.party.in_threads import run_in_threads
from fedloom.fabric.schedule import Everyone, Recorded, Turn
from fedloom.records.record import Record
from fedloom.runs.loop import play
from fedloom.testing import placement, task
from fedloom.testing.samples import examples_of

UNEVEN = Network(
    t_comm=7.3,
    t_comp=0.9,
    bandwidth=150.0,
    latency={"ash": 2.1, "birch-ash": 11.3},
    speed={"birch": 0.3},
    speed_spread=0.8,
    rates={"cedar": 0.02},
    sleep="random",
)


def run(algorithm, *, rows=None, head=False, **options):
    settings = {"precision": "float64", "seed": 3, **options}
    return Run(algorithm, task(head=head), rows or placement(), **settings)


def state_of(trained):
    return {name: trained.fed.read(value) for name, value in trained.state._asdict().items()}


def with_server(rows):
    return replace(rows, topology=Topology(rows.topology.clients, server=True))


EXAMPLES = [*examples_of(VAFL), *examples_of(SplitNNAsync)]


class TestRecords:
    @pytest.mark.parametrize("algorithm", EXAMPLES, ids=str)
    def test_an_order_in_time_replays_with_any_engine(self, algorithm):
        """Recorded under a clock with delays and absences, replayed without any network."""
        ran = run(algorithm, head=True, network=UNEVEN, schedule=Drawn(0.7, seed=1)).fit(4)
        record = Recorded.from_json(json.loads(json.dumps(ran.record.to_json())))
        assert record == ran.record
        assert set(record.visits) == {0, 1, 2, 3}
        for engine, tolerance in (("stacked", 0.0), ("reference", 1e-12)):
            again = run(algorithm, head=True, engine=engine, schedule=record).fit(4)
            assert largest_difference(state_of(again), state_of(ran)) <= tolerance
            assert again.record == ran.record
            assert list(again.ledger) == list(ran.ledger)

    def test_parties_apart_replay_it_too(self):
        algorithm, rows, learn = VAFL(lr=0.3, batch=9, max_delay=2), placement(), task(head=True)
        ran = Run(algorithm, learn, rows, seed=3, precision="float64", network=UNEVEN).fit(3)
        apart = run_in_threads(
            lambda fed: [*play(fed, algorithm, 3)][-1][1],
            learn,
            ran.shapes,
            rows,
            seed=3,
            schedule=ran.record,
        )
        for group, engine in apart.engines.items():
            for name, value in state_of(ran).items():
                values = engine.read(getattr(apart.states[group], name))
                theirs = {party: value[party] for party in values}
                assert largest_difference(values, theirs) <= 1e-12
        assert apart.record == ran.record

    def test_old_files_still_load(self):
        old = {"rounds": 2, "dropped": [[1, "start", 0, {"ash": ["0"]}]]}
        assert Recorded.from_json(old).visits == {}
        assert set(Recorded.from_json(old).to_json()) == {"rounds", "dropped"}
        written = run(VAFL(batch=9)).add_record().to_json()
        assert "notes" not in written
        assert Record.from_json(written).notes is None

    def test_an_order_by_hand(self):
        turns = [Turn(("ash",)), Turn(("ash",)), Turn(("cedar",))]
        trained = run(VAFL(batch=9), schedule=Recorded({}, 1, {0: turns})).fit(1)
        before = trained.algorithm.blocks(trained.fed, trained.algorithm.start(trained.fed))
        after = trained.algorithm.blocks(trained.fed, trained.state)
        moved = {j: largest_difference(before[j], after[j]) > 0 for j in before}
        assert moved == {"ash": True, "birch": False, "cedar": True}

    @pytest.mark.parametrize(
        ("turns", "message"),
        [
            ([Turn(("ahs",))] * 3, "silo 'ahs', which does not exist; did you mean 'ash'"),
            ([Turn(("ash",))] * 2, "3 turns of 1 different visitors; recorded are 1, 1"),
            ([Turn(("ash", "birch"))] * 3, "recorded are 2, 2, 2"),
        ],
    )
    def test_orders_that_do_not_fit(self, turns, message):
        with pytest.raises(SettingError, match=message):
            run(VAFL(batch=9), schedule=Recorded({}, 1, {0: turns})).fit(1)


class TestGoingOn:
    @pytest.mark.parametrize("engine", ["stacked", "reference"])
    @pytest.mark.parametrize("algorithm", [EXAMPLES[2], EXAMPLES[4]], ids=["vafl", "splitnn"])
    def test_under_a_clock(self, algorithm, engine):
        options = {"engine": engine, "network": UNEVEN, "head": True}
        straight = run(algorithm, **options).fit(5)
        saved = run(algorithm, **options).fit(2).snapshot()
        saved = replace(saved, clock=json.loads(json.dumps(saved.clock)))
        resumed = run(algorithm, **options).restore(saved).fit(5)
        assert largest_difference(state_of(resumed), state_of(straight)) == 0
        assert resumed.record == straight.record
        assert resumed.time == straight.time
        assert resumed.fed.clock.done.to_json() == straight.fed.clock.done.to_json()

    @pytest.mark.parametrize("engine", ["stacked", "reference"])
    @pytest.mark.parametrize("algorithm", EXAMPLES, ids=str)
    def test_a_round_leaves_the_state_before_it_as_it_was(self, algorithm, engine):
        """The master writes into its server table in place: into the round's own copy."""
        trained = run(algorithm, engine=engine, head=True)
        fresh = trained.algorithm.start(trained.fed)
        for state in (fresh, trained.fit(2).state):
            trained.state = state
            before = tree.copy(state_of(trained))
            trained.fit(trained.round + 1)
            assert largest_difference(state_of(trained), before) > 0
            trained.state = state
            assert largest_difference(state_of(trained), before) == 0

    def test_a_round_that_failed_is_tried_again(self, monkeypatch):
        straight, trained = run(VAFL(batch=9)).fit(3), run(VAFL(batch=9)).fit(1)
        learn, left = VAFL.learn, [2]

        def failing(self, *args):
            left[0] -= 1
            if left[0] == 0:
                raise OSError("a cable")
            return learn(self, *args)

        monkeypatch.setattr(VAFL, "learn", failing)
        with pytest.raises(OSError, match="a cable"):
            trained.fit(3)
        assert trained.round == 1
        assert largest_difference(state_of(trained.fit(3)), state_of(straight)) == 0

    def test_records_carry_the_delays(self):
        trained = run(VAFL(batch=9, visits=30)).fit(2, every=1)
        notes = trained.records[-1].notes
        assert notes["delay_max"] >= notes["delay_95"] >= notes["delay_median"] >= 1
        assert (
            Record.from_json(json.loads(json.dumps(trained.records[-1].to_json()))).notes == notes
        )
        bounded = run(VAFL(batch=9, visits=30, max_delay=2)).fit(2, every=2).records[-1].notes
        assert bounded["delay_max"] <= 2
        assert bounded["recalls"] > 0

    def test_poisson_delays_are_geometric(self):
        """With equal rates the last visit of another silo was tau turns ago with chance
        (1 - 1/M)^(tau - 1) / M: the mean is M (full batches, so that every visit brings all)."""
        trained = run(VAFL(lr=0.01, batch=None, visits=250)).fit(1)
        counts = torch.tensor(trained.algorithm.delays(trained.fed, trained.state)).double()
        mean = float((counts * torch.arange(len(counts))).sum() / counts.sum())
        assert mean == pytest.approx(3.0, rel=0.2)
        assert counts[0] == 0


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("group", [1, 2])
def test_clients_weighted_by_rows_are_one_client(group, engine):
    """Q = 1: a silo's mean is the step of all its rows, however they lie at its clients."""
    algorithm = VAFL(lr=0.3, batch=9, group=group, weighting="rows", l2=0.1)
    many = run(algorithm, head=True, network=UNEVEN, engine=engine).fit(4)
    single = run(algorithm, rows=placement(3, 1), head=True, schedule=orders(many)).fit(4)
    blocks = [trained.algorithm.blocks(trained.fed, trained.state) for trained in (many, single)]
    assert largest_difference(*blocks) <= 1e-12


def orders(trained):
    return Recorded({}, trained.record.rounds, trained.record.visits)


class TestServer:
    @pytest.mark.parametrize("algorithm", [EXAMPLES[2], EXAMPLES[5]], ids=["vafl", "splitnn"])
    def test_a_server_as_master(self, algorithm):
        """The same model; labels and the label silo's embeddings go to the server, too."""
        rows, at_server = with_server(placement()), replace(algorithm, master="server")
        right = run(at_server, rows=rows, head=True, engine="reference").fit(3)
        fast = run(at_server, rows=rows, head=True).fit(3)
        hub = run(algorithm, rows=rows, head=True).fit(3)
        assert largest_difference(state_of(fast), state_of(right)) <= 1e-12
        blocks = [trained.algorithm.blocks(trained.fed, trained.state) for trained in (fast, hub)]
        assert largest_difference(*blocks) == 0
        assert torch.equal(fast.predict(), hub.predict())
        assert list(fast.ledger) == list(right.ledger)
        for round in range(3):
            wanted = cost(at_server, right.facts(round=round))
            assert right.ledger.of_round(round) == wanted
        assert fast.fed.read(fast.state.desk).keys() == {SERVER}

    def test_there_must_be_one(self):
        with pytest.raises(SettingError, match="has no server"):
            run(VAFL(batch=9, master="server"))


class TestCosts:
    @pytest.mark.parametrize("algorithm", EXAMPLES, ids=str)
    def test_exact_for_any_order(self, algorithm):
        trained = run(algorithm, head=True, network=UNEVEN).fit(5)
        for round in range(5):
            assert trained.ledger.of_round(round) == cost(algorithm, trained.facts(round=round))

    def test_exact_for_calls_on_several_minibatches(self):
        """In the third turn one visitor is at its third minibatch, the other at its second; cedar
        is called for both."""
        algorithm = VAFL(lr=0.3, batch=5, group=2, max_delay=1, visits=6)
        order = [Turn(("ash", "birch")), Turn(("ash", "cedar")), Turn(("ash", "birch"))]
        trained = run(algorithm, head=True, schedule=Recorded({}, 1, {0: order})).fit(1)
        assert "cedar" in trained.record.visits[0][2].again
        assert trained.ledger.of_round(0) == cost(algorithm, trained.facts(round=0))

    def test_without_a_record_everyone_comes_in_turn(self):
        trained = run(VAFL(batch=9))
        order = [Turn((silo,)) for silo in ("ash", "birch", "cedar")]
        ran = run(VAFL(batch=9), schedule=Recorded({}, 2, {0: order, 1: order})).fit(2)
        assert ran.ledger.of_round(1) == cost(trained.algorithm, trained.facts())


def without_labels(silo):
    rows = placement()
    return Placement(rows.topology, rows.ids, rows.owner, rows.x, {**rows.y, silo: None})


class TestBadSettings:
    @pytest.mark.parametrize(
        ("kind", "settings", "message"),
        [
            (VAFL, {"group": 4}, r"group \(t\) is 4, but there are only 3 silos"),
            (VAFL, {"group": 0}, "group must be at least 1, not 0"),
            (VAFL, {"max_delay": 0}, "max_delay must be at least 1, not 0"),
            (VAFL, {"visits": 0}, "visits must be at least 1, not 0"),
            (VAFL, {"lr": "fast"}, "lr: a number or a step-size rule is expected"),
            (VAFL, {"master_lr": "fast"}, "master_lr: a number or a step-size rule is expected"),
            (VAFL, {"batch": 99}, "only 36 common rows"),
            (VAFL, {"l2": -1}, "l2 must be at least 0"),
            (VAFL, {"labels_at": "brich"}, "did you mean 'birch'"),
            (VAFL, {"weighting": "row"}, "did you mean 'rows'"),
            (VAFL, {"master": "hubs"}, "did you mean 'hub'"),
            (SplitNNAsync, {"prime": False}, "starts from everyone's embeddings"),
            (SplitNNAsync, {"local_steps": 0}, "local_steps must be at least 1"),
        ],
        ids=lambda v: v if isinstance(v, str) else "",
    )
    def test_refused_before_training(self, kind, settings, message):
        with pytest.raises(SettingError, match=message):
            run(kind(**{"batch": 9, **settings}))

    def test_a_label_holder_without_labels(self):
        with pytest.raises(DataError, match="silo birch holds no labels"):
            run(VAFL(batch=9, labels_at="birch"), rows=without_labels("birch"))
        run(VAFL(batch=9, labels_at="ash"), rows=without_labels("birch")).fit(1)


L, MU, D, K, C, K0, CHANCES = 2.0, 0.5, 4, 900, 0.3, 40, (0.25, 0.5, 0.25)


@pytest.mark.parametrize(
    ("rule", "formula"),
    [
        (
            {"rule": "delay-bound", "smoothness": L, "delay": D, "steps": K, "scale": C},
            lambda k: min(1 / (4 * (1 + D) * L), C / math.sqrt(K)),
        ),
        (
            {"rule": "delay-bound", "smoothness": 30 * L, "delay": D, "steps": K, "scale": C},
            lambda k: 1 / (4 * (1 + D) * 30 * L),
        ),
        (
            {
                "rule": "inverse-time",
                "convexity": MU,
                "offset": K0,
                "scale": 4 / math.sqrt(min(CHANCES)),
            },
            lambda k: 4 / (MU * min(map(math.sqrt, CHANCES)) * (k + K0)),
        ),
        (
            {"rule": "delay-bound", "smoothness": L, "delay": math.sqrt(7.3), "steps": K},
            lambda k: min(1 / (4 * (1 + math.sqrt(7.3)) * L), 1 / math.sqrt(K)),
        ),
        (
            {"rule": "inverse-time", "convexity": MU, "offset": K0, "scale": 2},
            lambda k: 2 / (MU * (k + K0)),
        ),
    ],
    ids=["theorem 1", "theorem 1, small", "theorem 2", "theorem 3", "theorem 4"],
)
def test_the_theorems_step_sizes(rule, formula):
    """As a run file says them."""
    inner = ", ".join(f"{key} = {json.dumps(value)}" for key, value in rule.items())
    text = f'[data]\nname = "iris"\n[algorithm]\nname = "vafl"\nlr = {{{inner}}}'
    algorithm = RunFile.parse(text).algorithm
    for k in (0, 1, 17, 899):
        assert algorithm.lr(k) == pytest.approx(formula(k), rel=1e-12)
        assert algorithm.master_lr_of(k, 3) == algorithm.lr(k)  # eta_0 = eta_m


def test_constants_of_the_theorems_are_positive():
    with pytest.raises(SettingError, match="smoothness must be above 0"):
        DelayBound(smoothness=0, delay=1, steps=10)
    with pytest.raises(SettingError, match="convexity must be above 0"):
        InverseTime(convexity=0, offset=1)


def test_without_a_network_everyone_is_as_likely():
    trained = run(VAFL(lr=0.01, batch=5, visits=150), schedule=Everyone()).fit(1)
    who = [turn.visitors[0] for turn in trained.record.visits[0]]
    assert {silo: who.count(silo) > 35 for silo in trained.fed.silos} == dict.fromkeys(who, True)
