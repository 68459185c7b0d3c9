"""With `skip`, killed between what a hub has decided and what it remembers of it: the model is that
of the replay of what the hubs recorded."""

import pytest

from fedloom.core.topology import Client
from fedloom.fabric.schedule import Moment
from tests.deployment.test_processes import ONE, RUN, SLOW, assert_replays, kill, reach, rehearsal  # noqa: F401

BOTH = RUN.replace("[2, 1]", "2").replace("150", "40")
PRIVATE = BOTH.replace("[algorithm]\n", '[algorithm]\nname = "tdcd-private-labels"\n')
IN_TURN = BOTH.replace("[algorithm]\n", '[algorithm]\nname = "fedbcd"\norder = "sequential"\n')
VISITS = BOTH.replace("local_steps = 2\n", 'name = "vafl"\nvisits = 6\n')
THEIR = Client("b", "1")
SKIP = {"on_missing_client": "skip", "deadline": 20.0}


def started(federation, party, crash):
    """Everyone, one of whom is to die at a point."""
    run = federation.prepare()
    for other in run.placement.topology.parties:
        federation.start(other, crash=crash if other == party else None)


def died(federation, party):
    code = federation.processes[party].wait(SLOW)
    assert code == -9, f"{party}: {code}, {federation.last_words(party)}"


def ended(federation, back):
    """What was recorded, once the others have gone on without a client, and it is back."""
    reach(federation, "a", 15)
    federation.start(back, "--resume")
    federation.wait(SLOW)
    return assert_replays(federation)


@pytest.mark.slow
def test_a_hub_that_dies_twice_in_one_round(rehearsal):  # noqa: F811
    """The second time, it is not yet where it was; and a client whose rows it has told others of
    is gone."""
    federation = rehearsal(PRIVATE, **SKIP)
    started(federation, "b", "before gradient:35")  # of the ninth round, the second step
    died(federation, "b")
    federation.start("b", "--resume", crash="after hub-embedding:1")
    died(federation, "b")
    kill(federation, THEIR)
    federation.start("b", "--resume")
    record = ended(federation, THEIR)
    assert record.dropped[Moment(8, "update")] == {"b": ("1",)}
    assert Moment(8, "embedding", 1) not in record.dropped


@pytest.mark.slow
def test_a_hub_that_has_told_its_own_clients_only(rehearsal):  # noqa: F811
    """Of a mean: a client has answered what it was told, so it cannot be told another one."""
    federation = rehearsal(IN_TURN, **SKIP)
    started(federation, "a", "closed embedding:18")  # of the ninth round, those of the mean
    died(federation, "a")
    kill(federation, ONE)
    federation.start("a", "--resume")
    record = ended(federation, ONE)
    assert record.dropped[Moment(8, "embedding", 1)] == {"a": ("1",)}
    assert Moment(8, "update") not in record.dropped


@pytest.mark.slow
def test_a_visitor_dies_where_the_order_was_given(rehearsal):  # noqa: F811
    federation = rehearsal(VISITS, **SKIP)
    started(federation, "b", "before own-slope:19")  # the master has answered its tenth visit
    died(federation, "b")
    kill(federation, THEIR)
    federation.start("b", "--resume")
    record = ended(federation, THEIR)
    (first, *_) = sorted(moment for moment, who in record.dropped.items() if "b" in who)
    assert first.kind == "update"  # its embeddings had been told of


@pytest.mark.slow
def test_a_hub_that_has_lost_what_it_wrote_of_the_round(rehearsal):  # noqa: F811
    """It would count otherwise than it told: that is noticed, and all make the round again."""
    federation = rehearsal(PRIVATE, **SKIP)
    started(federation, "b", "before gradient:35")
    died(federation, "b")
    kill(federation, THEIR)
    written = list((federation.of("b") / "out").glob("round-*.msgpack"))
    assert len(written) == 2  # of two steps
    for path in written:
        path.unlink()
    federation.start("b", "--resume")
    record = ended(federation, THEIR)
    assert [round for round, _ in record.back] == [8]
    assert (
        "hub b would go on from something else than it told"
        in (federation.of("b") / "log").read_text()
    )
