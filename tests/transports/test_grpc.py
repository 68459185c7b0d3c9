"""The party engine over connections: the same numbers, and what disturbs them or does not."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedloom import Run
from fedloom.core import tree
from fedloom.core.registry import algorithms
from fedloom.core.topology import Client, Topology
from fedloom.fabric.kinds import Key, Message
from fedloom.fabric.ledger import Ledger
from fedloom.testing.samples import examples_of, sample_of
from fedloom.transports.grpc.tls import Identity, PeerAddress
from fedloom.transports.grpc.transport import GrpcTransport
from tests.helpers.federations import Keys, opened, run_connected


def assert_same(ended, right):
    """State and ledger of the parties together are those of the reference engine, to the bit."""
    for me, (_, state) in ended.items():
        assert not isinstance(state, Exception), f"{me}: {state!r}"
    for field in right.algorithm.State._fields:
        wanted = right.fed.read(getattr(right.state, field))
        digests = {}
        for fed, state in ended.values():
            digests.update(fed.read(getattr(state, field)))
        assert set(digests) == set(wanted)
        assert tree.largest_difference(digests, {party: wanted[party] for party in digests}) == 0
    assert list(Ledger.merged(fed.ledger for fed, _ in ended.values())) == list(right.ledger)


@pytest.mark.parametrize("name", sorted(algorithms))
def test_every_algorithm_runs_over_connections(name, tmp_path):
    algorithm = examples_of(algorithms[name])[0]
    task, rows = sample_of(algorithm)
    right = Run(algorithm, task, rows, engine="reference", precision="float64", seed=3).fit(2)
    transports = opened(Keys(tmp_path, rows.topology))
    assert_same(run_connected(transports, algorithm, right.task, right.shapes, rows, 2), right)


def test_what_is_the_same_for_all_clients_is_kept_once():
    """A model to many clients is not as many copies of it."""
    two, nowhere = (
        (Client("ash", "0"), Client("ash", "1")),
        PeerAddress("127.0.0.1:1", b"", "nobody", None),
    )
    hub = GrpcTransport("ash", "r", Identity(b"", b""), dials=dict.fromkeys(two, nowhere))
    theta = {"w": torch.zeros(5)}
    for move, payload in ((1, theta), (2, theta), (3, dict(theta))):
        for message in two:
            hub.send(Message(Key(0, move), "model", "ash", message, payload))
    first, second = (hub.links[message].sent_since(0) for message in two)
    for frame, other in zip(first, second, strict=True):
        assert frame.frame.body is other.frame.body
        assert frame.frame.head != other.frame.head
    theta["w"] += 1  # what was sent stays as it was sent, and the next move is encoded anew
    hub.send(Message(Key(0, 4), "model", "ash", two[0], theta))
    assert hub.links[two[0]].sent_since(0)[-1].frame.body != first[0].frame.body


def test_large_messages_go_in_pieces_and_in_order(tmp_path):
    """More than a chunk, both ways at once, with small ones between them."""
    topology = Topology({"ash": ("0",)})
    transports = opened(Keys(tmp_path, topology))
    client = Client("ash", "0")
    big = torch.randn(700_001, dtype=torch.float64)  # 5.6 MB
    for move in range(1, 7):
        payload = big + move if move % 2 else torch.tensor(move)
        for source, to in (("ash", client), (client, "ash")):
            transports[source].send(Message(Key(0, move), "model", source, to, payload))
    for move in range(1, 7):
        for source, to in (("ash", client), (client, "ash")):
            came = transports[to].mailbox(to).take(source, Key(0, move), "model", 30)
            assert torch.equal(came.payload, big + move if move % 2 else torch.tensor(move))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda transport: transport.close(), transports.values()))
