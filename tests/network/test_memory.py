"""What a hub goes on from: whole, of one moment, of one run; whatever killed it."""

import numpy as np
import pytest
import torch

from fedloom import TDCD, Run
from fedloom.engines.party import PartyEngine
from fedloom.engines.waits import Waits
from fedloom.errors import DataError, SettingError, WriteError
from fedloom.federation.messages import Key, Message
from fedloom.federation.placed import AtHubs
from fedloom.federation.schedule import Everyone, Moment
from fedloom.federation.topology import Client
from fedloom.parties import memory
from fedloom.parties.memory import Durable, Memory
from fedloom.testing import placement, task
from fedloom.transports.grpc import GrpcTransport
from fedloom.transports.secure import Address, Identity

ALGORITHM = TDCD(local_steps=2, lr=0.2, batch=20)
RUN = "e" * 64


def hub(waits=None):
    """A hub that is connected to nobody."""
    rows, address = placement(), Address("127.0.0.1:1", b"", "nobody", None)
    own = Identity(b"", b"")
    transport = GrpcTransport(
        "ash", RUN, own, dials={"birch": address, Client("ash", "0"): address}
    )
    shapes = Run(ALGORITHM, task(), rows, precision="float64").shapes
    fed = PartyEngine(
        task(), shapes, rows.view(["ash"]), hosted=["ash"], transport=transport, seed=3,
        schedule=Everyone(), waits=waits,
    )  # fmt: skip
    transport.keep()
    return fed, transport


def saved(folder, done, value):
    """A hub that has done so many rounds; its weights are all of one value."""
    fed, transport = hub()
    for round in range(done):
        fed.begin(round)
        transport.send(Message(Key(round, 1), "hub-embedding", "ash", "birch", None))
        transport.send(Message(Key(round, 2), "rest", "ash", Client("ash", "0"), None))
        fed.end()
    fed.go_on(done, {Client("ash", "0"): Key(done - 1, 4)})
    (mine,) = fed.read(ALGORITHM.start(fed).theta).values()
    block = {name: a.clone().fill_(value) for name, a in mine.block.items()}
    state = ALGORITHM.State(AtHubs({"ash": mine._replace(block=block)}, fed.silos))
    Memory(folder, RUN).save(fed, state, done, transport, 1.0)


def restored(folder, run=RUN, waits=None):
    return remembered(folder, run, waits)[:-1]


def remembered(folder, run=RUN, waits=None):
    """Rounds done, a weight, the hub, its transport, and one that writes down what happens."""
    fed, transport = hub(waits)
    memory = Memory(folder, run)
    done, state = memory.restore(fed, ALGORITHM, transport)
    durable = Durable(transport, memory)
    durable.fed = fed
    (mine,) = fed.read(state.theta).values()
    return done, float(next(iter(mine.block.values())).flatten()[0]), fed, transport, durable


def test_a_hub_remembers_its_state_its_receipts_and_what_it_told_other_hubs(tmp_path):
    saved(tmp_path, 3, 0.5)
    done, value, fed, transport = restored(tmp_path)
    assert (done, value) == (3, 0.5)
    assert fed.receipts == {Client("ash", "0"): Key(2, 4)}
    told = transport.links["birch"].sent_since(0)
    assert [sent.key for sent in told] == [Key(2, 1)]  # of the round that is over
    assert transport.links[Client("ash", "0")].sent_since(0) == []
    for link in transport.links.values():
        assert link.got == Key(3, 0)
        assert link.round == 3


@pytest.mark.parametrize("file", ["save_checkpoint", "write_bytes"])
def test_killed_while_it_writes(tmp_path, monkeypatch, file):
    """Whichever of the two files it was at, the older pair counts."""
    saved(tmp_path, 2, 0.25)

    def full(*given, **more):
        raise WriteError("no space left")

    monkeypatch.setattr(memory, file, full)
    with pytest.raises(WriteError):
        saved(tmp_path, 3, 0.75)
    monkeypatch.undo()
    assert restored(tmp_path)[:2] == (2, 0.25)
    saved(tmp_path, 4, 1.0)
    assert restored(tmp_path)[:2] == (4, 1.0)
    assert len(list(tmp_path.glob("links-*"))) == 1


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
    one = Message(Key(2, move), "embedding", ONE, "ash", torch.full((3,), float(move)))
    transport.mailbox("ash").kept.append(one)


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


def test_a_damaged_memory_is_named(tmp_path):
    saved(tmp_path, 2, 0.25)
    path = tmp_path / "links-2.msgpack"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="missing or damaged"):
        restored(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="missing or damaged"):
        restored(tmp_path)
