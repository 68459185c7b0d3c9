"""Delays in virtual time: synchronous algorithms wait, asynchronous ones go on."""

from collections import Counter

import pytest
import torch

from fedloom import TDCD, Network, Run, Task, linear, partition
from fedloom.algorithms import VAFL, SplitNNAsync
from fedloom.core.errors import SettingError
from fedloom.core.rng import Streams
from fedloom.core.topology import Topology
from fedloom.fabric.simclock.clock import Clock
from fedloom.fabric.simclock.delays import Delays

TOPOLOGY = Topology({"a": ("x",), "b": ("z",)})
ROUNDS = 500  # of the thesis


def run(algorithm, silos=2, **network):
    """A run of small workers on a quick network: a tenth of a second for a round or a visit."""
    draw = torch.Generator().manual_seed(0)
    x = {f"w{j}": torch.randn(60, 2, generator=draw) for j in range(silos)}
    y = sum(a[:, 0] for a in x.values()) > 0
    learn = Task({j: linear(2, 2) for j in x}, "cross-entropy")
    rows = partition(x, y.long(), dict.fromkeys(x, 1))
    return Run(algorithm, learn, rows, network=Network(t_comm=0.01, t_comp=0.02, **network))


def visits_of(trained):
    return Counter(s for turns in trained.record.visits.values() for t in turns for s in t.visitors)


class TestTheThesis:
    """One worker sleeps 5 s at a time; a synchronous run of 500 rounds needs at least 2500 s."""

    def test_synchronous(self):
        algorithm = TDCD(local_steps=1, batch=20)
        asleep = run(algorithm, sleep="round-robin").fit(ROUNDS)
        assert asleep.time >= 2500
        assert asleep.time == pytest.approx(2500 + ROUNDS * 0.05, rel=0.01)
        plain, asleep = run(algorithm).fit(20), run(algorithm, sleep="round-robin").fit(20)
        assert plain.time == pytest.approx(20 * 0.05)
        assert torch.equal(asleep.predict(), plain.predict())

    def test_waiting_for_all_visitors_is_as_slow(self):
        asleep = run(VAFL(group=2, batch=20), sleep="round-robin").fit(50)
        assert asleep.time == pytest.approx(250, rel=0.01)

    @pytest.mark.parametrize("silos", [pytest.param(2, marks=pytest.mark.slow), 4])
    def test_asynchronous(self, silos):
        """One of M is asleep at any time: M / (M - 1) of the undelayed time at most, nowhere near
        2500 s."""
        algorithm = SplitNNAsync(local_steps=1, batch=20)
        plain = run(algorithm, silos).fit(ROUNDS // 10).time * 10
        asleep = run(algorithm, silos, sleep="round-robin").fit(ROUNDS)
        assert asleep.time <= 1.1 * plain * silos / (silos - 1)
        assert asleep.time < 100
        assert min(visits_of(asleep).values()) > 0.5 * ROUNDS

    def test_random_sleep(self):
        """25 %: synchronous rounds wait where any of two sleeps; asynchronous, each for itself."""
        waits = run(TDCD(local_steps=1, batch=20), sleep="random").fit(200)
        assert waits.time == pytest.approx(200 * 5 * (1 - 0.75**2), rel=0.15)
        goes_on = run(VAFL(batch=20), sleep="random").fit(200)
        assert goes_on.time == pytest.approx(200 * 5 * 0.25, rel=0.25)


class TestWhoComes:
    def test_by_speed(self):
        trained = run(VAFL(batch=20, visits=60), speed={"w1": 0.05}).fit(5)
        count = visits_of(trained)
        assert count["w0"] > 3 * count["w1"] > 0

    def test_by_rate(self):
        trained = run(VAFL(batch=20, visits=100), rate=0.3, rates={"w1": 0.1}).fit(6)
        count = visits_of(trained)
        assert count["w0"] / count["w1"] == pytest.approx(3, rel=0.25)

    def test_a_pause_is_constant(self):
        trained = run(TDCD(local_steps=1, batch=20), pause={"w0": 2.0}).fit(10)
        assert trained.time == pytest.approx(10 * 2.05, rel=0.01)
        goes_on = run(VAFL(batch=20), pause={"w0": 2.0}).fit(40)
        assert visits_of(goes_on)["w1"] > 10 * visits_of(goes_on)["w0"]

    def test_equal_silos_take_turns(self):
        links = {"w0-w1": 0.0, "w0-w2": 0.0}  # w0's hub is the master
        trained = run(VAFL(batch=20), silos=3, latency=links).fit(4)
        for turns in trained.record.visits.values():
            assert sorted(turn.visitors[0] for turn in turns) == ["w0", "w1", "w2"]

    def test_a_slow_link_keeps_nobody_waiting(self):
        """From its second visit on, a silo is expected when it will be there, not before."""
        algorithm = VAFL(batch=20, visits=40, prime=False)
        far = run(algorithm, silos=3, bandwidths={"w0-w1": 200.0}).fit(5)
        near = run(algorithm, silos=3).fit(5)
        assert 2 <= visits_of(far)["w1"] < 10
        assert far.time < 2 * near.time

    def test_a_crash(self):
        trained = run(VAFL(batch=20, visits=6), silos=3, crash={"w1": (2, 5)}).fit(8)
        who = {r: {t.visitors[0] for t in turns} for r, turns in trained.record.visits.items()}
        assert [r for r in who if "w1" not in who[r]] == [2, 3, 4]
        assert trained.time < 8
        waits = run(TDCD(local_steps=1, batch=20), crash={"w1": (2, 5)}, outage=40.0).fit(8)
        assert waits.time == pytest.approx(3 * 40 + 8 * 0.05, rel=0.01)

    def test_who_cannot_go_on_waits_for_a_crashed_silo(self):
        trained = run(VAFL(batch=20, group=2), crash={"w1": (2, 5)}, outage=40.0).fit(8)
        assert trained.time == pytest.approx(3 * 40, rel=0.05)


def test_a_call_waits_for_a_sleeper():
    """Bounded delay costs time: the master waits for the silo it called."""
    free = run(VAFL(batch=20, visits=40), sleep="round-robin").fit(2)
    bound = run(VAFL(batch=20, visits=40, max_delay=2), sleep="round-robin").fit(2)
    notes = bound.algorithm.notes(bound.fed, bound.state)
    assert notes["recalls"] > 0
    assert notes["delay_max"] <= 2
    assert bound.time > 2 * free.time


class TestAVisitByHand:
    """Of b's hub at time 10, to a master at a's hub, three seconds and four bytes a second away."""

    def clock(self, **more):
        network = Network(t_comp=2.0, latency={"a-b": 3.0}, bandwidths={"a-b": 4.0}, **more)
        made = Clock(network, TOPOLOGY, Streams(0), asynchronous=True)
        made.begin(0)
        made.work_at("b", 5)
        return made

    def test_there_and_back(self):
        virtual = self.clock()
        begun = virtual.set_out("b", "a")
        assert begun == 10
        virtual.arrive("b", "a", [8, 20], begun)  # two messages at once: the longer one counts
        assert virtual.now == 10 + 3 + 20 / 4
        virtual.answer("a", 1)
        assert virtual.now == 18 + 2
        virtual.come_back("b", "a", 4)
        assert virtual.times.hubs == {"a": 0, "b": 20 + 3 + 4 / 4}
        assert virtual.now == 20

    def test_the_masters_own_silo_has_no_way(self):
        virtual = self.clock()
        virtual.arrive("a", "a", [1000], virtual.set_out("a", "a"))
        virtual.answer("a", 3)
        virtual.come_back("a", "a", 1000)
        assert virtual.now == virtual.times.hubs["a"] == 3 * 2

    def test_a_call(self):
        virtual = self.clock()
        virtual.answer("a", 6)
        virtual.fetch("b", "a")
        assert virtual.times.hubs["b"] == 12 + 3
        virtual.fetched("b", "a", [12, 4])
        assert virtual.now == 15 + 3 + 12 / 4
        virtual.fetch("b", "a")
        virtual.fetched("b", "a", [])
        assert (virtual.times.hubs["b"], virtual.now) == (21 + 3, 24)

    def test_who_is_expected_first(self):
        """a is at the master's; b has 10 s and its way before it, unless a is down."""
        assert self.clock().visitors("a", 2) == ("a", "b")
        assert self.clock(pause={"a": 20.0}).visitors("a", 1) == ("b",)
        down = self.clock(crash={"a": (0, 1)}, outage=0.001)
        assert down.visitors("a", 2) == ("b", "a")
        down.end()
        down.begin(1)
        assert down.visitors("a", 2) == ("a", "b")


def test_activation_is_a_poisson_process():
    """Waits of an exponential distribution: as far apart as they are long."""
    delays = Delays(Network(rate=0.5), ("a",), Streams(0))
    waits = torch.tensor([delays.sets_out("a", 7.0, visit) - 7.0 for visit in range(4000)])
    assert waits.min() >= 0
    assert float(waits.mean()) == pytest.approx(2.0, rel=0.05)
    assert float(waits.std()) == pytest.approx(2.0, rel=0.05)


def test_delays_are_forgotten_with_their_round():
    clock = Clock(Network(pause={"a": 3.0}), TOPOLOGY, Streams(0))
    clock.begin(0)
    assert clock.times.hubs == {"a": 3.0, "b": 0.0}
    clock.begin(0)
    assert clock.times.hubs == {"a": 3.0, "b": 0.0}


class TestBadSettings:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"rate": 0}, "Network: rate must be above 0, not 0"),
            ({"rates": {"a": 0}}, "rates.a must be above 0, not 0"),
            ({"rates": {"a": -1}}, "rates.a must be above 0, not -1"),
            ({"rates": {"ab": 1}}, "rates: no silo 'ab'; did you mean"),
            ({"rates": {"server": 1}}, "rates: no silo 'server'"),
            ({"pause": {"a/x": 1}}, "pause: no silo 'a/x'"),
            ({"pause": {"a": -1}}, "pause.a must be at least 0, not -1"),
            ({"sleep": "robin"}, "sleep: .* did you mean 'round-robin'"),
            ({"sleep": "round-robin", "sleep_for": 0}, "sleep_for must be above 0"),
            ({"sleep": "random", "sleep_chance": 1.5}, "sleep_chance must be between 0 and 1"),
            ({"sleep_chance": -1}, "sleep_chance must be between 0 and 1"),
            ({"crash": {"c": (1, 2)}}, "crash: no silo 'c'"),
            ({"crash": {"a": (5, 5)}}, r"crash of 'a' must be \[round, later round\]"),
            ({"crash": {"a": (1.5, 5)}}, "crash.a: a whole number is expected, not 1.5"),
            ({"crash": {"a": (5,)}}, "crash.a: 2 values are expected, not 1"),
            ({"crash": {"a": 3}}, "crash.a: a list of whole numbers is expected, not 3"),
            ({"outage": -1}, "outage must be at least 0"),
            ({"rates": 3}, "rates: a table is expected, not 3"),
        ],
        ids=lambda v: v if isinstance(v, str) else "",
    )
    def test_refused_before_training(self, settings, message):
        with pytest.raises(SettingError, match=message):
            Clock(Network(**settings), TOPOLOGY, Streams(0))
