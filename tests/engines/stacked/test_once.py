"""A round, and an evaluation, compute the same value only once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom import TDCD, Run, Task, linear, partition
from fedloom.algorithms.shared import local
from fedloom.algorithms.shared.tiered import MODEL
from fedloom.algorithms.tdcd import EMBEDDING
from fedloom.core import tree
from fedloom.core.errors import NotFiniteError, PlacementError
from fedloom.core.placed import AtHubs, OnDemand
from fedloom.core.rng import _is_first
from fedloom.engines.limits import Limits
from fedloom.engines.stacked.lazy import SharedValue
from fedloom.fabric.schedule import Moment, Scripted


def small(**options):
    draw = torch.Generator().manual_seed(0)
    x = {silo: torch.randn(60, 3, generator=draw) for silo in ("a", "b", "c")}
    data = partition(x, torch.randn(60, generator=draw), dict.fromkeys(x, 4))
    task = Task({silo: linear(3) for silo in x}, "squared")
    return Run(TDCD(local_steps=2, lr=0.1, batch=40), task, data, seed=1, **options)


def counted(monkeypatch, owner, name):
    calls, plain = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *a: calls.append(1) or plain(*a))
    return calls


def test_what_a_round_computes_for_the_same_clients_it_computes_once(monkeypatch):
    def computed(**limits):
        run = small(limits=Limits(**limits))
        values = counted(monkeypatch, SharedValue, "_compute")
        run.fit(5)
        return len(values)

    once = computed()
    # nothing is kept: the model comes down a second time
    assert computed(chunk_values=-1) == once + 5


def test_only_little_is_kept_for_the_rest_of_a_round():
    run = small().fit(1)
    assert run.fed._plan._known
    assert not small(limits=Limits(shared_models=0)).fit(1).fed._plan._known


def test_rows_are_the_same_however_they_are_held():
    joined = small().fit(4)
    apart = small(limits=Limits(joined_rows=0)).fit(4)
    forgetful = small(limits=Limits(joined_rows=0, chunk_values=-1)).fit(4)  # nothing is kept
    assert joined.fed.store._joined
    assert not apart.fed.store._joined
    reference = small(engine="reference", precision="float64").fit(4)
    for run in (apart, forgetful):
        assert torch.equal(run.predict(), joined.predict())
    exact = small(precision="float64").fit(4)
    assert tree.largest_difference(exact.predict(), reference.predict()) < 1e-12


def test_an_evaluation_holds_no_rows_of_its_own_and_predicts_at_one_hub(monkeypatch):
    run = small().fit(1)
    scores = counted(monkeypatch, local, "joint_scores")
    run.add_record()
    (seen,) = run._viewer._seen.values()
    assert seen.fed.store is run.fed.store
    assert len(scores) == 1
    other, own = small().placement, run.placement
    assert not run.fed.store.holds(other)
    assert run.fed.store.holds(replace(own, owner=other.owner))
    assert not run.fed.store.holds(replace(own, y={**own.y, "b": other.y["b"]}))
    assert not run.fed.store.holds(replace(own, y={**own.y, "b": None}))


def test_work_on_demand_is_done_where_it_is_asked_for():
    done = []
    value = OnDemand(lambda hub: done.append(hub) or hub.upper(), ["a", "b"], ("a", "b", "c"))
    assert [value.get("b", "test"), value.get("b", "test")] == ["B", "B"]
    assert done == ["b"]
    with pytest.raises(PlacementError, match="not hosted here"):
        value.get("c", "test")
    assert value.held() == {"a": "A", "b": "B"}
    assert AtHubs({"a": 1}, ("a",)).held() == {"a": 1}


@given(st.lists(st.integers(0, 30), max_size=40), st.booleans())
def test_numbers_that_come_for_the_first_time(drawn, many):
    """Both ways to find them."""
    numbers = np.array(drawn, dtype=np.int64)
    first = _is_first(numbers, 10**4 if many else 31)
    assert numbers[first].tolist() == list(dict.fromkeys(drawn))


def test_what_is_not_finite_is_still_found():
    run = small().fit(2)
    theta = run.state.theta
    bad = tree.map_tensors(lambda a: a * torch.inf, theta.get("b", "test"))
    run.state = run.state._replace(theta=AtHubs({**theta.held(), "b": bad}, theta.places))
    with pytest.raises(NotFiniteError, match="embedding from client b"):
        run.fit(3)


@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_what_is_not_finite_is_found_though_nobody_sends_it(engine):
    """If all clients of a silo are absent, its hub's model does not change."""
    away = Scripted({Moment(2): {"b": ["0", "1", "2", "3"]}})
    run = small(engine=engine, schedule=away).fit(2)
    theta = run.state.theta
    bad = tree.map_tensors(lambda a: a * torch.inf, theta.get("b", "test"))
    run.state = run.state._replace(theta=AtHubs({**theta.held(), "b": bad}, theta.places))
    with pytest.raises(NotFiniteError, match="round 2: NaN or infinity in theta at hub b"):
        run.fit(3)


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("shape", [(60,), (1, 60), (2, 60), (2, 30), (30,)])
def test_all_rows_in_their_order_are_rows_as_any(clients, shape):
    """For one minibatch or several."""
    draw = torch.Generator().manual_seed(0)
    x = {silo: torch.randn(60, 3, generator=draw) for silo in ("a", "b")}
    data = partition(x, torch.randn(60, generator=draw), dict.fromkeys(x, clients))
    task = Task({silo: linear(3) for silo in x}, "squared")
    ids = (torch.arange(int(np.prod(shape))) % 60).reshape(shape)
    repeats = []
    for engine in ("stacked", "reference"):
        run = Run(TDCD(batch=12), task, data, engine=engine, precision="float64")
        fed, theta = run.fed, run.algorithm.start(run.fed).theta
        fed.begin(0)
        batch_k, where = fed.minibatch(ids)
        phi_k = fed.at_clients(local.embed, fed.part, fed.to_clients(MODEL, theta), batch_k)
        repeats.append((fed.read(batch_k), fed.read(fed.gather(EMBEDDING, phi_k, where))))
    (order, gathered), (theirs, expected) = repeats
    assert tree.largest_difference(gathered, expected) < 1e-12
    for client, batch in theirs.items():
        assert torch.equal(order[client].x[order[client].mask], batch.x[batch.mask])
