"""Virtual time: the paper's model exactly, links and speeds, both engines alike, going on."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedloom import TDCD, Alone, Central, Drawn, Run, Task, TDCDPrivateLabels, linear, partition
from fedloom.algorithms import MinibatchSGD
from fedloom.algorithms.verification.battery_cases import cases
from fedloom.core.errors import SettingError
from fedloom.core.registry import algorithms
from fedloom.core.rng import Streams
from fedloom.core.topology import SERVER, Topology
from fedloom.fabric.kinds import Kind
from fedloom.fabric.simclock.clock import Clock, Crossing, Network, Times
from fedloom.testing import placement, sample_of, task
from fedloom.testing.samples import examples_of

Q, ROUNDS = 7, 3
UNEVEN = Network(
    t_comm=7.3,
    t_comp=0.9,
    bandwidth=150.0,
    latency={"ash": 2.1, "ash/0": 9.7, "birch-ash": 11.3},
    bandwidths={"cedar": 40.0, "cedar/1": 3.3, "ash-cedar": 77.0},
    speed={"birch": 0.7, "birch/1": 0.11},
    speed_spread=0.8,
)
UNEVEN_ASH = Network(
    t_comm=7.3,
    t_comp=0.9,
    bandwidth=150.0,
    latency={"ash": 2.1, "ash/0": 9.7},
    speed={"ash/1": 0.11},
    speed_spread=0.8,
)
HAND = Topology({"a": ("x", "y"), "b": ("z",)}, server=True)


def run(algorithm, network=None, **options):
    settings = {"network": network or Network(t_comm=10, t_comp=1), **options}
    usual, rows = sample_of(algorithm)
    return Run(algorithm, settings.pop("task", usual), rows, precision="float64", **settings)


def clock(network, topology=HAND, seed=0):
    return Clock(network, topology, Streams(seed))


class TestThePapersModel:
    @pytest.mark.parametrize("engine", ["stacked", "reference"])
    @pytest.mark.parametrize(
        ("algorithm", "per_round"),
        [
            (TDCD(local_steps=Q, batch=12), 3 * 10 + Q),
            (TDCD(local_steps=Q, batch=5, weighting="participants"), 3 * 10 + Q),
            (TDCD(local_steps=Q, batch=5, minibatch="fresh"), 3 * 10 + Q),
            (TDCDPrivateLabels(local_steps=Q, batch=12), (4 * Q + 1) * 10 + Q),
            (Alone(local_steps=Q, batch=12), 10 + Q),
        ],
        ids=["tdcd", "participants", "fresh", "private", "alone"],
    )
    def test_a_round_takes(self, algorithm, per_round, engine):
        going = run(algorithm, engine=engine)
        times = [going.fit(rounds + 1).time for rounds in range(ROUNDS)]
        assert times == [per_round * (r + 1) for r in range(ROUNDS)]

    def test_a_shared_head_is_one_exchange_more(self):
        trained = run(TDCD(local_steps=Q, batch=12), task=task(head=True)).fit(ROUNDS)
        assert trained.time == ROUNDS * (4 * 10 + Q)

    def test_pooled_rows_are_sent_ahead(self):
        """Its clients wait for nothing, so only the first rows are waited for."""
        assert run(Central(local_steps=Q, batch=12)).fit(ROUNDS).time == 15 + ROUNDS * Q

    def test_with_fractions(self):
        trained = run(TDCD(local_steps=Q, batch=12), Network(t_comm=0.1, t_comp=0.03)).fit(ROUNDS)
        assert trained.time == pytest.approx(ROUNDS * (0.3 + Q * 0.03), abs=1e-9)

    def test_without_a_network_there_is_no_time(self):
        trained = Run(TDCD(batch=12), task(), placement()).fit(1)
        assert trained.time is None
        assert trained.snapshot().clock is None

    def test_predictions_take_no_time(self):
        trained = run(TDCD(local_steps=Q, batch=12)).fit(1)
        trained.loss()
        assert trained.time == 37


class TestLinks:
    def test_by_hand(self):
        """Down to two clients, a step, up: the hub waits for the slower one."""
        virtual = clock(
            Network(
                t_comm=10, t_comp=1, latency={"a/x": 1}, bandwidths={"a/y": 4}, speed={"a/x": 0.5}
            )
        )
        both, first = np.array([True, True]), np.array([True, False])
        virtual.down("a", both, 8)
        assert virtual.times.clients["a"].tolist() == [1, 5 + 2]
        virtual.work("a", both, 3)
        assert virtual.times.clients["a"].tolist() == [1 + 6, 7 + 3]
        before = virtual.times
        virtual.work("a", first, 3)
        virtual.down("a", first, 80)
        assert virtual.times.clients["a"].tolist() == [7 + 6, 7 + 3]  # nothing for who is not there
        virtual.times = before
        virtual.up("a", first, 0)
        assert virtual.times.hubs["a"] == 8
        virtual.up("a", both, np.array([0, 12]))
        assert virtual.times.hubs["a"] == 10 + 5 + 3
        assert virtual.times.hubs["b"] == 0

    def test_a_silo_has_a_latency_and_its_clients_may_have_others(self):
        """One way; where none is given, half of what an exchange between hubs takes."""
        virtual = clock(Network(t_comm=10, latency={"a": 3, "a/y": 1}))
        for silo, there in (("a", [True, True]), ("b", [True])):
            virtual.down(silo, np.array(there), 0)
        assert virtual.times.clients["a"].tolist() == [3, 1]
        assert virtual.times.clients["b"].tolist() == [5]

    def test_nobody_answers(self):
        virtual = clock(Network())
        virtual.up("a", np.array([False, False]), 5)
        assert virtual.now == 0

    def test_between_hubs_messages_of_a_move_cross(self):
        virtual = clock(Network(t_comm=10, bandwidth=2, latency={"b-a": 3}, bandwidths={"a-b": 4}))
        virtual.work_at("a", 100)
        virtual.across([Crossing("a", "b", 8), Crossing("b", "a", 8), Crossing("b", SERVER, 8)])
        assert virtual.times.hubs == {"a": 100, "b": 105, SERVER: 14}

    def test_the_server_is_a_hub_away(self):
        virtual = clock(Network(t_comm=10, latency={"server-b": 1}))
        virtual.across([Crossing("a", SERVER, 8), Crossing(SERVER, "b", 8)])
        assert virtual.times.hubs == {"a": 0, "b": 1, SERVER: 10}

    def test_absent_clients_are_neither_charged_nor_waited_for(self):
        slow = Network(speed={"ash/0": 0.01})
        schedule = Drawn(0.5, seed=1)
        trained = run(TDCD(local_steps=Q, batch=12), slow, schedule=schedule)
        took, before = [], 0.0
        for done in range(1, 9):
            trained.fit(done)
            took.append(trained.time - before)
            before = trained.time
        out = [
            any(
                "0" in gone.get("ash", ())
                for m, gone in trained.record.dropped.items()
                if m[0] == r
            )
            for r in range(8)
        ]
        assert any(out)
        assert not all(out)
        assert [time < 100 for time in took] == out


class TestStragglers:
    def test_speeds_are_drawn_around_their_silos(self):
        names = tuple(str(k) for k in range(4001))
        wide = Topology({"a": names, "b": names})
        network = Network(t_comp=1, speed={"b": 0.5, "b/7": 3}, speed_spread=0.5)
        virtual = clock(network, wide)
        for silo in ("a", "b"):
            virtual.work(silo, np.ones(len(names), dtype=bool), 1)
        a, b = virtual.times.clients["a"], virtual.times.clients["b"]
        assert np.median(a) == pytest.approx(1, rel=0.05)
        assert np.log(a).std() == pytest.approx(0.5, rel=0.05)
        assert np.median(b) == pytest.approx(2, rel=0.05)
        assert b[7] == 1 / 3

    def test_a_clients_speed_depends_on_seed_and_name_alone(self):
        def steps(names, seed):
            virtual = clock(Network(speed_spread=1.0), Topology({"a": names}), seed)
            virtual.work("a", np.ones(len(names), dtype=bool), 1)
            return dict(zip(names, virtual.times.clients["a"].tolist(), strict=True))

        few, many = steps(("u", "v"), 3), steps(("w", "v", "u"), 3)
        assert few["u"] == many["u"]
        assert few["v"] == many["v"]
        assert few["u"] != few["v"]
        assert few["u"] != steps(("u", "v"), 4)["u"]

    def test_many_clients_are_no_more_work_for_python(self, interpreted):
        def rounds(count):
            names = tuple(str(k) for k in range(count))
            virtual = clock(Network(speed_spread=0.5, bandwidth=10), Topology({"a": names}))
            there, sizes = np.ones(count, dtype=bool), np.arange(count)

            def go():
                virtual.begin()
                virtual.down("a", there, 100)
                virtual.up("a", there, sizes)
                virtual.down("a", there, sizes)
                virtual.work("a", there, 10)
                virtual.up("a", there, 100)
                virtual.end()

            return go

        assert interpreted(rounds(10_000)) == interpreted(rounds(10)) > 100


def everything(first=None):
    """Every registered algorithm's examples, or the first few of each."""
    return [example for name in algorithms for example in examples_of(algorithms[name])[:first]]


@pytest.mark.parametrize("algorithm", everything(1), ids=str)
def test_engines_keep_the_same_time(algorithm):
    clocks, network = [], UNEVEN_ASH if algorithm.one_silo else UNEVEN
    if cases.of(type(algorithm)).sample is not None:  # of other silos
        network = replace(UNEVEN, latency={"views/0": 9.7}, bandwidths={}, speed={"views/1": 0.11})
    for options in ({"engine": "reference"}, {"engine": "stacked"}, {"chunk": 2}):
        trained = run(algorithm, network, schedule=Drawn(0.6, seed=2), seed=5, **options).fit(4)
        times = trained.fed.clock.times
        clocks.append(np.concatenate([list(times.hubs.values()), *times.clients.values()]))
    assert clocks[0].max() > 0
    for other in clocks[1:]:
        assert np.abs(clocks[0] - other).max() <= 1e-9


VALUE = Kind("value", "anything")


def test_engines_keep_the_same_time_where_clients_hold_values_of_their_own():
    times = []
    for engine in ("stacked", "reference"):
        fed = run(TDCD(batch=12), UNEVEN, engine=engine).fed
        fed.begin(0)
        ash = fed.within("ash")
        unequal_k = ash.spread(VALUE, ash.at_hubs(unequal, steps=2))
        ash.collect(VALUE, ash.at_clients(twice, unequal_k, steps=3))
        times.append(fed.clock.times)
    assert times[0].to_json() == times[1].to_json()
    assert times[0].hubs["ash"] > 2 * 9.7
    assert times[0].hubs["birch"] == 0


def unequal():
    return {str(k): torch.zeros(10 * k + 1) for k in range(4)}


def twice(value):
    return 2 * value


class TestGoingOn:
    @pytest.mark.parametrize("engine", ["stacked", "reference"])
    def test_a_resumed_run_has_the_times_of_an_uninterrupted_one(self, engine):
        algorithm, options = TDCD(local_steps=2, batch=12), {"engine": engine, "seed": 5}
        schedule = Drawn(0.6, seed=2)
        straight = run(algorithm, UNEVEN, schedule=schedule, **options).fit(5)
        saved = run(algorithm, UNEVEN, schedule=schedule, **options).fit(2).snapshot()
        saved = replace(saved, clock=json.loads(json.dumps(saved.clock)))
        resumed = run(algorithm, UNEVEN, schedule=schedule, **options).restore(saved)
        assert resumed.time == Times.from_json(saved.clock).latest
        resumed.fit(5)
        assert resumed.time == straight.time
        assert resumed.fed.clock.done.to_json() == straight.fed.clock.done.to_json()

    def test_an_interrupted_round_is_forgotten(self, monkeypatch):
        trained = run(TDCD(local_steps=Q, batch=12)).fit(1)
        real = trained.fed.exchange

        def interrupted(*args):
            real(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(trained.fed, "exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained.fit(2)
        assert trained.time == 37
        assert trained.fit(3).time == 3 * 37

    def test_times_of_other_parties_are_refused(self):
        rows = partition({"ash": torch.randn(30, 4)}, torch.zeros(30), {"ash": 2})
        other = Run(TDCD(batch=5), Task({"ash": linear(4)}, "squared"), rows, network=Network())
        saved = other.fit(1).snapshot()
        with pytest.raises(SettingError, match="saved times"):
            run(TDCD(batch=12)).restore(saved)

    def test_the_clock_changes_nothing(self):
        algorithm = TDCD(local_steps=2, batch=12)
        plain = Run(algorithm, task(), placement(), precision="float64").fit(2)
        timed = run(algorithm, UNEVEN).fit(2)
        assert torch.equal(plain.predict(), timed.predict())
        assert list(plain.ledger) == list(timed.ledger)


class TestBadSettings:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"t_comm": -1}, "Network: t_comm must be at least 0, not -1"),
            ({"t_comp": float("nan")}, "t_comp: a number is expected, not nan"),
            ({"t_comp": True}, "t_comp: a number is expected, not true"),
            ({"t_comm": "10"}, 't_comm: a number is expected, not "10"'),
            ({"bandwidth": 0}, "bandwidth must be above 0"),
            ({"speed_spread": -0.5}, "speed_spread must be at least 0"),
            ({"latency": {"ash": -1}}, "latency.ash must be at least 0"),
            ({"bandwidths": {"ash": 0}}, "bandwidths.ash must be above 0"),
            ({"speed": {"ash/0": 0}}, "speed.ash/0 must be above 0"),
            ({"latency": 3}, "latency: a table is expected, not 3"),
            ({"latency": {"ahs": 1}}, "no link 'ahs'; did you mean 'ash'"),
            ({"latency": {"ash/9": 1}}, "no client 'ash/9'; did you mean 'ash/"),
            ({"latency": {"oak/1": 1}}, "no link 'oak/1'"),
            ({"bandwidths": {"ash-brich": 1}}, "did you mean 'ash-birch'"),
            ({"latency": {"server-ash": 1}}, "no link 'server-ash'"),
            ({"speed": {"ash-birch": 1}}, "no silo or client 'ash-birch'"),
            ({"latency": {"ash-birch": 1, "birch-ash": 2}}, "are the same link"),
        ],
        ids=lambda v: v if isinstance(v, str) else "",
    )
    def test_refused_before_training(self, settings, message):
        with pytest.raises(SettingError, match=message):
            run(TDCD(batch=12), Network(**settings))

    def test_a_name_that_can_mean_two_links(self):
        names = Topology(dict.fromkeys(("a", "b", "a-b"), ("k",)))
        with pytest.raises(SettingError, match="'a-b' can mean two links"):
            Network(latency={"a-b": 1}).check(names)


def test_every_sgd_declares_its_steps():
    """At infinite speed of communication, a round takes Q steps: nobody forgot `steps=`."""
    for example in everything():
        if isinstance(example, MinibatchSGD):
            trained = run(example, Network(t_comm=0, t_comp=1)).fit(2)
            turns = 3 if getattr(example, "order", "") == "sequential" else 1
            server = example.top_steps if example.needs_server else 0
            assert trained.time == 2 * (turns * example.local_steps + server)
