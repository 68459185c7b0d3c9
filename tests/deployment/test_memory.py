"""What a hub goes on from: whole, of one moment, of one run; whatever killed it."""

import contextlib

import numpy as np
import pytest
import torch

from fedloom import TDCD, Run
from fedloom.core.errors import DamagedError, SettingError, WriteError
from fedloom.core.placed import AtHubs
from fedloom.core.topology import Client
from fedloom.deployment.party import past_rounds as module
from fedloom.deployment.party.past_rounds import PastRounds
from fedloom.deployment.party.resume import DurableTransport, Memory
from fedloom.engines.party.engine import PartyEngine
from fedloom.engines.party.timeouts import Waits
from fedloom.fabric.attempts import START, AttemptHistory, ResumePoint
from fedloom.fabric.kinds import Key, Message
from fedloom.fabric.schedule import Everyone, Moment, RollbackRecord
from fedloom.records.checkpoint import load_checkpoint
from fedloom.records.history import Checkpoints
from fedloom.testing import placement, task
from fedloom.transports.grpc.tls import Identity, PeerAddress
from fedloom.transports.grpc.transport import GrpcTransport

ALGORITHM = TDCD(local_steps=2, lr=0.2, batch=20)
RUN = "e" * 64


def hub(waits=None):
    """A hub that is connected to nobody."""
    rows, address = placement(), PeerAddress("127.0.0.1:1", b"", "nobody", None)
    own = Identity(b"", b"")
    transport = GrpcTransport(
        "ash", RUN, own, dials={"birch": address, Client("ash", "0"): address}
    )
    shapes = Run(ALGORITHM, task(), rows, precision="float64").shapes
    fed = PartyEngine(
        task(), shapes, rows.view(["ash"]), hosted=["ash"], transport=transport, seed=3,
        schedule=Everyone(), waits=waits,
    )  # fmt: skip
    transport.mailbox("ash").keep()
    return fed, transport


def saved(folder, done, value):
    """A hub that has done so many rounds; its weights are all of one value."""
    fed, transport = hub()
    for round in range(done):
        fed.begin(round)
        transport.send(Message(Key(round, 1), "hub-embedding", "ash", "birch", None))
        transport.send(Message(Key(round, 2), "rest", "ash", Client("ash", "0"), None))
        fed.end()
    fed.continue_from(done, {Client("ash", "0"): Key(done - 1, 4)})
    (theta,) = fed.read(ALGORITHM.start(fed).theta).values()
    block = {name: a.clone().fill_(value) for name, a in theta.block.items()}
    state = ALGORITHM.State(AtHubs({"ash": theta._replace(block=block)}, fed.silos))
    Memory(PastRounds(folder, RUN)).save(fed, state, done, transport, 1.0)


def restored(folder, run=RUN, waits=None):
    return remembered(folder, run, waits)[:-1]


def remembered(folder, run=RUN, waits=None):
    """Rounds done, a weight, the hub, its transport, and one that writes down what happens."""
    fed, transport = hub(waits)
    past = PastRounds(folder, run)
    done, memory = max(past.scan()).round, Memory(past)
    state = memory.restore(done, fed, ALGORITHM, transport)
    memory.again(fed, done, transport)
    durable = DurableTransport(transport, memory)
    durable.fed = fed
    (theta,) = fed.read(state.theta).values()
    return done, float(next(iter(theta.block.values())).flatten()[0]), fed, transport, durable


def test_a_hub_remembers_its_state_its_receipts_and_what_it_told_other_hubs(tmp_path):
    saved(tmp_path, 3, 0.5)
    done, value, fed, transport = restored(tmp_path)
    assert (done, value) == (3, 0.5)
    assert fed.receipts == {Client("ash", "0"): Key(2, 4)}
    sent = transport.links["birch"].sent_since(0)
    assert transport.links["birch"].last_before(2) == Key(1, 1)
    assert [frame.key for frame in sent] == [Key(2, 1)]  # of the round that is over
    assert transport.links[Client("ash", "0")].sent_since(0) == []
    for link in transport.links.values():
        assert link.got == Key(3, 0)
        assert link.round == 3


@pytest.mark.parametrize("where", [(PastRounds, "write"), (Checkpoints, "save")])
def test_killed_while_it_writes(tmp_path, monkeypatch, where):
    """Whichever of the two files it was at, the older pair counts."""
    saved(tmp_path, 2, 0.25)

    def full(*given, **more):
        raise WriteError("no space left")

    monkeypatch.setattr(*where, full)
    with pytest.raises(WriteError):
        saved(tmp_path, 3, 0.75)
    monkeypatch.undo()
    assert restored(tmp_path)[:2] == (2, 0.25)
    saved(tmp_path, 4, 1.0)
    assert restored(tmp_path)[:2] == (4, 1.0)
    assert sorted(path.name for path in tmp_path.glob("links-*")) == [
        "links-2.msgpack",
        "links-4.msgpack",
    ]


ONE, OTHER = Client("ash", "0"), Client("ash", "1")
UP = Waits(up=5.0)


def drop(fed, kind, who=1):
    """One client does not answer a move."""
    names = fed.names.get("ash", "test")
    full = np.ones(len(names), dtype=bool)
    there = full & (np.arange(len(names)) != who)
    fed.record.note(Moment(2, kind), "ash", names, full, there)


def there(fed, kind="start"):
    """How many are, by the schedule."""
    names = fed.names.get("ash", "test")
    return int(fed.schedule.answers(Moment(2, kind), "ash", names).sum())


def hear(transport, move):
    """What a client sent, taken by the hub."""
    message = Message(Key(2, move), "embedding", ONE, "ash", torch.full((3,), float(move)))
    transport.mailbox("ash").kept.append(message)


def tell(durable, move, to="birch"):
    durable.send(Message(Key(2, move), "told-something", "ash", to, None))


@pytest.mark.parametrize("to", ["birch", ONE], ids=["another hub", "an own client"])
def test_who_dropped_out_is_known_before_anybody_hears_of_it(tmp_path, to):
    """An own client answers what it was told: it must not be told something else later."""
    saved(tmp_path, 2, 0.25)
    _, _, fed, _, durable = remembered(tmp_path, waits=UP)
    fed.begin(2)
    tell(durable, 1, to)
    assert not list(tmp_path.glob("round-*"))  # nothing has happened yet
    drop(fed, "embedding")
    tell(durable, 3, to)
    fed = restored(tmp_path)[2]
    assert (there(fed), there(fed, "embedding"), there(fed, "update")) == (4, 3, 4)
    saved(tmp_path, 3, 0.5)  # that round is over
    assert isinstance(restored(tmp_path)[2].schedule, Everyone)


def test_a_round_that_had_begun_begins_with_the_same_clients(tmp_path):
    """Also if they are gone when the hub is back: others have heard of their rows."""
    saved(tmp_path, 2, 0.25)
    _, _, fed, transport, durable = remembered(tmp_path, waits=UP)
    fed.begin(2)
    hear(transport, 2)
    tell(durable, 3)
    _, _, fed, transport, _ = remembered(tmp_path, waits=UP)
    transport.mailbox("ash").gone(OTHER)
    fed.begin(2)
    assert not fed.record.dropped
    fed.begin(3)  # nobody has heard of that one
    assert fed.record.dropped == {Moment(3): {"ash": ("1",)}}


def test_a_hub_that_dies_twice_in_a_round_forgets_nothing(tmp_path):
    """It dies again before it is where it was."""
    saved(tmp_path, 2, 0.25)
    _, _, fed, transport, durable = remembered(tmp_path, waits=UP)
    fed.begin(2)
    hear(transport, 2)
    tell(durable, 3)
    hear(transport, 8)
    drop(fed, "derivative")
    tell(durable, 9)
    for _ in range(3):
        _, _, fed, transport, durable = remembered(tmp_path, waits=UP)
        fed.begin(2)
        mailbox = transport.mailbox("ash")
        assert list(mailbox.take_each([ONE], Key(2, 2), 0)) == [ONE]
        assert there(fed, "derivative") == 3
        tell(durable, 3)  # and here it is killed
    assert list(mailbox.take_each([ONE], Key(2, 8), 0)) == [ONE]
    drop(fed, "derivative")
    drop(fed, "update", 2)
    tell(durable, 11)  # what is new is added
    fed = restored(tmp_path)[2]
    assert (there(fed, "derivative"), there(fed, "update")) == (3, 3)


def test_what_is_left_of_an_earlier_round_does_not_count(tmp_path):
    """Killed after the checkpoint, before those files are gone."""
    saved(tmp_path, 2, 0.25)
    _, _, fed, transport, durable = remembered(tmp_path)
    fed.begin(2)
    for move in (2, 4, 6):
        hear(transport, move)
        tell(durable, move + 1)
    left = {path: path.read_bytes() for path in tmp_path.glob("round-*")}
    assert len(left) == 3
    saved(tmp_path, 3, 0.5)
    for path, content in left.items():
        path.write_bytes(content)
    assert isinstance(restored(tmp_path)[2].schedule, Everyone)
    assert not list(tmp_path.glob("round-*"))


def test_another_runs_memory_is_not_taken(tmp_path):
    saved(tmp_path, 2, 0.25)
    with pytest.raises(SettingError, match="of another run"):
        restored(tmp_path, "0" * 64)


def bytes_of(path):
    """Places to damage: the beginning, the end, some between."""
    size = path.stat().st_size
    return sorted({*range(40), *range(size - 8, size), *range(0, size, 41)})


@pytest.mark.parametrize("file", ["links-3.msgpack", "checkpoint.safetensors"])
def test_a_damaged_round_is_named_and_the_one_before_is_used(tmp_path, file):
    for round in (2, 3):
        saved(tmp_path, round, round / 4)
    path, problems = tmp_path / file, []
    whole = path.read_bytes()
    for at in bytes_of(path):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        past = PastRounds(tmp_path, RUN, report=problems.append)
        assert [state.round for state in past.scan()] == [2, 0], at
        assert str(path) in str(problems[-1])
    path.unlink()
    assert restored(tmp_path)[:2] == (2, 0.5)
    assert restored(tmp_path)[:2] == (2, 0.5)  # what was newer is gone


def test_where_no_round_is_whole_it_is_said(tmp_path):
    saved(tmp_path, 2, 0.25)
    for file in ("links-2.msgpack", "checkpoint.safetensors"):
        whole = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes(whole[:-3])
        with pytest.raises(DamagedError, match="no checkpoint is whole"):
            restored(tmp_path)
        (tmp_path / file).write_bytes(whole)
    assert restored(tmp_path)[0] == 2


def test_damage_to_a_round_that_is_going_on_is_told(tmp_path):
    """Others know what they were told: a hub that comes to say something else goes back."""
    saved(tmp_path, 2, 0.25)
    _, _, fed, transport, durable = remembered(tmp_path, waits=UP)
    fed.begin(2)
    hear(transport, 2)
    drop(fed, "embedding")
    tell(durable, 3)
    (path,) = tmp_path.glob("round-*")
    whole = path.read_bytes()
    for at in bytes_of(path):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        fed, transport = hub()
        past, problems = PastRounds(tmp_path, RUN), []
        past.report = problems.append
        past.scan()
        Memory(past).again(fed, 2, transport)
        assert [str(path) in str(problem) for problem in problems] == [True], at
        assert isinstance(fed.schedule, Everyone)


def test_the_last_rounds_are_held(tmp_path):
    past = PastRounds(tmp_path, RUN, keep=3)
    assert past.scan() == (START,)
    for round in (1, 2, 3):
        saved(tmp_path, round, 0.0)
    assert [state.round for state in PastRounds(tmp_path, RUN, keep=3).scan()] == [3, 2, 1, 0]
    for round in range(4, 16):
        saved(tmp_path, round, 0.0)
    assert [state.round for state in PastRounds(tmp_path, RUN).scan()] == list(range(15, 5, -1))


BACK = (RollbackRecord(4, {"ash": 6, "birch": 4}),)


@pytest.mark.parametrize("killed", [None, "went back"])
def test_another_attempt_begins_with_a_round_that_was_held(tmp_path, monkeypatch, killed):
    """Wherever it was killed meanwhile: it is in the other attempt once that is written."""
    for round in range(1, 7):
        saved(tmp_path, round, round / 8)
    (tmp_path / "done.json").write_text("{}")
    past = PastRounds(tmp_path, RUN)
    assert past.scan()[0] == ResumePoint(6, "")
    line = past.line.back_to(4, "other", 1)

    def crash(point):
        if point == killed:
            raise WriteError("killed")

    monkeypatch.setattr(module, "crash", crash)
    with contextlib.suppress(WriteError):
        past.adopt(ResumePoint(4, ""), line, BACK)
    monkeypatch.undo()
    again = PastRounds(tmp_path, RUN)
    assert [state.round for state in again.scan()] == [4, 3, 2, 1, 0]
    assert (again.line, again.back) == (line, BACK)
    done, value, fed, transport = restored(tmp_path)
    assert (done, value, fed.record.back) == (4, 0.5, BACK)
    assert transport.links["birch"].sent_since(0) == []  # of another attempt
    assert load_checkpoint(tmp_path / "checkpoint.safetensors").round == 4
    assert not list(tmp_path.glob("*-[56].*"))
    assert not (tmp_path / "done.json").exists()


def test_rounds_of_an_attempt_that_is_over_do_not_count(tmp_path):
    """Say, files of a backup among those that were there."""
    for round in range(1, 7):
        saved(tmp_path, round, 0.0)
    left = {path: path.read_bytes() for path in tmp_path.glob("*-5.*")}
    past = PastRounds(tmp_path, RUN)
    past.scan()
    past.adopt(ResumePoint(4, ""), past.line.back_to(4, "other", 1), BACK)
    for path, content in left.items():
        path.write_bytes(content)
    assert [state.round for state in PastRounds(tmp_path, RUN).scan()] == [4, 3, 2, 1, 0]


def test_attempts_in_line():
    line = AttemptHistory()
    for number, round in enumerate((14, 9, 12, 12), 1):
        line = line.back_to(round, f"n{number}", number)
    assert line == AttemptHistory(4, (ResumePoint(9, "n2"), ResumePoint(12, "n4")))
    assert [line.of(round).attempt for round in (9, 10, 12, 13)] == ["", "n2", "n2", "n4"]
    assert line.attempt == "n4"
    assert line.has(ResumePoint(9, ""))
    assert not line.has(ResumePoint(10, ""))
