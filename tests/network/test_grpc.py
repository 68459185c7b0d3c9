"""The party engine over connections: the same numbers, and what disturbs them or does not."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedloom import Run, tree
from fedloom.federation.ledger import Ledger
from fedloom.federation.messages import Key, Message
from fedloom.federation.topology import Client, Topology
from fedloom.registry import algorithms
from fedloom.testing.samples import sample_of

from .federations import Keys, opened, run_connected


def assert_same(ended, right):
    """State and ledger of the parties together are those of the reference engine, to the bit."""
    for me, (_, state) in ended.items():
        assert not isinstance(state, Exception), f"{me}: {state!r}"
    for field in right.algorithm.State._fields:
        wanted = right.fed.read(getattr(right.state, field))
        found = {}
        for fed, state in ended.values():
            found.update(fed.read(getattr(state, field)))
        assert set(found) == set(wanted)
        assert tree.largest_difference(found, {party: wanted[party] for party in found}) == 0
    assert list(Ledger.merged(fed.ledger for fed, _ in ended.values())) == list(right.ledger)


@pytest.mark.parametrize("name", sorted(algorithms))
def test_every_algorithm_runs_over_connections(name, tmp_path):
    algorithm = algorithms[name].examples()[0]
    task, rows = sample_of(algorithm)
    right = Run(algorithm, task, rows, engine="reference", precision="float64", seed=3).fit(2)
    transports = opened(Keys(tmp_path, rows.topology))
    assert_same(run_connected(transports, algorithm, right.task, right.shapes, rows, 2), right)


def test_large_messages_go_in_pieces_and_in_order(tmp_path):
    """More than a chunk, both ways at once, with small ones between them."""
    topology = Topology({"ash": ("0",)})
    transports = opened(Keys(tmp_path, topology))
    one = Client("ash", "0")
    big = torch.randn(700_001, dtype=torch.float64)  # 5.6 MB
    for move in range(1, 7):
        payload = big + move if move % 2 else torch.tensor(move)
        for source, to in (("ash", one), (one, "ash")):
            transports[source].send(Message(Key(0, move), "model", source, to, payload))
    for move in range(1, 7):
        for source, to in (("ash", one), (one, "ash")):
            came = transports[to].mailbox(to).take(source, Key(0, move), "model", 30)
            assert torch.equal(came.payload, big + move if move % 2 else torch.tensor(move))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda transport: transport.close(), transports.values()))
