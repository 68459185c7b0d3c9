"""Perturbed embeddings: settings, accounting, noise, budgets. The distinguishing game is in
tests/papers/test_distinguishing.py."""

import json
import math

import dp_accounting
import pytest
import torch
from dp_accounting import pld
from torch import nn

from fedloom import TDCD, Partition, Run, Task, load_dataset, load_model
from fedloom.algorithms.fedbcd import FedBCD
from fedloom.algorithms.vafl.vafl import VAFL
from fedloom.core import tree
from fedloom.core.errors import HaltedWarning, ModelError, SettingError
from fedloom.core.placed import Noise
from fedloom.models.clipping import Guarded
from fedloom.privacy.accounting import epsilon_of, mu_of
from fedloom.privacy.settings import HEURISTIC, Privacy
from fedloom.records.checkpoint import load_checkpoint, save_checkpoint
from fedloom.testing import placement, sample_of, task
from fedloom.testing.samples import examples_of

TRAINED = Privacy("trained", clip=1.0, noise=1.0, gradient_clip=1.0, gradient_noise=2.0)
NOISE_ONLY = Privacy("noise-only", clip=1.0, noise=0.5)
FROZEN = Privacy("frozen", clip=1.0, noise=0.5)


def tdcd(privacy, **more):
    return TDCD(**{"local_steps": 2, "lr": 0.2, "batch": 12, **more}, privacy=privacy)


def iris():
    return Partition(silos=["left", "right"], clients=2).place(load_dataset("iris"))


def run_of(algorithm, head=False, **more):
    return Run(algorithm, *sample_of(algorithm, head=head), precision="float64", seed=3, **more)


# Accounting


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_mu_and_epsilon_are_those_of_dp_accounting(mu):
    """Against its PLD accountant, which doubles for REPLACE_ONE itself: noise c/C = 2/mu."""
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(2 / mu))
    assert epsilon_of(mu, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-4)
    assert mu_of(epsilon_of(mu, 1e-5), 1e-5) == pytest.approx(mu, rel=1e-6)


def test_the_composition_is_dp_accountings():
    """T releases and T Q steps, composed one by one."""
    releases, steps, noise, gradient = 3, 6, 4.0, 9.0
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(noise / 1.0), releases)
    accountant.compose(dp_accounting.GaussianDpEvent(gradient), steps)
    privacy = Privacy("trained", 1.0, noise, gradient_clip=5.0, gradient_noise=gradient)
    mu = float(privacy.scales(2).mu(torch.tensor(releases), torch.tensor(steps)))
    assert epsilon_of(mu, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize("steps", [1, 5])
def test_noise_from_a_target_uses_it_up(steps):
    targeted = Privacy("trained", 2.0, gradient_clip=1.0, mu=1.5, releases=7)
    scales = targeted.scales(steps)
    assert 7 * scales.release + 7 * steps * scales.step == pytest.approx(1.5**2)
    assert scales.release == pytest.approx(steps * scales.step)  # half on gradients
    same = Privacy("trained", 2.0, gradient_clip=1.0, epsilon=epsilon_of(1.5, 1e-5), releases=7)
    assert same.scales(steps).noise == pytest.approx(scales.noise, rel=1e-6)
    once = Privacy("frozen", 2.0, mu=0.5).scales(steps)
    assert once.noise == pytest.approx(2 * 2.0 / 0.5)
    rest = Privacy("trained", 2.0, scales.noise, gradient_clip=1.0, mu=1.5, releases=7)
    assert rest.scales(steps).gradient_noise == pytest.approx(scales.gradient_noise)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mode": "freezing", "noise": 1.0, "clip": 1.0}, "known: frozen"),
        ({"mode": "frozen", "noise": 1.0}, "noise without clipping .* give clip"),
        ({"mode": "trained", "noise": 1.0, "gradient_clip": 1.0}, "noise without clipping"),
        ({"mode": "noise-only", "noise": 1.0, "mu": 1.0}, "noise without clipping"),
        ({"mode": "trained", "noise": 1.0, "clip": 1.0}, "give gradient_clip"),
        ({"mode": "noise-only", "clip": 1.0}, "give the noise, or a budget"),
        ({"mode": "noise-only", "clip": 1.0, "mu": 1.0}, "how often a row may be sent"),
        ({"mode": "frozen", "clip": 1.0, "noise": 1.0, "mu": 1.9}, "spent before the first round"),
        ({"mode": "frozen", "clip": 1.0, "mu": 1.0, "epsilon": 1.0}, "give only one of them"),
        ({"mode": "frozen", "clip": 1.0, "noise": -1.0}, "Privacy: noise must be above 0"),
        ({"mode": "frozen", "clip": 1.0, "epsilon": 1.0, "delta": 1.0}, "delta"),
        ({"mode": "frozen", "clip": 1.0, "noise": 1.0, "gradient_clip": 1.0}, "is for mode"),
        (
            {
                "mode": "trained",
                "clip": 1.0,
                "noise": 1.0,
                "gradient_clip": 1.0,
                "mu": 2.1,
                "releases": 2,
            },
            "spent by 2 releases",
        ),
    ],
)
def test_what_cannot_be_accounted_for_is_refused(settings, says):
    with pytest.raises(SettingError, match=says):
        Run(tdcd(Privacy(**settings)), task(head=True), placement())


def test_frozen_without_a_head_trains_nothing():
    with pytest.raises(ModelError, match="give the model an embedding and a head"):
        run_of(tdcd(FROZEN))


# The block


def test_rows_are_clipped_and_noise_comes_before_the_last_activation():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.ReLU())
    guarded, x = Guarded(block, 0.1), torch.randn(6, 4)
    normal, uniform = torch.randn(6, 3), torch.rand(6, 5)
    before = block[2](torch.tanh(block[0](x) + uniform))
    clipped = before * (0.1 / before.norm(dim=1, keepdim=True)).clamp(max=1)
    rows = guarded(x, Noise(normal, uniform))
    assert torch.allclose(rows, torch.relu(clipped + normal))
    assert guarded.body(x).norm(dim=1).min() > 0.1  # clipping had something to do
    assert guarded.sizes(x, True) == (3, 5)
    assert guarded.sizes(x, False) == (3, 0)
    with pytest.raises(ModelError, match="earlier layers"):
        Guarded(nn.Linear(4, 3), 1.0).sizes(x, True)


def test_uniform_noise_reaches_the_embeddings():
    rows = iris()
    plain = Privacy("noise-only", clip=1.0, noise=1e-9)
    shaken = Privacy("noise-only", clip=1.0, noise=1e-9, uniform=0.5)
    first, second = (
        Run(tdcd(privacy), Task.of(rows, "mlp", hidden=[5]), rows, precision="float64").fit(2)
        for privacy in (plain, shaken)
    )
    assert tree.largest_difference(first.snapshot().state, second.snapshot().state) > 1e-3


# Noise


def test_noise_has_the_scale_it_claims():
    run = run_of(tdcd(NOISE_ONLY))
    ids = torch.arange(run.fed.size)
    _, where = run.fed.minibatch(ids)
    sizes = dict.fromkeys(run.fed.silos, (400, 50))
    noise = run.fed.read(run.fed.row_noise(where, ids, sizes))
    normal = torch.cat([own.normal.flatten() for own in noise.values()])
    uniform = torch.cat([own.uniform.flatten() for own in noise.values()])
    normal, uniform = normal[normal != 0], uniform[uniform != 0]  # without padding
    assert normal.mean().abs() < 5 / math.sqrt(len(normal))
    assert normal.std() == pytest.approx(1, abs=5 / math.sqrt(2 * len(normal)))
    assert uniform.abs().max() < 1
    assert uniform.var() == pytest.approx(1 / 3, abs=0.05)


def test_clients_draw_from_streams_of_their_own():
    run = run_of(tdcd(NOISE_ONLY))
    run.fed.begin(0)
    ids, sizes = torch.arange(run.fed.size), dict.fromkeys(run.fed.silos, (8,))
    noise = run.fed.read(run.fed.noise(ids, 1, sizes))
    again = run.fed.read(run.fed.noise(ids, 1, sizes))
    rows = [tuple(value.tolist()) for value in (*noise.values(), *again.values())]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("kind", [TDCD, VAFL])
def test_a_frozen_row_is_released_once(kind):
    """The same noisy embedding every time, so one release is all that is spent; blocks stay."""
    run = run_of(kind(lr=0.2, batch=12, local_steps=2, privacy=FROZEN), head=True).fit(1)
    before = run.algorithm.blocks(run.fed, run.state)
    run.fit(6)
    after = run.algorithm.blocks(run.fed, run.state)
    for silo in before:
        assert tree.largest_difference(before[silo].block, after[silo].block) == 0
        assert tree.largest_difference(before[silo].head, after[silo].head) > 1e-6
        assert int(run.fed.releases.of(silo)[0].max()) == 1
    summary = run.add_record().privacy
    assert summary["mu"] == pytest.approx(2 * 1.0 / 0.5)
    assert summary["guarantee"]


@pytest.mark.parametrize("kind", [TDCD, FedBCD, VAFL])
def test_releases_are_counted_as_they_are_sent(kind):
    """By listening: the rows in the messages that clients send."""
    algorithm = examples_of(kind)[1]
    run = run_of(algorithm, engine="reference")
    seen = dict.fromkeys(run.fed.silos, 0)
    send = run.fed._transport.send

    def listening(message):
        if message.kind == "embedding":
            seen[message.source.silo] += len(message.payload)
        send(message)

    run.fed._transport.send = listening
    run.fit(3)
    assert seen == {silo: int(run.fed.releases.of(silo)[0].sum()) for silo in run.fed.silos}
    assert all(seen.values())


CALLED = {"lr": 0.1, "batch": 12, "privacy": TRAINED, "visits": 9, "max_delay": 1}


@pytest.mark.parametrize(
    "algorithm",
    [
        *(examples_of(kind)[1] for kind in (TDCD, FedBCD, VAFL)),
        VAFL(**CALLED),
        VAFL(**CALLED, group=2),
        tdcd(TRAINED, minibatch="fresh"),
    ],
    ids=["tdcd", "fedbcd", "vafl", "called", "called in groups", "fresh"],
)
def test_a_round_releases_no_more_than_was_foreseen(algorithm):
    """A budget is only as good as this bound."""
    run = run_of(algorithm)
    for round in range(4):
        before = {j: run.fed.releases.of(j) for j in run.fed.silos}
        bounds = algorithm.exposure(run.fed, round)
        run.fit(round + 1)
        for silo, was in before.items():
            for new, old, bound in zip(run.fed.releases.of(silo), was, bounds, strict=True):
                assert bool((new - old <= bound).all())


def test_gradients_are_clipped_row_by_row():
    """Without noise, it is the mean of the rows' clipped gradients; also in a plain loop."""
    from fedloom.algorithms.shared import local
    from fedloom.algorithms.shared.local import Shield, private_gradient
    from fedloom.core.placed import Batch, Rows

    run = run_of(tdcd(TRAINED))
    part = run.fed.parts.value["ash"]
    theta = part.initial(run.fed.streams)
    x, y = run.placement.x["ash"][:5].double(), run.placement.y["ash"][:5]
    counts = torch.tensor([True, True, False, True, True])
    noise = torch.Generator().manual_seed(0)
    given = torch.randn(5, part.shapes.joint, dtype=torch.float64, generator=noise)
    rest = Rows(given, counts)
    batch = Batch(x, part.loss.labels(y, torch.float64), rest.mask)
    count = sum(a.numel() for a in tree.tensors(theta))
    normals = torch.randn(1, count, dtype=torch.float64)
    total, norms = 0.0, []
    for i in (0, 1, 3, 4):
        row = Rows(rest.value[i : i + 1], rest.mask[i : i + 1])
        own = Batch(batch.x[i : i + 1], batch.y[i : i + 1], row.mask)
        gradient, _ = torch.func.grad(local.local_loss, has_aux=True)(theta, part, row, own)
        flat = torch.cat([a.flatten() for a in tree.tensors(gradient)])
        norms.append(float(flat.norm()))
        total = total + flat * min(1.0, 1.0 / norms[-1])
    assert min(norms) < 1.0 < max(norms)
    wanted = (total + 1.0 * 3.0 * normals[0]) / 4
    shielded = private_gradient(
        local.local_loss, part, theta, rest, batch, Shield(1.0, 3.0, normals), 0
    )
    flat = torch.cat([a.flatten() for a in tree.tensors(shielded)])
    assert torch.allclose(flat, wanted, atol=1e-12)


# Budgets and records


def test_a_run_stops_before_it_exceeds_its_budget():
    budget = Privacy("trained", 1.0, gradient_clip=1.0, mu=1.0, releases=3)
    run = run_of(tdcd(budget))
    with pytest.warns(HaltedWarning, match="ends the run before round"):
        run.fit(1000, every=5)
    summary = run.records[-1].privacy
    assert run.records[-1].round == run.round < 1000
    assert summary["mu"] <= 1.0 + 1e-9
    assert int(max(run.fed.releases.of(j)[0].max() for j in run.fed.silos)) == 3
    assert summary["epsilon"] == pytest.approx(epsilon_of(summary["mu"], 1e-5))
    assert summary["mu_total"] == pytest.approx(math.sqrt(3) * summary["mu"])  # three silos alike
    assert run.halted is not None
    assert run_of(tdcd(TRAINED)).fit(run.round + 5).halted is None


def test_a_budget_survives_a_restart(tmp_path):
    budget = Privacy("trained", 1.0, gradient_clip=1.0, mu=1.0, releases=3)
    straight, stopped = run_of(tdcd(budget)), run_of(tdcd(budget))
    with pytest.warns(HaltedWarning):
        straight.fit(1000)
    stopped.fit(2)
    save_checkpoint(tmp_path / "c", stopped.snapshot(), [], 0.0)
    again = run_of(tdcd(budget))
    again.restore(load_checkpoint(tmp_path / "c").snapshot(again.blank()))
    with pytest.warns(HaltedWarning):
        again.fit(1000)
    assert again.round == straight.round
    assert tree.largest_difference(again.snapshot().state, straight.snapshot().state) == 0
    assert again.add_record().privacy == straight.add_record().privacy


def test_a_budget_that_ends_before_the_first_round():
    """Fresh minibatches can hold a row several times in one round."""
    budget = Privacy("trained", 1.0, gradient_clip=1.0, mu=1.0, releases=1)
    algorithm = tdcd(budget, minibatch="fresh", local_steps=8, batch=20)
    with pytest.raises(SettingError, match="nothing would be trained"):
        run_of(algorithm).fit(3)


def test_a_heuristic_says_so_in_every_record():
    run = run_of(tdcd(NOISE_ONLY)).fit(2, every=1)
    for record in run.records:
        summary = json.loads(json.dumps(record.to_json()))["privacy"]
        assert summary["guarantee"] is False
        assert summary["says"] == HEURISTIC
        assert "epsilon" not in summary
    unclipped = run_of(tdcd(Privacy("noise-only", noise=0.5))).fit(1)
    assert "mu" not in unclipped.add_record().privacy
    assert run_of(tdcd(None)).fit(1).add_record().privacy is None


def test_a_guarded_model_is_saved_and_loaded(tmp_path):
    data = iris()
    rows = data.train
    run = Run(tdcd(TRAINED), Task.of(data), data).fit(2)
    run.save(tmp_path / "model")
    assert torch.allclose(
        load_model(tmp_path / "model").predict(rows), run.predict(rows), atol=1e-6
    )
    own = {j: nn.Linear(x.shape[1], 3) for j, x in rows.x.items()}
    run = Run(tdcd(TRAINED), Task(own, "cross-entropy"), rows).fit(2)
    run.save(tmp_path / "own")
    again = load_model(tmp_path / "own", blocks=own)
    assert torch.allclose(again.predict(rows), run.predict(), atol=1e-6)
    assert float(run.predict().norm(dim=1).max()) <= 2 + 1e-5  # a sum of two clipped rows
