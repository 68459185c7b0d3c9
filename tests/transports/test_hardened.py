"""What a party refuses though it is well-formed, and how parties settle what happened."""

import gc
import threading
import time
import tracemalloc

import pytest
import torch

from fedloom.core.errors import AbortedError, FrameError, NotFiniteError
from fedloom.core.topology import Client, Topology
from fedloom.deployment.keys.allow_list import read_list, write_list
from fedloom.fabric.kinds import Key, Message
from fedloom.fabric.permits import Bounds, Permits, route_of
from fedloom.transports import mailbox, wire
from fedloom.transports.grpc.transport import GrpcTransport
from fedloom.transports.links.link import Link
from fedloom.transports.links.session import AHEAD
from fedloom.transports.mailbox import Mailbox
from tests.helpers.federations import Keys, dialling, opened
from tests.transports.test_disturbed import joined, refusals, until

RUN = "c" * 64
ONE = Client("ash", "1")
ZERO = Client("ash", "0")
SMALL = Topology({"ash": ("0", "1"), "birch": ("0",)})


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path, SMALL)


@pytest.fixture
def federation(keys):
    """Connected parties, and what they noted."""
    notes = []
    transports = opened(keys, notes=notes)
    joined(transports, notes)
    yield transports, notes
    closing = [threading.Thread(target=transport.close) for transport in transports.values()]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(30)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 2e6, -2e6])
def test_numbers_out_of_range_neither_leave_nor_come_in(bad):
    payload = {"w": torch.tensor([1.0, bad, 0.0]), "n": torch.tensor([3])}
    message = Message(Key(0, 1), "update", ONE, "ash", payload)
    out = Link(ONE, "ash", RUN, Mailbox(ONE), bounds=Bounds(1e6))
    with pytest.raises(NotFiniteError, match="in update from client ash/1 to hub ash; at most"):
        out.post(message, wire.body_of(payload, "update"))
    assert out.sent_since(-1) == []
    mailbox = Mailbox("ash")
    into = Link("ash", ONE, RUN, mailbox, bounds=Bounds(1e6))
    with pytest.raises(FrameError, match="in update from client ash/1"):
        into.receive(wire.encode(message, RUN))
    assert mailbox.waiting(ONE) == 0


def refused_frame(number, kind):
    """With many tensors, whose names, shapes and text nobody has seen before."""
    payload = {f"{number} {at}": torch.zeros(1 + (at == number)) for at in range(200)}
    return wire.encode(Message(Key(0, 1), kind, ONE, "ash", payload), RUN)


@pytest.mark.parametrize("kind", ["update", "kind {}"], ids=["of another form", "not agreed on"])
def test_refused_frames_leave_nothing_behind(kind):
    """Of what a member sends, and a hub does not take, at most 1 MiB is kept in all."""
    permits = Permits({route_of("update", ONE, "ash"): frozenset()})
    into = Link("ash", ONE, RUN, Mailbox("ash"), permits=permits)
    frames = [refused_frame(number, kind.format(number)) for number in range(300)]

    def receive(some):
        for frame in some:
            with pytest.raises(FrameError):
                into.receive(frame)
        gc.collect()

    receive(frames[:4])
    tracemalloc.start()
    try:
        receive(frames[4:])
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert memory < 1 << 20


def test_a_norm_out_of_range_neither_leaves_nor_comes_in():
    """Of all numbers of a message together, though each of them is small; of that kind only."""
    bounds = Bounds(1e6, {"update": 10.0})
    payload = {"w": torch.full((3, 3), 3.0), "b": torch.full((4,), 2.5), "n": torch.tensor([99])}
    message = Message(Key(0, 1), "update", ONE, "ash", payload)
    out, mailbox = Link(ONE, "ash", RUN, Mailbox(ONE), bounds=bounds), Mailbox("ash")
    into = Link("ash", ONE, RUN, mailbox, bounds=bounds)
    with pytest.raises(NotFiniteError, match=r"a norm of 10\.2956 in update from client ash/1 to"):
        out.post(message, wire.body_of(payload, "update"))
    with pytest.raises(FrameError, match="in update from client ash/1 to hub ash; at most 10"):
        into.receive(wire.encode(message, RUN))
    assert (out.sent_since(-1), mailbox.waiting(ONE)) == ([], 0)
    smaller = {"w": payload["w"], "b": torch.full((4,), 2.0)}
    into.receive(wire.encode(message._replace(payload=smaller), RUN))
    into.receive(wire.encode(message._replace(key=Key(0, 2), kind="embedding"), RUN))
    assert mailbox.waiting(ONE) == 2


def test_a_client_that_sends_nonsense_is_cut_off_and_named(federation):
    """It is refused for good; its hub goes on with the others."""
    transports, notes = federation
    transports[ONE].links["ash"]._check = lambda message: None  # an honest one would not send it
    transports[ONE].send(Message(Key(0, 1), "update", ONE, "ash", torch.tensor([float("nan")])))
    until(lambda: any("NaN or infinity in update" in why for why in refusals(notes, "ash")))
    assert transports["ash"].links[ONE].counts["refused"] == 1
    assert transports["ash"].mailbox("ash").waiting(ONE) == 0
    transports[ZERO].send(Message(Key(0, 1), "update", ZERO, "ash", torch.ones(1)))
    assert transports["ash"].mailbox("ash").take(ZERO, Key(0, 1), "update", 20) is not None


@pytest.mark.parametrize("who", ["ash", "birch"])
def test_a_hub_that_is_revoked_is_cut_off_by_those_who_dial_it(keys, federation, who):
    """Without a restart; and it is believed again when it is back on the list."""
    transports, notes = federation
    dialler = {"ash": ONE, "birch": Client("birch", "0")}[who]
    allowed = read_list(keys.allow)
    write_list(keys.allow, {party: prints for party, prints in allowed.items() if party != who})
    until(lambda: any("not on the allow-list" in why for why in refusals(notes, dialler)))
    until(lambda: who not in transports[dialler]._state.sessions)
    write_list(keys.allow, allowed)
    until(lambda: who in transports[dialler]._state.sessions)


def test_a_hub_must_have_the_key_of_the_certificate_that_it_shows(keys):
    """A stolen certificate whose key is revoked cannot pass off the new one as its own."""
    old = keys.made["ash"]
    new = keys.issue("ash")
    allowed = read_list(keys.allow)
    keys.made["ash"] = new
    write_list(keys.allow, {**allowed, "ash": [keys.certificate("ash").fingerprint]})

    class Thief(type(old)):
        """Talks TLS with the old key, and shows the new certificate in its greeting."""

    thief = GrpcTransport("ash", "a" * 64, old, door=keys.door("ash"))
    thief.open()
    thief._peering.identity = Thief(new.certificate, old.key)
    reasons = []
    client = dialling(keys, ONE, thief.port, notes=reasons)
    try:
        until(lambda: any("did not prove" in why for why in refusals(reasons, ONE)))
        assert not client.links["ash"].boot
    finally:
        for transport in (client, thief):
            transport.close()


def test_of_two_causes_all_parties_settle_on_one(federation):
    transports, _ = federation
    causes = {"ash": "hub ash: client ash/1 is gone", "birch": "hub birch: client birch/0 is gone"}
    both = [threading.Thread(target=transports[hub].abort, args=(causes[hub],)) for hub in causes]
    for thread in both:
        thread.start()
    until(lambda: {transport.cause for transport in transports.values()} == {causes["ash"]})
    for me, transport in transports.items():
        with pytest.raises(AbortedError):
            transport.mailbox(me).check()


def test_a_member_that_runs_ahead_is_not_read_on(federation):
    """What nobody takes does not fill the memory; taken, the rest follows."""
    transports, _ = federation
    box = transports["ash"].mailbox("ash")
    for move in range(1, 4 * AHEAD):
        transports[ONE].send(Message(Key(0, move), "update", ONE, "ash", torch.ones(1)))
    until(lambda: box.waiting(ONE) >= AHEAD)
    time.sleep(0.3)  # it would have come by now
    assert box.waiting(ONE) <= AHEAD + 1
    for move in range(1, 4 * AHEAD):
        assert box.take(ONE, Key(0, move), "update", 20) is not None


def test_time_in_which_a_process_stood_still_is_nobodys_silence(monkeypatch):
    """Stopped and woken up: the clock has jumped, the deadline has not passed."""
    now = [0.0]
    box = Mailbox("ash")

    class Clock:
        @staticmethod
        def monotonic():
            return now[0]

    def asleep(seconds):
        now[0] += 100.0 if now[0] < 50 else seconds  # the first time, it is stopped
        if now[0] > 101:
            box._queues[ONE].append(Message(Key(0, 1), "update", ONE, "ash", None))

    monkeypatch.setattr(mailbox, "time", Clock)
    monkeypatch.setattr(box._changed, "wait", asleep)
    assert box.take(ONE, Key(0, 1), "update", 10.0) is not None


def test_a_refusal_that_repeats_does_not_fill_the_log(federation):
    transports, notes = federation
    state = transports["ash"]._state
    before = len(notes)
    for _ in range(100):
        state.refused("the same again", ONE)
    refusals = [facts for _, event, facts in notes[before:] if event == "refused"]
    assert [facts.get("times", 1) for facts in refusals] == [1, 2, 4, 8, 16, 32, 64]
    assert state.refusals >= 100
