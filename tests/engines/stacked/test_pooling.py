"""Pooling: what many clients compute at once because it is the same, compared with each client
alone."""

from collections import Counter
from dataclasses import fields, replace

import pytest
import torch

from fedloom import TDCD, Run, Task, mlp, partition
from fedloom.algorithms.shared import local
from fedloom.algorithms.shared.protection import SHIELDED
from fedloom.algorithms.shared.tiered import MODEL, UPDATE
from fedloom.algorithms.tdcd import EMBEDDING, HUB_EMBEDDING, REST
from fedloom.core import tree
from fedloom.core.registry import algorithms
from fedloom.engines.limits import Limits
from fedloom.engines.stacked import pooling
from fedloom.engines.stacked.pooling import rows_of, rows_of_mean
from fedloom.fabric.local_work import in_shares
from fedloom.fabric.schedule import Drawn, Moment, Scripted
from fedloom.testing import sample_of
from fedloom.testing.samples import examples_of


def federation(rows=60, clients=(4, 7)):
    draw = torch.Generator().manual_seed(0)
    x = {f"s{j}": torch.randn(rows, 5, generator=draw) for j in range(len(clients))}
    labels = torch.randint(3, (rows,), generator=draw)
    return partition(x, labels, {f"s{j}": k for j, k in enumerate(clients)})


def task(alike=True):
    blocks = {"s0": mlp(5, [6], 3), "s1": mlp(5, [6] if alike else [4], 3)}
    return Task(blocks, "cross-entropy")


POOLED = Limits(few_rows=0)  # however few rows a silo has


def both(rule, what, rows, **options):
    """The same run on both engines."""
    made = {"precision": "float64", "seed": 3, "limits": POOLED, **options}
    return [Run(rule, what, rows, engine=name, **made) for name in ("stacked", "reference")]


def apart(fast, plain, rounds):
    """The largest difference of blocks after some rounds; ledgers must be equal."""
    for run in (fast, plain):
        run.fit(rounds)
    pooled_chunks = [run.algorithm.blocks(run.fed, run.state) for run in (fast, plain)]
    assert list(fast.ledger) == list(plain.ledger)
    return tree.largest_difference(*pooled_chunks)


@pytest.fixture
def pooled(monkeypatch):
    """The pooled chunks that were computed: silos, rows, and whether for a mean."""
    pooled_chunks = []

    class Noted(pooling.Pooling):
        def chunks(self, pieces):
            for chunk in super().chunks(pieces):
                pooled_chunks.append(
                    (chunk.silos, chunk.pool.at.shape[1], chunk.pool.weights is not None)
                )
                yield chunk

    monkeypatch.setattr("fedloom.engines.stacked.plan.Pooling", Noted)
    return pooled_chunks


SETTINGS = {
    "plain": {},
    "l2": {"l2": 0.3},
    "all rows": {"batch": None},
    "fresh": {"minibatch": "fresh"},
    "few rows, many clients without": {"batch": 3, "l2": 0.3},
}


@pytest.mark.parametrize("schedule", [None, Drawn(0.6, seed=2)], ids=["all there", "some away"])
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "different silos"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_one_step_of_all_clients_at_once(pooled, settings, alike, schedule):
    rule = TDCD(**{"local_steps": 1, "lr": 0.3, "batch": 17, **settings})
    assert apart(*both(rule, task(alike), federation(), schedule=schedule), 12) < 1e-12
    assert {mean for _, _, mean in pooled} == {False, True}
    if schedule is None:
        assert {len(silos) for silos, _, _ in pooled} == ({2} if alike else {1})


def test_in_pieces(pooled):
    fast, plain = both(TDCD(local_steps=1, lr=0.3, batch=17, l2=0.1), task(), federation())
    for silo, sizing in fast.fed._sizing.items():
        fast.fed._sizing[silo] = replace(
            sizing, limits=replace(POOLED, piece=5 * sizing.row, chunk=5 * sizing.row)
        )
    assert apart(fast, plain, 5) < 1e-12
    assert max(size for _, size, _ in pooled) <= 5


EMBEDDINGS = {
    "fedbcd",
    "splitnn",
    "splitnn-async",
    "splitnn-u",
    "tdcd",
    "tdcd-private-labels",
    "vafl",
}
MEANS = {"alone", "fedavg", "fedbcd", "splitnn-async", "tdcd", "vafl"}


@pytest.mark.parametrize("name", sorted(algorithms))
def test_every_algorithm_with_one_step(pooled, name):
    """Also algorithms without a step that can be pooled."""
    for example in examples_of(algorithms[name]):
        steps = {field.name: 1 for field in fields(example) if field.name == "local_steps"}
        rule = replace(example, **steps)
        assert apart(*both(rule, *sample_of(rule)), 3) < 1e-10
    means = {mean for _, _, mean in pooled}
    assert (False in means, True in means) == (name in EMBEDDINGS, name in MEANS)


def test_where_it_does_not_hold_it_is_not_done(pooled):
    """Several steps, weighted clients, or a user's own chunk."""
    for settings, options in [
        ({"local_steps": 2}, {}),
        ({"local_steps": 1, "weighting": "rows"}, {}),
        ({"local_steps": 1}, {"chunk": 3}),
    ]:
        pooled.clear()
        rule = TDCD(**{"lr": 0.3, "batch": 17, **settings})
        Run(rule, task(), federation(), limits=POOLED, **options).fit(2)
        assert not any(mean for _, _, mean in pooled)
        assert bool(pooled) == ("chunk" not in options)  # embeddings may be


def test_work_must_say_that_it_may_be_pooled():
    run = Run(TDCD(lr=0.3, batch=17), task(), federation())
    fed, part = run.fed, run.fed.part
    fed.begin(0)
    batch_k, rows = fed.minibatch(torch.arange(17))
    theta_k = fed.to_clients(MODEL, run.algorithm.start(fed).theta)

    def own(part, theta, batch):
        return local.embed(part, theta, batch)

    said = fed.at_clients(local.embed, part, theta_k, batch_k)
    assert rows_of(said) is rows
    assert rows_of_mean(said) is None
    assert rows_of(fed.at_clients(own, part, theta_k, batch_k)) is None
    has_rows = fed.hold(theta_k)  # each client's own
    assert rows_of(fed.at_clients(local.embed, part, has_rows, batch_k)) is None
    other, _ = fed.minibatch(torch.arange(17))
    both_k = fed.at_clients(local.embed, part, theta_k, batch_k, other)
    assert rows_of(both_k) is None


def test_a_mean_of_those_who_have_none_of_the_rows(pooled):
    """The clients with rows are absent. The others are present and take no step: their mean is the
    hub's value."""
    data, rule, pooled_chunks = federation(), TDCD(local_steps=1, lr=0.3, batch=5), []
    (own, *_), (first, *_) = data.held("s0").values(), data.held("s1").values()
    gone = Scripted({Moment(0): {"s0": ["0"], "s1": ["0"]}})
    ids = torch.tensor([row for row in own.tolist() if row in first.tolist()])
    assert len(ids)
    for run in both(rule, task(), data, schedule=gone):
        fed, theta = run.fed, rule.start(run.fed).theta
        fed.begin(0)
        batch_k, _ = fed.minibatch(ids, 1)
        rest_k = fed.at_clients(local.nothing_from_others, fed.part, batch_k)
        lr = fed.known(torch.tensor([0.3], dtype=fed.dtype))
        given = fed.part, fed.to_clients(MODEL, theta), rest_k, batch_k, lr
        trained_k = fed.at_clients(rule.local_sgd, *given, steps=1)
        nothing = fed.place_hubs(tree.map_tensors(torch.zeros_like, theta.held()))
        mean = fed.read(fed.mean(UPDATE, trained_k, otherwise=nothing))
        assert tree.largest_difference(mean, fed.read(theta)) < 1e-12
        pooled_chunks.append(mean)
    assert tree.largest_difference(*pooled_chunks) < 1e-12
    assert {mean for _, _, mean in pooled} == {True}


@in_shares
def by_both(part, theta, rest, batch):
    """A step by the rows that count, compared with one by all of a client's rows."""
    counting = local.mean_over(rest.mask, batch.y.double())
    more = 10 * local.mean_over(batch.mask, batch.y.double())
    return tree.map_tensors(lambda a: a + counting + more, theta)


def test_rows_that_count_and_rows_that_are_there(pooled):
    """A client of the other silo is absent: its rows are present, but do not count."""
    rule, pooled_chunks = TDCD(local_steps=1, lr=0.3, batch=17), []
    gone = Scripted({Moment(0): {"s1": ["1", "4"]}})
    for run in both(rule, task(), federation(), schedule=gone):
        fed, theta = run.fed, rule.start(run.fed).theta
        fed.begin(0)
        batch_k, rows = fed.minibatch(torch.arange(30), 1)
        theta_k = fed.to_clients(MODEL, theta)
        phi = fed.gather(EMBEDDING, fed.at_clients(local.embed, fed.part, theta_k, batch_k), rows)
        rest = fed.at_hubs(local.sum_of_others, fed.part, fed.exchange(HUB_EMBEDDING, phi))
        rest_k = fed.scatter(REST, rest, rows)
        new_k = fed.at_clients(by_both, fed.part, theta_k, rest_k, batch_k, steps=1)
        pooled_chunks.append(fed.read(fed.mean(UPDATE, new_k, otherwise=theta)))
    assert tree.largest_difference(*pooled_chunks) < 1e-12
    assert True in {mean for _, _, mean in pooled}


# Clients without rows


@pytest.mark.parametrize("schedule", [None, Drawn(0.6, seed=2)], ids=["all there", "some away"])
@pytest.mark.parametrize("weighting", ["uniform", "rows", "participants"])
def test_one_client_without_rows_stands_for_all(monkeypatch, weighting, schedule):
    rule = TDCD(local_steps=3, lr=0.3, batch=4, l2=0.2, weighting=weighting)
    fast, plain = both(rule, task(), federation(clients=(20, 30)), schedule=schedule)
    computed, call = Counter(), fast.fed._chunk_sums

    def noted(kind, chunk, *more):
        computed[fast.fed.round] += len(chunk.places)
        return call(kind, chunk, *more)

    monkeypatch.setattr(fast.fed, "_chunk_sums", noted)
    assert apart(fast, plain, 8) < 1e-12
    assert len(computed) == 8
    assert max(computed.values()) <= 2 * (4 + 1)  # rows of each silo, and one without


@pytest.mark.parametrize("budget", [1, 900, 1500])
@pytest.mark.parametrize("weighting", ["uniform", "rows"])
def test_it_stands_for_them_in_one_of_several_chunks(weighting, budget):
    """Sums of chunks with and without weights, in any order."""
    rule = TDCD(local_steps=2, lr=0.3, batch=5, weighting=weighting)
    runs = both(rule, task(), federation(clients=(9, 12)), limits=Limits(chunk=budget))
    assert apart(*runs, 12) < 1e-12


def test_clients_that_draw_noise_are_all_computed():
    """Also those without rows, each of which has its own."""
    rule = TDCD(local_steps=3, lr=0.3, batch=4, privacy=SHIELDED)
    assert apart(*both(rule, task(), federation(clients=(20, 30))), 4) < 1e-12
