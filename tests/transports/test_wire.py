"""Frames: what comes out is what went in, and nothing else is let in."""

import contextlib
import random

import msgspec
import pytest
import torch
from safetensors.torch import load, save

from fedloom.core import tree
from fedloom.core.errors import FrameError
from fedloom.core.placed import Batch, Rows
from fedloom.core.registry import algorithms
from fedloom.core.topology import Client
from fedloom.engines.party.reference import reference
from fedloom.fabric.kinds import AT_THE_END, Key, Message
from fedloom.fabric.schedule import Everyone
from fedloom.models.task import Theta
from fedloom.runs.loop import play
from fedloom.runs.run import Run
from fedloom.testing.samples import examples_of, sample_of
from fedloom.transports import wire
from fedloom.transports.memory import MemoryTransport

RUN = "f" * 64
ONE = Client("bank", "north")


def message(payload, source=ONE, to="bank", receipt=None):
    return Message(Key(3, 2), "update", source, to, payload, receipt)


def carried(payload):
    return wire.decode(wire.encode(message(payload), RUN), RUN, ONE, "bank").payload


PAYLOADS = {
    "nothing": None,
    "rows": Rows(torch.randn(5, 3), torch.tensor([True, False, True, True, False])),
    "theta": Theta({"a.weight": torch.randn(2, 3, dtype=torch.float64)}, {}),
    "weighted": (Theta({"w": torch.zeros(0, 4)}, {"b": torch.ones(())}), torch.tensor(2.5)),
    "by silo": {"bank": torch.arange(4), "insurer": (torch.ones(1, dtype=torch.bfloat16), None)},
    "words": ("bank", 3, 0.1, True),
    "not contiguous": torch.randn(4, 6).T[1:],
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_arrives_as_it_was_sent(name):
    sent, came = PAYLOADS[name], carried(PAYLOADS[name])
    assert tree.signature(came) == tree.signature(sent)
    assert all(
        torch.equal(a, b) for a, b in zip(tree.tensors(sent), tree.tensors(came), strict=True)
    )
    assert [a for a in tree.leaves(came) if not isinstance(a, torch.Tensor)] == [
        a for a in tree.leaves(sent) if not isinstance(a, torch.Tensor)
    ]


def test_receipts_and_the_last_key_survive():
    sent = Message(AT_THE_END, "end", "bank", ONE, None, Key(7, 4))
    assert wire.decode(wire.encode(sent, RUN), RUN, "bank", ONE) == sent


def test_tensors_that_share_memory_are_both_sent():
    a = torch.randn(3)
    first, second = carried((a, a[:2]))
    assert torch.equal(first, a)
    assert torch.equal(second, a[:2])


@pytest.mark.parametrize(
    "payload", [object(), {3: torch.ones(1)}, [torch.ones(1)], Batch(torch.ones(1), None, None)]
)
def test_what_is_not_marked_cannot_leave(payload):
    with pytest.raises(FrameError, match="cannot leave a party"):
        wire.encode(message(payload), RUN)


@pytest.mark.parametrize(
    ("run", "source", "to", "why"),
    [
        ("0" * 64, ONE, "bank", "another run"),
        (RUN, Client("bank", "south"), "bank", "it says to go from bank/north"),
        (RUN, ONE, "insurer", "it says to go from bank/north to bank"),
    ],
)
def test_a_frame_is_of_its_run_and_its_link(run, source, to, why):
    with pytest.raises(FrameError, match=why):
        wire.decode(wire.encode(message(torch.ones(2)), RUN), run, source, to)


def test_a_frame_that_is_too_long_is_refused_unread():
    frame = wire.encode(message(torch.zeros(1000)), RUN)
    with pytest.raises(FrameError, match="at most 4000 are taken"):
        wire.decode(frame, RUN, ONE, "bank", cap=4000)


NO_TENSORS = save({})


def sealed(envelope, body=NO_TENSORS):
    """A frame with a right checksum, whatever is in it: a peer can make these."""
    digest = wire._digest(envelope, wire.hashlib.sha256(body).digest())
    return wire.HEAD.pack(wire.MAGIC, len(envelope), digest) + envelope + body


def described(payload):
    header = wire.Envelope(RUN, (3, 2), "update", tuple(ONE), ("bank",), None, payload)
    return msgspec.msgpack.encode(header)


def deep(levels):
    node = wire.ConstantNode(None)
    for _ in range(levels):
        node = wire.TupleNode((node,))
    return node


def very_deep():
    """Deeper than anything that could be encoded here."""
    inner = msgspec.msgpack.encode(wire.ConstantNode(None))
    level = msgspec.msgpack.encode(deep(1)).removesuffix(inner)
    return described(wire.ConstantNode(None)).replace(inner, level * 20_000 + inner)


@pytest.mark.parametrize(
    ("envelope", "why"),
    [
        (described(wire.TensorNode("float32", (2,))), "not as described"),
        (described(wire.TensorNode("float99", (2,))), "is not a tensor"),
        (described(wire.TensorNode("float32", (-2,))), "is not a tensor"),
        (described(wire.TensorNode("float32", (0, 1 << 60))), "is not a tensor"),
        (described(wire.TensorNode("float32", (1,) * 100)), "is not a tensor"),
        (described(wire.RecordNode("Theta", ())), "no record 'Theta' of 0 fields"),
        (described(wire.RecordNode("Batch", (wire.ConstantNode(None),))), "no record 'Batch'"),
        (described(wire.RecordNode("system", (wire.ConstantNode("ls"),))), "no record 'system'"),
        (described(deep(40)), "more than 16 levels"),
        (very_deep(), "cannot be read .maximum recursion"),
        (b"\x80", "cannot be read"),
        (b"cposix\nsystem\n(S'ls'\ntR.", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_well_sealed_nonsense_is_refused(envelope, why):
    with pytest.raises(FrameError, match=why):
        wire.decode(sealed(envelope), RUN, ONE, "bank")


def test_tensors_that_nobody_described_are_refused():
    body = save({"0": torch.ones(2), "1": torch.ones(2)})
    frame = sealed(described(wire.TensorNode("float32", (2,))), body)
    with pytest.raises(FrameError, match="not as described"):
        wire.decode(frame, RUN, ONE, "bank")


def test_the_tensors_are_a_file_of_safetensors():
    """That anybody can read; and its bytes follow from the envelope, so there is one way only."""
    payload = {"a": torch.randn(3, 2), "b": (torch.tensor([True, False]), torch.zeros(0, 5))}
    body = wire.body_of(payload, "update")
    tensors = load(body.data)
    assert [tensors[name].tolist() for name in sorted(tensors)] == [
        a.tolist() for a in tree.tensors(payload)
    ]
    envelope = described(body.node)
    spaced = body.data.replace(b",", b", ", 1)
    for changed in (body.data + b"x", body.data[:-1], spaced, b""):
        with pytest.raises(FrameError, match="not as described"):
            wire.decode(sealed(envelope, changed), RUN, ONE, "bank")


def test_what_is_neither_true_nor_false():
    body = wire.body_of(torch.tensor([True, True]), "update")
    with pytest.raises(FrameError, match="neither true nor false"):
        wire.decode(sealed(described(body.node), body.data[:-1] + b"\x02"), RUN, ONE, "bank")


def mutations(frame, count, seed):
    """Bits flipped, bytes cut, repeated, moved or inserted."""
    draw = random.Random(seed)
    for _ in range(count):
        at, until = sorted(draw.randrange(len(frame) + 1) for _ in range(2))
        piece = frame[at:until]
        match draw.randrange(6):
            case 0:
                changed = bytearray(frame)
                changed[draw.randrange(len(frame))] ^= 1 << draw.randrange(8)
            case 1:
                changed = frame[:at]
            case 2:
                changed = frame[:at] + frame[until:]
            case 3:
                changed = frame[:until] + piece + frame[until:]
            case 4:
                changed = frame[:at] + draw.randbytes(draw.randrange(1, 9)) + frame[until:]
            case _:
                changed = piece + frame[:at] + frame[until:]
        if bytes(changed) != frame:
            yield bytes(changed)


def refused(frame, source, to, count, seed):
    """How many changed frames were tried and refused; also with the checksum put right, when
    nothing may crash."""
    tried = 0
    for changed in mutations(frame, count, seed):
        with pytest.raises(FrameError):
            wire.decode(changed, RUN, source, to)
        tried += 1
        if len(changed) > wire.HEAD.size:
            rest = changed[wire.HEAD.size :]
            length = min(wire.HEAD.unpack_from(changed)[1], len(rest))
            with contextlib.suppress(FrameError):
                wire.decode(sealed(rest[:length], rest[length:]), RUN, source, to)
    return tried


@pytest.mark.parametrize("seed", range(4))
def test_no_changed_frame_is_accepted(seed):
    """20,000 in all, and some more, as a few mutations change nothing."""
    payload = (Theta({"w": torch.randn(4, 3)}, {}), torch.ones(()))
    frame = wire.encode(message(payload, receipt=Key(2, 5)), RUN)
    assert refused(frame, ONE, "bank", 5500, seed) > 5000


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(algorithms))
def test_no_changed_frame_of_an_algorithm_is_accepted(name):
    """Of every kind of message that it sends: 260,000 in all."""
    task, rows = sample_of(algorithm := examples_of(algorithms[name])[0])
    run = Run(algorithm, task, rows, engine="reference", precision="float64", seed=3)
    fed = reference(run.task, run.shapes, rows, seed=3, schedule=Everyone(), device="cpu")
    sent = {}

    class Keeping(MemoryTransport):
        def send(self, message):
            sent[message.kind] = message
            super().send(message)

    fed._transport = Keeping(rows.topology.parties)
    assert len(list(play(fed, algorithm, 2))) == 2
    tries_each, tried = 22_000 // len(sent), 0
    for seed, sent_frame in enumerate(sent.values()):
        tried += refused(
            wire.encode(sent_frame, RUN), sent_frame.source, sent_frame.to, tries_each, seed
        )
    assert tried > 20_000


class Encoding(MemoryTransport):
    """Every message goes through bytes."""

    def send(self, message):
        frame = wire.encode(message, RUN)
        super().send(wire.decode(frame, RUN, message.source, message.to))


@pytest.mark.parametrize("name", sorted(algorithms))
def test_every_algorithm_fits_on_the_wire(name):
    """Its messages, as bytes and back, give the same run to the bit."""
    algorithm = examples_of(algorithms[name])[0]
    task, rows = sample_of(algorithm)
    plain = Run(algorithm, task, rows, engine="reference", precision="float64", seed=3).fit(2)
    fed = reference(plain.task, plain.shapes, rows, seed=3, schedule=Everyone(), device="cpu")
    fed._transport = Encoding(rows.topology.parties)
    *_, (_, state) = play(fed, algorithm, 2)
    actual, wanted = (
        {field: engine.read(value) for field, value in after._asdict().items()}
        for engine, after in ((fed, state), (plain.fed, plain.state))
    )
    assert tree.largest_difference(actual, wanted) == 0
    assert list(fed.ledger) == list(plain.ledger)
