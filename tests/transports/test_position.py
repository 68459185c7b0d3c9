"""Who can go on with whom: attempts, what was heard, and what hubs agree on."""

import pytest

from fedloom.core.errors import DataError, FrameError, NoCommonRoundError, OutOfStepError
from fedloom.core.topology import Client
from fedloom.deployment.agreement.align import packed
from fedloom.deployment.party.rollback import RollbackDecision, newest_in_common, said
from fedloom.fabric.attempts import START, AttemptHistory, ResumePoint
from fedloom.fabric.kinds import Key
from fedloom.fabric.schedule import Recorded, RollbackRecord
from fedloom.transports import wire
from fedloom.transports.links.link import NOTHING, Link
from fedloom.transports.links.position import NotYetError, Position
from fedloom.transports.mailbox import Mailbox
from tests.transports.test_link import ONE, RUN, frame, message, post

FIRST, OTHER = AttemptHistory(), AttemptHistory().back_to(14, "other", 1)


def place(line=FIRST, agreeing=False, **more):
    return Position(line, agreeing, **more)


def greet(position, me, other, peer, boot="boot"):
    """One hears the other's greeting."""
    hers = Link(peer, me, RUN, Mailbox(peer), position=other, joins=isinstance(peer, Client))
    link = Link(me, peer, RUN, Mailbox(me), position=position, joins=isinstance(me, Client))
    link.greeted(hers.hello(boot))


HUBS = [
    (place(), place(), None),
    (place(OTHER), place(OTHER), None),
    (place(), place(OTHER), OutOfStepError),
    (place(), place(agreeing=True), OutOfStepError),
    (place(OTHER), place(agreeing=True), OutOfStepError),
    (place(OTHER, late=frozenset(["boot"])), place(agreeing=True), NotYetError),
    (place(OTHER, late=frozenset(["boots"])), place(agreeing=True), OutOfStepError),
    (place(agreeing=True), place(), NotYetError),
    (place(agreeing=True), place(OTHER), NotYetError),
    (place(agreeing=True), place(OTHER, agreeing=True), None),
]
OWN_HUB = [  # as a client sees it
    (place(None), place(), None),
    (place(None), place(agreeing=True), None),
    (place(), place(), None),
    (place(), place(OTHER), OutOfStepError),
    (place(), place(agreeing=True), OutOfStepError),
]
OWN_CLIENT = [  # as a hub sees it: it is never for a client to say where a hub is
    (place(), place(None), None),
    (place(), place(), None),
    (place(OTHER), place(), NotYetError),
    (place(agreeing=True), place(), NotYetError),
    (place(agreeing=True), place(None), None),
]


@pytest.mark.parametrize(
    ("me", "peer", "cases"),
    [("bank", "insurer", HUBS), (ONE, "bank", OWN_HUB), ("bank", ONE, OWN_CLIENT)],
    ids=["hubs", "a client", "a hub and its client"],
)
def test_those_of_one_attempt_go_on_together(me, peer, cases):
    for position, other, problem in cases:
        if problem is None:
            greet(position, me, other, peer)
        else:
            with pytest.raises(problem):
                greet(position, me, other, peer)


def test_a_client_takes_the_attempt_of_its_hub_once_there_is_one():
    link = Link(ONE, "bank", RUN, Mailbox(ONE), position=place(None), joins=True)
    hub = Link("bank", ONE, RUN, Mailbox("bank"), position=place(agreeing=True))
    link.greeted(hub.hello("boot"))
    assert not link.boot  # nothing can be joined yet
    hub = Link("bank", ONE, RUN, Mailbox("bank"), position=place(OTHER, round=14))
    link.greeted(hub.hello("boot"))
    assert (link.boot, link.at, link.position.line) == ("boot", 14, OTHER)
    hub.receive(wire.encode(message(14, 1), link.tag))


def test_what_is_of_another_attempt_is_not_taken():
    link = Link("bank", ONE, RUN, Mailbox("bank"), position=place(OTHER))
    for tag in (RUN, f"{RUN}/another", f"{RUN}/-"):
        with pytest.raises(FrameError, match="of another run"):
            link.receive(wire.encode(message(14, 1), tag))
    nowhere = Link("bank", ONE, RUN, Mailbox("bank"), position=place(agreeing=True))
    with pytest.raises(FrameError, match="of another run"):
        nowhere.receive(frame(14, 1))


def hub_that_said(*keys):
    """And another that has heard it."""
    hub = Link("bank", "insurer", RUN, Mailbox("bank"))
    other = Link("insurer", "bank", RUN, Mailbox("insurer"))
    for key in keys:
        sent_message = message(*key, source="bank")._replace(to="insurer")
        post(hub, sent_message)
        other.receive(wire.encode(sent_message, RUN))
    return hub, other


@pytest.mark.parametrize("again", [True, False], ids=["the other started again", "as it was"])
def test_a_hub_that_does_not_remember_what_it_said_goes_back(again):
    _, other = hub_that_said((19, 1), (20, 1))
    if again:
        heard = other.received.latest
        other = Link("insurer", "bank", RUN, Mailbox("insurer"))
        other.resume(21, [], Key(19, 9), heard)
    restored = Link("bank", "insurer", RUN, Mailbox("bank"))
    restored.resume(19, [])
    with pytest.raises(OutOfStepError, match="does not remember: it is in round 19"):
        restored.greeted(other.hello("boot"))


def test_a_hub_that_skips_what_it_said_goes_back():
    _, other = hub_that_said((20, 1), (20, 3))
    restored = Link("bank", "insurer", RUN, Mailbox("bank"))
    restored.resume(20, [])
    restored.greeted(other.hello("boot"))
    post(restored, message(20, 1, source="bank")._replace(to="insurer"))
    with pytest.raises(OutOfStepError, match="something else than it told hub insurer"):
        post(restored, message(20, 4, source="bank")._replace(to="insurer"))


def test_what_nobody_keeps_any_more_is_not_sent_in_part():
    """A hub that was started again has what it sent in the last round."""
    hub, _ = hub_that_said((18, 1), (19, 1), (20, 1))
    again = Link("bank", "insurer", RUN, Mailbox("bank"))
    again.resume(21, hub.sent_since(20), hub.last_before(20))
    behind = Link("insurer", "bank", RUN, Mailbox("insurer"))
    behind.resume(20, [])
    assert again.greeted(behind.hello("boot")) == Key(20, 0)
    behind.resume(18, [])
    with pytest.raises(OutOfStepError, match="needs the messages after round 18"):
        again.greeted(behind.hello("boot"))


def test_a_digest_is_of_one_round():
    _, other = hub_that_said((19, 1), (20, 1))
    alone = hub_that_said((20, 1))[1]
    assert other.received.latest == alone.received.latest
    assert (alone.received.latest.round, len(alone.received.latest.digests)) == (20, 1)
    assert Link("insurer", "bank", RUN, Mailbox("insurer")).last_before(3) == NOTHING


def rounds(first, last, attempt=""):
    return tuple(ResumePoint(round, attempt) for round in range(last, first - 1, -1))


def test_the_newest_round_that_all_hold():
    assert newest_in_common({"a": rounds(11, 20), "b": rounds(8, 17)}) == ResumePoint(17, "")
    three = {"a": rounds(11, 20), "b": rounds(8, 17), "c": rounds(5, 14)}
    assert newest_in_common(three) == ResumePoint(14, "")
    assert newest_in_common({"a": (*rounds(1, 7), START), "b": (START,)}) == START
    split = (*rounds(15, 18, "other"), *rounds(9, 14))  # went back to 14 once
    assert newest_in_common({"a": split, "b": rounds(9, 18)}) == ResumePoint(14, "")


@pytest.mark.parametrize(
    ("states", "text"),
    [
        (
            {"a": rounds(11, 20), "b": (START,)},
            "Restore the folder of hub b from a backup of rounds 11 to 20, or empty the folders of "
            "all parties to begin anew: hub a has rounds 11 to 20, hub b has nothing but the start",
        ),
        (
            {"a": rounds(11, 20), "b": rounds(4, 9), "c": rounds(12, 21)},
            "Restore the folder of hub b from a backup of rounds 12 to 20, or empty",
        ),
        (
            {"a": rounds(15, 18, "other"), "b": rounds(15, 18)},
            "Restore the folder of hub b from a backup of rounds 15 to 18, or empty the folders of "
            "all parties to begin anew: hub a has rounds 15 to 18, hub b has rounds 15 to 18, made "
            "in different attempts",
        ),
        (
            {"a": rounds(20, 29), "b": rounds(4, 9), "c": (START,)},
            "Restore folders of one moment, or empty the folders of all parties to begin anew",
        ),
        ({"a": (), "b": rounds(3, 3)}, "Restore the folder of hub a from a backup of round 3, or"),
    ],
)
def test_what_to_restore_where_there_is_none(states, text):
    with pytest.raises(NoCommonRoundError) as problem:
        newest_in_common(states)
    assert text in str(problem.value)


def test_what_hubs_agree_on_travels_whole():
    back = (RollbackRecord(20, {"a": 21, "b": 20}), RollbackRecord(14, {"a": 20, "b": 14}))
    agreed = RollbackDecision(ResumePoint(14, "x"), OTHER, back, frozenset(["y", "z"]))
    assert RollbackDecision.unpacked(agreed.packed()) == agreed
    assert (
        said(agreed) == "going on from round 14, attempt 1: hub a had round 20, hub b had round 14"
    )
    for rubbish in ({}, [1], {"held": 3}, "word"):
        with pytest.raises(DataError, match="the decision on a rollback cannot be read"):
            RollbackDecision.unpacked({"told": packed(rubbish)})


def test_a_schedule_tells_of_going_back():
    record = Recorded(rounds=3, back=(RollbackRecord(2, {"a": 5, "b": 2}),))
    assert Recorded.from_json(record.to_json()) == record
    assert Recorded.merged([Recorded(rounds=3), record]).back == record.back
    assert "back" not in Recorded(rounds=3).to_json()
