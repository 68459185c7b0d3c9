"""Silos that are alike are computed together, where that is the same."""

import pytest
import torch

from fedloom import TDCD, Run, Task, mlp
from fedloom.algorithms.shared.tiered import MODEL
from fedloom.algorithms.tdcd import EMBEDDING
from fedloom.core import tree
from fedloom.engines.limits import Limits
from fedloom.fabric.kinds import Kind
from tests.engines.stacked.test_chunks import federation, learnt


def asks_for_its_silo(part, theta, batch):
    """Local work that differs from silo to silo."""
    return part.embed(theta, batch.x) * (1.0 if part.silo == "s0" else 2.0)


VALUE = Kind("value", "anything")


def twice(value):
    return 2 * value


def odd_widths(part):
    return {str(k): torch.full((1 + k % 2,), float(k)).double() for k in range(4)}


def each_of_its_width(fed):
    """A value with a different shape at each hub."""
    values = {silo: torch.ones(place + 1) for place, silo in enumerate(fed.silos)}
    return fed.place_hubs(values)


@pytest.mark.parametrize("clients", [(4, 7, 1), (5, 5, 5)])
def test_silos_that_are_alike_are_one_lot_and_still_themselves(clients):
    data = federation((5,), classes=3, clients=clients)
    task = Task({f"s{j}": mlp(5, [6], 3) for j in range(3)}, "cross-entropy")
    rule = TDCD(local_steps=2, lr=0.1, batch=17, weighting="participants")
    runs = [Run(rule, task, data, engine=e, precision="float64") for e in ("stacked", "reference")]
    values = []
    for run in runs:
        fed, state = run.fed, run.fit(2).state
        fed.begin(2)
        batch_k, rows = fed.minibatch(torch.arange(20))
        theta_k = fed.to_clients(MODEL, state.theta)
        phi_k = fed.at_clients(asks_for_its_silo, fed.part, theta_k, batch_k)
        values.append(fed.read(fed.gather(EMBEDDING, phi_k, rows)))
    assert tree.largest_difference(*values) < 1e-12
    fast = runs[0].fed
    assert fast._plan.alike == [("s0", "s1", "s2")]
    assert asks_for_its_silo in fast._execution.named
    ones = fast._lazy(fast.known(torch.ones(1)), "test")
    assert [group.silos for group in fast._chunk_groups(fast._all, ones.value, ones)] == [
        ("s0", "s1", "s2")
    ]
    wide = fast._lazy(fast.at_clients(twice, fast.to_clients(VALUE, each_of_its_width(fast))), "x")
    groups = fast._chunk_groups(fast._all, wide.value, wide)
    assert [group.silos for group in groups] == [("s0",), ("s1",), ("s2",)]


def test_clients_of_silos_that_are_alike_may_have_values_of_different_shapes():
    """They share chunks with silos of their shape only."""
    data = federation((5,), classes=3, clients=(4, 3))
    task = Task(dict.fromkeys(("s0", "s1"), mlp(5, [6], 3)), "cross-entropy")
    values = []
    for engine in ("stacked", "reference"):
        fed = Run(TDCD(batch=17), task, data, engine=engine, precision="float64").fed
        fed.begin(0)
        own_k = fed.spread(VALUE, fed.at_hubs(odd_widths, fed.part))
        values.append(fed.read(fed.collect(VALUE, fed.at_clients(twice, own_k))))
    assert tree.largest_difference(*values) == 0
    assert [len(v) for v in values[0]["s1"].values()] == [1, 2, 1]


def test_large_models_are_computed_silo_by_silo():
    none = Limits(shared_models=0, light_model=0)
    data, rule = federation((5,), classes=3), TDCD(local_steps=2, lr=0.1, batch=17)
    task = Task({"s0": mlp(5, [6], 3), "s1": mlp(5, [6], 3)}, "cross-entropy")
    apart = Run(rule, task, data, precision="float64", limits=none)
    ones = apart.fed._lazy(apart.fed.known(torch.ones(1)), "test")
    groups = apart.fed._chunk_groups(apart.fed._all, ones.value, ones)
    assert [group.silos for group in groups] == [("s0",), ("s1",)]
    mixed = Run(rule, task, data, precision="float64")
    assert tree.largest_difference(learnt(apart, 3), learnt(mixed, 3)) < 1e-12
