"""A link over many connections: once, in order, again where it is asked for, and nothing else."""

import contextlib
import random

import pytest
import torch

from fedloom.core.errors import FrameError, OutOfStepError, RefusedError
from fedloom.core.topology import Client
from fedloom.fabric.kinds import AT_THE_END, Key, Message
from fedloom.transports import wire
from fedloom.transports.links.link import NOTHING, FramePart, Hello, Link, pack, unpack
from fedloom.transports.mailbox import Mailbox

RUN = "c" * 64
ONE = Client("bank", "north")


def message(round, move, value=0.0, source=ONE):
    payload = torch.full((3,), float(value))
    return Message(Key(round, move), "update", source, "bank", payload)


def frame(*given, **more):
    return wire.encode(message(*given, **more), RUN)


def post(link, message):
    link.post(message, wire.body_of(message.payload, message.kind))


def receiver(source=ONE):
    mailbox = Mailbox("bank")
    return Link("bank", source, RUN, mailbox, cap=4000), mailbox


def sender(*keys):
    link = Link(ONE, "bank", RUN, Mailbox(ONE))
    for key in keys:
        post(link, message(*key))
    return link


def heard(link, after):
    messages = []
    while (sent := link.after(after)) is not None:
        messages.append(tuple(sent.key))
        after = sent.key
    return messages


def hello(wants=(-2, 0), run=RUN):
    return Hello(run, "boot", wants, -1)


def test_a_message_comes_once():
    link, mailbox = receiver()
    for data in (frame(0, 1), frame(0, 1), frame(0, 2), frame(0, 1)):
        link.receive(data)
    assert link.counts["repeated"] == 2
    assert mailbox.take(ONE, Key(0, 1), "update", 1) is not None
    assert mailbox.take(ONE, Key(0, 2), "update", 1) is not None
    assert mailbox.take_each([ONE], Key(0, 2), 0) == {}


@pytest.mark.parametrize("first", ["it says it again", "the other comes"])
@pytest.mark.parametrize("same", [True, False])
def test_a_hub_that_is_started_again_says_what_it_said_before(first, same):
    """The other does not want to hear it again; but it has gone on from it."""
    said = [message(3, move, value=move, source="insurer") for move in (1, 2, 3)]
    other, _ = receiver("insurer")
    for data in said:
        other.receive(wire.encode(data, RUN))
    mailbox = Mailbox("insurer")
    again = Link("insurer", "bank", RUN, mailbox)
    again.resume(3, [])
    wants = other.hello("boot")
    if not same:
        said[1] = message(3, 2, value=5, source="insurer")
    steps = [lambda: again.greeted(wants), *(lambda data=data: post(again, data) for data in said)]
    if first == "it says it again":
        steps = [*steps[1:], steps[0]]

    def play():
        for step in steps:
            step()
            mailbox.check()

    if same:
        play()
        post(again, message(3, 4, source="insurer"))
        assert heard(again, again.acknowledged) == [(3, 4)]
    else:
        with pytest.raises(
            OutOfStepError, match="would go on from something else than it told hub"
        ):
            play()


def test_a_key_stands_for_one_message():
    """The first counts; a hub that says something else is not believed any more."""
    for source in (ONE, "insurer"):
        link, mailbox = receiver(source)
        link.receive(frame(0, 1, value=1, source=source))
        believed = contextlib.nullcontext()
        if source == "insurer":
            believed = pytest.raises(FrameError, match="twice, differently")
        with believed:
            link.receive(frame(0, 1, value=2, source=source))
        assert link.counts["conflicting"] == 1
        assert float(mailbox.take(source, Key(0, 1), "update", 1).payload[0]) == 1
        assert mailbox.take_each([source], Key(0, 1), 0) == {}


def test_what_is_long_past_is_stale():
    link, _ = receiver()
    for round in range(5):
        link.receive(frame(round, 1))
    link.receive(frame(0, 1, value=9))
    assert link.counts["stale"] == 1


def test_two_rounds_are_kept_and_what_was_not_heard():
    link = sender((0, 1), (1, 1), (2, 1), (3, 1))
    assert heard(link, NOTHING) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    link.acknowledged = Key(3, 1)
    post(link, message(4, 1))
    assert heard(link, NOTHING) == [(3, 1), (4, 1)]
    post(link, message(*AT_THE_END))
    assert link.round == 4


def test_it_goes_on_where_the_other_wants():
    link = sender((0, 1), (0, 2), (1, 1))
    assert heard(link, link.greeted(hello((0, 1)))) == [(0, 2), (1, 1)]
    assert heard(link, link.greeted(hello(None))) == [(1, 1)]  # without a memory: this round
    assert heard(link, link.greeted(hello())) == [(0, 1), (0, 2), (1, 1)]


def test_what_is_gone_is_said_so():
    link = sender((0, 1))
    link.acknowledged = Key(9, 9)
    for round in range(1, 5):
        post(link, message(round, 1))
    with pytest.raises(OutOfStepError, match="only has those after round 2"):
        link.greeted(hello((1, 1)))  # its hub goes back, and it with it


def test_another_run_is_refused():
    with pytest.raises(RefusedError, match="different runs"):
        sender().greeted(hello(run="d" * 64))


def test_two_messages_in_one_move_are_refused():
    link = sender((0, 2))
    for key in ((0, 2), (0, 1)):
        with pytest.raises(FrameError, match="second message"):
            post(link, message(*key))


def test_pieces_make_a_frame():
    link, _ = receiver()
    whole = frame(0, 1)
    assert link.part(FramePart(len(whole) - 10, memoryview(whole)[:10])) is None
    assert link.part(FramePart(0, memoryview(whole)[10:])) == whole


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([(1 << 40, b"x")], "announced"),  # before anything is allocated
        ([(4000, b"x")], "announced"),
        ([(-1, b"x")], "empty piece"),
        ([(5, b"")], "empty piece"),
        ([(5, b"x"), (9, b"x")], "do not fit"),
        ([(5, b"x"), (0, b"x" * 9)], "do not fit"),
    ],
)
def test_pieces_that_do_not_fit(parts, why):
    link, _ = receiver()
    *first, last = [FramePart(left, memoryview(data)) for left, data in parts]
    for part in first:
        assert link.part(part) is None
    with pytest.raises(FrameError, match=why):
        link.part(last)


def test_mutated_packets_are_refused_or_harmless():
    """What a connection reads is a packet of a known kind, or an error with a name; a frame that
    was changed inside a packet never reaches the mailbox."""
    draw = random.Random(5)
    real = pack(FramePart(0, memoryview(frame(0, 1))))
    for _ in range(3000):
        changed = bytearray(real)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        if bytes(changed) == real:
            continue
        link, mailbox = receiver()
        with contextlib.suppress(FrameError):
            packet = unpack(bytes(changed))
            if isinstance(packet, FramePart):
                whole = link.part(packet)
                if whole is not None and whole != frame(0, 1):
                    link.receive(whole)
                    pytest.fail("a changed frame was taken")
        assert mailbox.take_each([ONE], Key(0, 1), 0) == {}
