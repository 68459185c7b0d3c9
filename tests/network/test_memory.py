"""What a hub goes on from: whole, of one moment, of one run; whatever killed it."""

import numpy as np
import pytest

from fedloom import TDCD, Run
from fedloom.engines.party import PartyEngine
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


def hub():
    """A hub that is connected to nobody."""
    rows, address = placement(), Address("127.0.0.1:1", b"", "nobody", None)
    own = Identity(b"", b"")
    transport = GrpcTransport(
        "ash", RUN, own, dials={"birch": address, Client("ash", "0"): address}
    )
    shapes = Run(ALGORITHM, task(), rows, precision="float64").shapes
    fed = PartyEngine(
        task(), shapes, rows.view(["ash"]), hosted=["ash"], transport=transport, seed=3,
        schedule=Everyone(),
    )  # fmt: skip
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


def restored(folder, run=RUN):
    fed, transport = hub()
    done, state = Memory(folder, run).restore(fed, ALGORITHM, transport)
    (mine,) = fed.read(state.theta).values()
    return done, float(next(iter(mine.block.values())).flatten()[0]), fed, transport


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


def test_who_dropped_out_is_known_before_others_hear_of_it(tmp_path):
    saved(tmp_path, 2, 0.25)
    fed, transport = hub()
    durable = Durable(transport, Memory(tmp_path, RUN))
    durable.fed = fed
    fed.record.begin(2)
    names = fed.names.get("ash", "test")
    full = np.ones(len(names), dtype=bool)
    fed.record.note(Moment(2, "embedding"), "ash", names, full, full & (np.arange(len(names)) != 1))
    durable.send(Message(Key(2, 1), "rest", "ash", Client("ash", "0"), None))
    assert not (tmp_path / "round.msgpack").exists()  # its own clients may hear something else
    durable.send(Message(Key(2, 2), "hub-embedding", "ash", "birch", None))
    fed = restored(tmp_path)[2]
    for moment, there in ((Moment(2), 4), (Moment(2, "embedding"), 3), (Moment(3, "embedding"), 4)):
        assert int(fed.schedule.answers(moment, "ash", names).sum()) == there
    saved(tmp_path, 3, 0.5)  # that round is over
    assert isinstance(restored(tmp_path)[2].schedule, Everyone)


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
