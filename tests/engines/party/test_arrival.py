"""Visits in the order of arrival: live, announced to all, and replayed."""

from collections import Counter

import pytest

from fedloom import Run
from fedloom.algorithms import VAFL, SplitNNAsync
from fedloom.core import tree
from fedloom.core.errors import LostError
from fedloom.engines.party.arrivals import Arrivals
from fedloom.engines.party.in_threads import run_in_threads
from fedloom.engines.party.timeouts import Waits
from fedloom.fabric.kinds import Key, Message
from fedloom.fabric.schedule import Everyone, Recorded, Resumed, Turn
from fedloom.runs.loop import play
from fedloom.testing import placement, task
from fedloom.transports.memory import MemoryTransport
from tests.engines.party.test_waiting import Deadly, Died, HoldingBack, is_

ROUNDS, SEED = 3, 3
WAITS = Waits(patience=30.0)
SIX = VAFL(lr=0.3, batch=9, visits=6)


def rows_of(algorithm):
    return placement().with_server() if algorithm.master == "server" else placement()


def live(algorithm, transport=None, waits=WAITS, schedule=None):
    """Every party in a thread of its own."""
    rows, learn = rows_of(algorithm), task()
    shapes = Run(algorithm, learn, rows, precision="float64").shapes

    def run_party(fed):
        state = None
        try:
            for _, state in play(fed, algorithm, ROUNDS):  # noqa: B007
                pass
        except Died:
            for party in fed.hosted:
                transport.close(party)
        return state

    given = {"seed": SEED, "schedule": schedule or Everyone(), "waits": waits}
    link = transport or MemoryTransport(rows.topology.parties)
    return run_in_threads(run_party, learn, shapes, rows, **given, transport=link, by_arrival=True)


def assert_replays(algorithm, apart):
    """The record alone gives the same model, to the bit, and the same messages."""
    rows = rows_of(algorithm)
    given = {"engine": "reference", "precision": "float64", "seed": SEED}
    run = Run(algorithm, task(), rows, schedule=apart.record, **given).fit(ROUNDS)
    replayed = {}
    for group, state in apart.states.items():
        for name, value in state._asdict().items():
            replayed.setdefault(name, {}).update(apart.engines[group].read(value))
    expected = {name: run.fed.read(value) for name, value in run.state._asdict().items()}
    assert tree.largest_difference(replayed, expected) == 0
    assert list(apart.ledger) == list(run.ledger)


@pytest.mark.parametrize(
    "algorithm",
    [
        SIX,
        VAFL(lr=0.3, batch=9, visits=6, group=2, max_delay=1),
        VAFL(lr=0.3, batch=9, master="server", labels_at="birch"),
        SplitNNAsync(lr=0.3, batch=9, visits=5),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_the_order_that_was_found_replays(algorithm):
    apart = live(algorithm)
    assert set(apart.record.visits) == set(range(ROUNDS))
    assert_replays(algorithm, apart)


def test_a_slow_silo_is_overtaken():
    """The notice of birch after its first visit does not arrive in this round: nobody waits for it,
    and the others visit more often."""
    notices = Counter()

    def late(message):
        free = message.kind == "free" and message.source == "birch"
        return free and notices[message.key.round] > 0

    def over(message):
        if message.kind == "told" and message.to == "birch":
            notices[message.key.round] += 1
        return notices[message.key.round] == 6

    apart = live(SIX, HoldingBack(placement().topology.parties, late, over))
    for turns in apart.record.visits.values():
        visits = Counter(silo for turn in turns for silo in turn.visitors)
        assert visits["birch"] == 1
        assert visits.total() == 6
    assert_replays(SIX, apart)


def test_what_was_decided_before_a_crash_is_not_decided_anew():
    """The master repeats the turns that it had announced, and decides the others."""
    before = Recorded({}, 1, {0: [Turn(("cedar",)), Turn(("cedar",)), Turn(("ash",))]})
    apart = live(SIX, schedule=Resumed(Everyone(), before))
    assert [turn.visitors for turn in apart.record.visits[0][:3]] == [
        ("cedar",),
        ("cedar",),
        ("ash",),
    ]
    assert_replays(SIX, apart)


def test_a_round_begins_when_all_silos_are_free():
    """Later in a round, the first arrivals are enough; waiting silos have the next turn."""
    hubs = ("ash", "birch", "cedar")
    link = MemoryTransport(hubs)
    arrivals, key = Arrivals(link, ["ash"], "ash"), Key(0, 1)
    arrivals.free(hubs, key)

    def comes(hub, key):
        link.send(Message(key, "free", hub, "ash", None))

    comes("cedar", key)
    with pytest.raises(LostError, match="a visit of hub birch"):
        arrivals.next(1, 0.01, everyone=True, before=None)
    comes("birch", key)
    assert arrivals.next(1, 5.0, everyone=True, before=None) == ("ash",)
    assert arrivals.next(1, 5.0, everyone=False, before=None) == ("cedar",)
    arrivals.free(("cedar",), Key(0, 2))
    comes("cedar", Key(0, 2))
    assert arrivals.next(1, 5.0, everyone=False, before=None) == (
        "birch",
    )  # it has been waiting for longer
    assert arrivals.next(1, 5.0, everyone=False, before=None) == ("cedar",)


def test_a_silo_that_dies_is_named():
    transport = Deadly(placement().topology.parties, is_("free", 1, "birch"))
    with pytest.raises(LostError, match="hub birch"):
        live(SIX, transport, Waits(patience=1.0))
