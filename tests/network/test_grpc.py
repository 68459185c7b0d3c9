"""The party engine over connections: the same numbers, and what disturbs them or does not."""

import pytest

from fedloom import TDCD, Run, tree
from fedloom.federation.ledger import Ledger
from fedloom.registry import algorithms
from fedloom.testing.samples import sample_of

from .federations import Keys, opened, run_connected

ALGORITHM = TDCD(local_steps=2, lr=0.2, batch=20)


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
