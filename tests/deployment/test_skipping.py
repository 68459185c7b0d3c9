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


def started(one, party, crash):
    """Everyone, one of whom is to die at a point."""
    run = one.prepare()
    for other in run.placement.topology.parties:
        one.start(other, crash=crash if other == party else None)


def died(one, party):
    code = one.processes[party].wait(SLOW)
    assert code == -9, f"{party}: {code}, {one.last_words(party)}"


def ended(one, back):
    """What was recorded, once the others have gone on without a client, and it is back."""
    reach(one, "a", 15)
    one.start(back, "--resume")
    one.wait(SLOW)
    return assert_replays(one)


@pytest.mark.slow
def test_a_hub_that_dies_twice_in_one_round(rehearsal):  # noqa: F811
    """The second time, it is not yet where it was; and a client whose rows it has told others of
    is gone."""
    one = rehearsal(PRIVATE, **SKIP)
    started(one, "b", "before gradient:35")  # of the ninth round, the second step
    died(one, "b")
    one.start("b", "--resume", crash="after hub-embedding:1")
    died(one, "b")
    kill(one, THEIR)
    one.start("b", "--resume")
    record = ended(one, THEIR)
    assert record.dropped[Moment(8, "update")] == {"b": ("1",)}
    assert Moment(8, "embedding", 1) not in record.dropped


@pytest.mark.slow
def test_a_hub_that_has_told_its_own_clients_only(rehearsal):  # noqa: F811
    """Of a mean: a client has answered what it was told, so it cannot be told another one."""
    one = rehearsal(IN_TURN, **SKIP)
    started(one, "a", "closed embedding:18")  # of the ninth round, those of the mean
    died(one, "a")
    kill(one, ONE)
    one.start("a", "--resume")
    record = ended(one, ONE)
    assert record.dropped[Moment(8, "embedding", 1)] == {"a": ("1",)}
    assert Moment(8, "update") not in record.dropped


@pytest.mark.slow
def test_a_visitor_dies_where_the_order_was_given(rehearsal):  # noqa: F811
    one = rehearsal(VISITS, **SKIP)
    started(one, "b", "before own-slope:19")  # the master has answered its tenth visit
    died(one, "b")
    kill(one, THEIR)
    one.start("b", "--resume")
    record = ended(one, THEIR)
    (first, *_) = sorted(moment for moment, who in record.dropped.items() if "b" in who)
    assert first.kind == "update"  # its embeddings had been told of


@pytest.mark.slow
def test_a_hub_that_has_lost_what_it_wrote_of_the_round(rehearsal):  # noqa: F811
    """It would count otherwise than it told: that is noticed, and all make the round again."""
    one = rehearsal(PRIVATE, **SKIP)
    started(one, "b", "before gradient:35")
    died(one, "b")
    kill(one, THEIR)
    written = list((one.of("b") / "out").glob("round-*.msgpack"))
    assert len(written) == 2  # of two steps
    for path in written:
        path.unlink()
    one.start("b", "--resume")
    record = ended(one, THEIR)
    assert [round for round, _ in record.back] == [8]
    assert "hub b would go on from something else than it told" in (one.of("b") / "log").read_text()
