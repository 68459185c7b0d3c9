"""VAFL and asynchronous split learning against a plain torch loop driven by the recorded order."""

from dataclasses import fields

import pytest
import torch
from torch import nn

from fedloom import Network, Run
from fedloom.algorithms import VAFL, Central, InverseTime, SplitNNAsync
from fedloom.algorithms.vafl.server_table import BINS
from fedloom.testing import placement, task
from tests.helpers.plain_vafl import plain_visits, rows_of

UNEVEN = Network(
    t_comm=3.0, t_comp=1.0, rates={"ash": 0.05}, speed={"birch": 0.3}, latency={"ash-cedar": 9.0}
)


class Head(nn.Module):
    """theta_0: a sum, or a layer on a concatenation."""

    def __init__(self, layer=None):
        super().__init__()
        self.layer = layer

    def forward(self, h):
        return sum(h.values()) if self.layer is None else self.layer(torch.cat([*h.values()], 1))


def cross_entropy(scores, y):
    return nn.functional.cross_entropy(scores, y, reduction="none")


def modules(run, thetas, head):
    """The run's blocks and head, as modules in double precision."""
    parts = run.fed.parts.value
    blocks = {j: parts[j].block.with_params(thetas[j].block) for j in parts}
    first = next(iter(parts))
    layer = parts[first].head.with_params(thetas[first].head) if head else None
    return {j: block.double() for j, block in blocks.items()}, Head(layer).double()


def always(lr):
    return lambda step: lr


FALLING = InverseTime(1.0, 12.0)
CASES = {
    "vafl": (VAFL(lr=0.2, batch=9), {"lr": always(0.2)}),
    "t=2": (VAFL(lr=0.2, batch=9, group=2, l2=0.05), {"lr": always(0.2), "l2": 0.05}),
    "bounded": (
        VAFL(lr=0.2, batch=6, max_delay=2, master_lr=0.05, visits=7),
        {"lr": always(0.2), "master_lr": always(0.05), "oldest": 2},
    ),
    "bounded, t=2": (
        VAFL(lr=0.2, batch=5, max_delay=1, group=2, visits=10),
        {"lr": always(0.2), "oldest": 1},
    ),
    "slowing down": (VAFL(lr=FALLING, batch=9, local_steps=3), {"lr": FALLING, "q": 3}),
    "splitnn-async": (
        SplitNNAsync(lr=0.1, batch=9, local_steps=4),
        {"lr": always(0.1), "master_lr": always(0.1 / 3), "q": 4},
    ),
    "splitnn-async, slowing down": (
        SplitNNAsync(lr=FALLING, batch=9, local_steps=2),
        {"lr": FALLING, "master_lr": lambda step: FALLING(step) / 3, "q": 2},
    ),
}
ROUNDS = 6


def played(algorithm, settings, head, engine="stacked"):
    """A run, its blocks and head, those of the plain loop in the order that the run had, and what
    the loop says of delays and calls."""
    rows, learn = placement(3, 1), task(head=head)
    run = Run(algorithm, learn, rows, seed=5, precision="float64", engine=engine, network=UNEVEN)
    start = algorithm.blocks(run.fed, algorithm.start(run.fed))
    models, top = modules(run, start, head)
    run.fit(ROUNDS)
    order = [[t.visitors for t in run.record.visits[r]] for r in range(ROUNDS)]
    taus, calls = plain_visits(
        models,
        top,
        {j: x.double() for j, x in rows.x.items()},
        rows.labels(),
        cross_entropy,
        order,
        lambda round, nth: rows_of(run.fed.streams, rows.size, algorithm.batch, round, nth),
        **{"master_lr": settings["lr"], **settings},
    )
    actual, actual_top = modules(run, algorithm.blocks(run.fed, run.state), head)
    pairs = [*zip(models.values(), actual.values(), strict=True), (top, actual_top)]
    return run, apart(pairs), taus, calls


def apart(pairs):
    differences = [
        float((a - b).detach().abs().max())
        for p, q in pairs
        for a, b in zip(p.parameters(), q.parameters(), strict=True)
    ]
    return max(differences)


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("head", [False, True], ids=["sum", "head"])
@pytest.mark.parametrize("case", CASES)
def test_one_client_a_silo_is_the_papers_algorithm(case, head, engine):
    algorithm, settings = CASES[case]
    run, worst, taus, calls = played(algorithm, settings, head, engine)
    assert worst <= 1e-10
    delays = torch.tensor(algorithm.delays(run.fed, run.state))
    assert torch.equal(delays, torch.bincount(taus.clamp(max=BINS - 1), minlength=BINS))
    turns = [turn for of_round in run.record.visits.values() for turn in of_round]
    assert sorted(silo for turn in turns for silo in turn.again) == sorted(calls)
    assert bool(calls) == (algorithm.delay_bound is not None)
    if algorithm.delay_bound is not None:
        assert taus.max() == algorithm.delay_bound
    assert {len(turn.visitors) for turn in turns} == {algorithm.group_size}
    assert {silo for turn in turns for silo in turn.visitors} == set(run.fed.silos)


class CallsByTheFirst(VAFL):
    """Looks at the rows of the first of a group alone for old embeddings."""

    def again(self, parts, common, table, visits, asks):
        self.take(parts, common, table, asks)
        return super().again(parts, common, table, visits, asks[:1])


class AnswersForTheFirst(VAFL):
    """Whoever is called brings the rows of the first visitor alone."""

    def ids(self, common, visit):
        return super().ids(common, visit._replace(nth=visit.nth[:1]))


@pytest.mark.parametrize("mutant", [CallsByTheFirst, AnswersForTheFirst])
def test_the_plain_loop_catches(mutant):
    """Mistakes that an outside round planted and no test saw. (What counts turns in place of steps
    is among the battery's mutants: tests/conformance.)"""
    algorithm, settings = CASES["bounded, t=2"]
    same = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    assert played(mutant(**same), settings, head=False)[1] > 1e-6


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("network", [None, UNEVEN], ids=["equal rates", "uneven"])
def test_waiting_for_all_is_synchronous_sgd(network, engine):
    """t = M: joint SGD of all blocks and the head, by a plain loop; and the pooled baseline."""
    rows, learn = placement(3, 1), task(head=True)
    algorithm = VAFL(lr=0.2, batch=9, group=3)
    run = Run(algorithm, learn, rows, seed=5, precision="float64", engine=engine, network=network)
    models, top = modules(run, algorithm.blocks(run.fed, algorithm.start(run.fed)), True)
    optimizer = torch.optim.SGD([p for m in (*models.values(), top) for p in m.parameters()], 0.2)
    for round in range(5):
        ids = rows_of(run.fed.streams, rows.size, 9, round, 0)
        optimizer.zero_grad()
        scores = top({j: model(rows.x[j][ids]) for j, model in models.items()})
        cross_entropy(scores, rows.labels()[ids]).mean().backward()
        optimizer.step()
    run.fit(5)
    scores = top({j: model(rows.x[j]) for j, model in models.items()})
    assert float((scores - run.predict()).abs().max()) <= 1e-10
    pooled = Run(Central(lr=0.2, batch=9), learn, rows, seed=5, precision="float64").fit(5)
    assert float((pooled.predict() - run.predict()).abs().max()) <= 1e-10
    assert run.algorithm.notes(run.fed, run.state)["delay_max"] == 0
