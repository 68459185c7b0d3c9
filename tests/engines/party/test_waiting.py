"""Absence as it happens: late clients, dead clients, dead hubs, in threads with real deadlines.

Nothing here sleeps. A message is held back until another one is seen, or a party's thread ends when
it would send; deadlines are long for a machine and short for a person.
"""

import threading

import pytest

from fedloom import TDCD, Central, Run, TDCDPrivateLabels
from fedloom.core import tree
from fedloom.core.errors import AbortedError, FedLoomError, LostError, PlacementError, ProtocolError
from fedloom.core.topology import Client
from fedloom.engines.party.engine import PartyEngine
from fedloom.engines.party.in_threads import run_in_threads
from fedloom.engines.party.timeouts import Waits
from fedloom.engines.party.values import Pending
from fedloom.fabric.kinds import Key
from fedloom.fabric.schedule import Everyone, Moment, Scripted
from fedloom.runs.loop import play
from fedloom.testing import placement, task
from fedloom.transports.memory import MemoryTransport
from tests.helpers.personal import Counting, Personal

ROUNDS, SEED = 4, 3
LATE = Client("ash", "1")
SKIP = Waits(up=5.0, patience=30.0)
ALGORITHM = TDCD(local_steps=2, lr=0.2, batch=20)
PERSONAL = Personal(local_steps=2, lr=0.2, batch=20)
COUNTING = Counting(local_steps=2, lr=0.2, batch=20)


def name(algorithm):
    return type(algorithm).__name__


class Died(BaseException):
    """The party's process dies without a message."""


class HoldingBack(MemoryTransport):
    """Keeps messages of one kind, round and source until another message is sent."""

    def __init__(self, parties, hold, until=None):
        super().__init__(parties)
        self._hold, self._until, self._kept = hold, until, []
        self._lock = threading.Lock()

    def send(self, message):
        with self._lock:
            if self._hold(message):
                self._kept.append(message)
                return
            super().send(message)
        if self._until is not None and self._until(message):
            self.release()

    def release(self):
        with self._lock:
            delayed, self._kept = self._kept, []
            for late in delayed:
                super().send(late)


class Deadly(MemoryTransport):
    """Parties die when they would send what `dies` says."""

    def __init__(self, parties, dies):
        super().__init__(parties)
        self._dies = dies

    def send(self, message):
        if self._dies(message):
            raise Died
        super().send(message)


class Frozen(MemoryTransport):
    """A party hangs instead of sending what `hangs` says, until another party gives up on it."""

    def __init__(self, parties, hangs):
        super().__init__(parties)
        self._hangs, self.given_up = hangs, threading.Event()

    def send(self, message):
        if self._hangs(message):
            assert self.given_up.wait(120)
        super().send(message)

    def abort(self, cause):
        super().abort(cause)
        self.given_up.set()


def is_(kind, round, source):
    return lambda m: m.kind == kind and m.key.round == round and m.source == source


def live(algorithm, transport, waits=SKIP, rounds=ROUNDS, schedule=None, on_round=None):
    """Every party in its own thread; a party that dies sends nothing more."""
    rows, learn = placement(), task()
    shapes = Run(algorithm, learn, rows, precision="float64").shapes

    def run_party(fed):
        try:
            for done, state in play(fed, algorithm, rounds):  # noqa: B007
                if on_round is not None:
                    on_round(fed, done)
        except Died:
            for party in fed.hosted:
                transport.close(party)
            return None
        return state

    return run_in_threads(
        run_party,
        learn,
        shapes,
        rows,
        seed=SEED,
        schedule=schedule or Everyone(),
        waits=waits,
        transport=transport,
    )


def parties():
    return placement().topology.parties


def of(apart, field):
    """A field of the state at every remaining party."""
    values = {}
    for group, state in apart.states.items():
        if state is not None:
            values.update(apart.engines[group].read(getattr(state, field)))
    return values


def assert_replays(apart, algorithm, rounds=ROUNDS):
    """The record of what happened, replayed in either engine, gives the same model, the same
    ledger, and the same state at the clients."""
    for engine, tolerance in (("reference", 0.0), ("stacked", 1e-12)):
        again = Run(
            algorithm,
            task(),
            placement(),
            engine=engine,
            precision="float64",
            seed=SEED,
            schedule=apart.record,
        ).fit(rounds)
        for field in algorithm.State._fields:
            expected = again.fed.read(getattr(again.state, field))
            values = of(apart, field)
            expected = {party: expected[party] for party in values}
            assert tree.largest_difference(values, expected) <= tolerance
        assert list(apart.ledger) == list(again.ledger)


@pytest.mark.parametrize("algorithm", [ALGORITHM, PERSONAL, COUNTING], ids=name)
@pytest.mark.parametrize("kind", ["embedding", "update"])
def test_a_late_client_is_absent_and_comes_back(kind, algorithm):
    """Its message arrives after the hub has continued: it is dropped, and the client is told."""
    goes_on = {"embedding": ("rest", 1), "update": ("model", 2)}[kind]
    transport = HoldingBack(parties(), is_(kind, 1, LATE), is_(*goes_on, "ash"))
    apart = live(algorithm, transport)
    assert apart.record.dropped == {Moment(1, kind): {"ash": (LATE.name,)}}
    assert_replays(apart, algorithm)


def test_late_in_the_last_round_does_not_wait_for_ever():
    last = ROUNDS - 1
    transport = HoldingBack(parties(), is_("embedding", last, LATE))
    apart = live(PERSONAL, transport)
    assert apart.record.dropped == {Moment(last, "embedding"): {"ash": (LATE.name,)}}
    assert_replays(apart, PERSONAL)


def test_kept_state_needs_the_hubs_acceptance():
    """Accepted in gather, late in the mean: the new state that it computed must not count."""
    transport = HoldingBack(
        parties(), is_("update", ROUNDS - 1, LATE), lambda m: m.kind == "end" and m.to == LATE
    )
    apart = live(PERSONAL, transport)
    assert apart.record.dropped == {Moment(ROUNDS - 1, "update"): {"ash": (LATE.name,)}}
    assert_replays(apart, PERSONAL)


def test_death_between_gather_and_mean():
    transport = Deadly(parties(), is_("update", 1, LATE))
    apart = live(ALGORITHM, transport)
    assert apart.record.dropped[Moment(1, "update")] == {"ash": (LATE.name,)}
    assert apart.record.dropped[Moment(2)] == {"ash": (LATE.name,)}  # gone for good
    assert_replays(apart, ALGORITHM)


def test_nobody_left_in_a_silo():
    """No row is complete any more: the other silos stop learning, without a failure."""
    dead = {Client("birch", "0"), Client("birch", "1")}
    transport = Deadly(
        parties(), lambda m: m.source in dead and m.kind == "embedding" and m.key.round == 2
    )
    apart = live(ALGORITHM, transport)
    assert apart.record.dropped[Moment(2, "embedding")] == {"birch": ("0", "1")}
    assert_replays(apart, ALGORITHM)
    stopped = Run(
        ALGORITHM, task(), placement(), precision="float64", seed=SEED, engine="reference"
    ).fit(2)
    assert tree.largest_difference(of(apart, "theta"), stopped.fed.read(stopped.state.theta)) == 0


def test_everyone_is_waited_for_where_nobody_may_be_absent():
    transport = Deadly(parties(), is_("update", 1, LATE))
    with pytest.raises(LostError, match="update from client ash/1"):
        live(ALGORITHM, transport, Waits(patience=30.0))


def test_death_between_rounds_is_noticed_where_nobody_may_be_absent():
    transport = Deadly(parties(), is_("embedding", 1, LATE))
    with pytest.raises(LostError, match="ash/1"):
        live(ALGORITHM, transport, Waits(patience=30.0))


def test_a_client_that_is_left_out_for_long_does_not_lose_patience():
    """It waits without a message while its hub is alive: pulses keep it waiting."""
    away = Scripted({Moment(round): {"ash": ["1"]} for round in range(1, 11)})
    behind = threading.Event()

    def slowly(fed, done):
        if fed.hosted == {"cedar"} and done < 11:
            behind.wait(0.5)  # never set: rounds that last a while

    apart = live(ALGORITHM, MemoryTransport(parties()), Waits(patience=1.0), 12, away, slowly)
    assert apart.states[(LATE,)] is not None


def test_late_clients_in_a_chain_of_moves():
    """Private labels chain two upward waits before a hub hears from another: nobody is lost."""
    algorithm = TDCDPrivateLabels(local_steps=2, lr=0.2, batch=20)
    delayed_messages = [is_("embedding", 1, Client("cedar", "1")), is_("derivative", 1, LATE)]
    transport = HoldingBack(parties(), lambda m: any(late(m) for late in delayed_messages))
    apart = live(algorithm, transport, Waits(up=1.0, patience=1.0), 3)
    assert Client("cedar", "1").name in apart.record.dropped[Moment(1, "embedding")]["cedar"]
    assert_replays(apart, algorithm, 3)


def quorum(quorum, up=1.0, patience=20.0):
    return Waits(up=up, patience=patience, quorum=quorum)


def test_a_quorum_is_waited_for_beyond_the_deadline():
    """Late for its deadline, which does not count while too few have answered."""
    answers, clients = threading.Event(), len(placement().topology.clients["ash"])
    transport = HoldingBack(parties(), is_("embedding", 1, LATE), lambda m: answers.is_set())

    def then(fed, done):
        """The others have long answered; after the deadline, anything that is sent brings it."""
        if fed.hosted == {"cedar"} and done == 1:
            threading.Timer(2.5, lambda: (answers.set(), transport.release())).start()

    apart = live(ALGORITHM, transport, quorum(clients), on_round=then)
    assert apart.record.dropped == {}
    assert_replays(apart, ALGORITHM, ROUNDS)


def test_too_few_for_a_quorum_end_the_run():
    clients = len(placement().topology.clients["ash"])
    transport = Deadly(parties(), is_("embedding", 1, LATE))
    with pytest.raises(LostError, match=f"fewer than {clients} clients of hub ash, its quorum"):
        live(ALGORITHM, transport, quorum(clients, patience=2.0))


def test_fewer_than_all_are_a_quorum():
    transport = Deadly(parties(), is_("embedding", 1, LATE))
    apart = live(ALGORITHM, transport, quorum(1))
    assert apart.record.dropped[Moment(1, "embedding")] == {"ash": ("1",)}
    assert_replays(apart, ALGORITHM, ROUNDS)


def test_clients_who_hold_none_of_a_rounds_rows_are_in_no_quorum():
    """They are not even spoken to: a round goes on when those who were asked have answered."""
    algorithm = TDCD(local_steps=2, lr=0.2, batch=5, weighting="participants")
    apart = live(algorithm, MemoryTransport(parties()), quorum(4, up=3.0, patience=4.0))
    assert apart.record.dropped == {}
    assert_replays(apart, algorithm)


MINE = Key(3, 5)


@pytest.mark.parametrize(
    ("receipt", "counts"),
    [
        (None, False),
        (Key(3, 4), False),
        (Key(3, 5), True),
        (Key(3, 7), True),  # a later move of the round
        (Key(2, 9), False),
        (Key(4, 5), False),
    ],
)
def test_kept_state_counts_where_its_move_or_a_later_one_was_accepted(receipt, counts):
    pending = Pending("new", "old", MINE)
    pending.settle(receipt)
    assert (pending.settled, pending.value) == (True, "new" if counts else "old")


class Hasty(Personal):
    """Reads kept state before its hub has confirmed it."""

    def round(self, fed, state, draw):
        new = super().round(fed, state, draw)
        return new._replace(offset=fed.at_clients(twice, new.offset))


def twice(offset):
    return 2 * offset


def test_kept_state_cannot_be_looked_at_before_it_is_settled():
    with pytest.raises(PlacementError, match=r"uses the kept state of client .* before its hub"):
        live(Hasty(local_steps=2, lr=0.2, batch=20), MemoryTransport(parties()))


@pytest.mark.parametrize("hub", [None, "birch"], ids=["a client", "a hub with its clients"])
def test_nobody_runs_ahead_of_a_party_that_sends_nothing(hub):
    """What was sent is kept for two rounds: who is killed could not hear again what came before."""
    algorithm, rows = Central(local_steps=1, lr=0.2, batch=20), placement()
    hosted = [LATE] if hub is None else [hub, *rows.topology.of(hub)]
    shapes = Run(algorithm, task(), rows, precision="float64").shapes
    transport = MemoryTransport(rows.topology.parties)
    fed = PartyEngine(
        task(), shapes, rows.view(hosted), hosted=hosted, transport=transport, seed=SEED,
        schedule=Everyone(), waits=Waits(patience=0.05),
    )  # fmt: skip
    with pytest.raises(LostError, match=r"round 0: .* waited for pace from hub ash"):
        list(play(fed, algorithm, ROUNDS))


def test_a_late_client_of_a_hub_that_sends_nothing_comes_back():
    algorithm = Central(local_steps=1, lr=0.2, batch=20)
    transport = HoldingBack(parties(), is_("features", 1, LATE), is_("features", 2, LATE))
    apart = live(algorithm, transport)
    assert apart.record.dropped[Moment(1, "features")] == {"ash": ("1",)}
    assert_replays(apart, algorithm)


def test_an_error_outside_the_round_is_told_too():
    def breaks(fed, done):
        if fed.hosted == {LATE}:
            raise ValueError("a full disk, say")

    with pytest.raises(ValueError, match="a full disk, say"):
        live(ALGORITHM, MemoryTransport(parties()), on_round=breaks)


def test_a_dead_hub_ends_the_run_for_everyone():
    transport = Deadly(parties(), is_("hub-embedding", 1, "birch"))
    with pytest.raises(LostError, match="hub birch"):
        live(ALGORITHM, transport)


def test_a_hub_that_skips_a_message_is_told_so():
    transport = HoldingBack(parties(), is_("hub-embedding", 1, "birch"))
    with pytest.raises(ProtocolError, match="hub birch continued without sending hub-embedding"):
        live(ALGORITHM, transport)


def test_a_silent_hub_is_named_by_its_neighbour():
    transport = Frozen(parties(), is_("hub-embedding", 1, "birch"))
    with pytest.raises(LostError, match="from hub birch, of which nothing was heard for 4 s"):
        live(ALGORITHM, transport, Waits(up=2.0, patience=2.0))


def test_an_abort_reaches_everyone_with_its_cause():
    """A local function fails at one client: all others stop, naming it."""
    seen = {}
    rows, learn = placement(), task()
    shapes = Run(ALGORITHM, learn, rows, precision="float64").shapes

    def run_party(fed):
        (party,) = fed.hosted
        if party == LATE:
            fed.part.values["ash"].block.module.forward = lambda x: x.no_such_thing()
        try:
            list(play(fed, ALGORITHM, ROUNDS))
        except FedLoomError as problem:
            seen[party] = problem
            raise

    with pytest.raises(FedLoomError, match="no_such_thing"):
        run_in_threads(run_party, learn, shapes, rows, seed=SEED, schedule=Everyone())
    assert set(seen) == set(parties())
    others = [problem for party, problem in seen.items() if party != LATE]
    assert all(isinstance(problem, AbortedError) for problem in others)
    assert len({str(problem) for problem in others}) == 1
    assert "client ash/1" in str(others[0])
    assert "round 0" in str(others[0])
