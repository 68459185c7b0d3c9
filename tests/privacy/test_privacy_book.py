"""The book of a budget: how often rows leave their client and are worked on, counted here from the
minibatches alone; and what that comes to."""

import math

import pytest
import torch

from fedloom import TDCD, Run
from fedloom.algorithms import VAFL, FedBCD
from fedloom.algorithms.shared import local
from fedloom.algorithms.shared.local import Shield
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.placed import Batch, Rows
from fedloom.privacy.settings import Privacy
from fedloom.testing import placement, task

NOISY = Privacy("trained", clip=1.0, noise=3.0, gradient_clip=1.0, gradient_noise=5.0)
ROUNDS, Q, BATCH = 3, 2, 12
SETTINGS = {"lr": 0.1, "local_steps": Q, "batch": BATCH, "privacy": NOISY}


def times_drawn(run, count):
    """How often each row is in the minibatches of all rounds, `count` in each."""
    size = run.fed.size
    times = torch.zeros(size, dtype=torch.int64)
    for round in range(ROUNDS):
        for number in range(count):
            rows = run.fed.streams.common("minibatch", round, number).sample(size, BATCH)
            times += torch.bincount(torch.from_numpy(rows), minlength=size)
    return times


@pytest.mark.parametrize(
    ("algorithm", "minibatches", "again", "steps"),
    [
        (TDCD(**SETTINGS), 1, 1, Q),
        (TDCD(**SETTINGS, minibatch="fresh"), Q, 1, 1),
        (FedBCD(**SETTINGS), 1, 1, Q),
        (FedBCD(**SETTINGS, minibatch="fresh", updates="frozen-gradient"), Q, 1, 1),
        (FedBCD(**SETTINGS, order="sequential"), 1, 2, Q),
        (VAFL(**SETTINGS, group=3, prime=False), 1, 1, Q),
    ],
    ids=["reused", "fresh", "fedbcd", "fedbcd, fresh", "fedbcd, in turn", "vafl"],
)
def test_releases_and_steps_of_every_row(algorithm, minibatches, again, steps):
    """In turn, all silos but the last send their embeddings a second time."""
    run = Run(algorithm, task(), placement(), precision="float64", seed=3).fit(ROUNDS)
    times, mus = times_drawn(run, minibatches), {}
    for silo in run.fed.silos:
        sent, worked = run.fed.releases.of(silo)
        twice = 1 if silo == run.fed.silos[-1] else again
        assert torch.equal(sent, twice * times)
        assert torch.equal(worked, steps * times)
        mus[silo] = (sent * (2 * 1.0 / 3.0) ** 2 + worked * (2 / 5.0) ** 2).double().sqrt()
    summary = run.add_record().privacy
    assert summary["releases"] == again * int(times.max())
    assert summary["mu"] == pytest.approx(max(float(mu.max()) for mu in mus.values()))
    assert summary["mu_mean"] == pytest.approx(sum(float(mu.mean()) for mu in mus.values()) / 3)
    whole = torch.stack(list(mus.values())).square().sum(0).max()
    assert summary["mu_total"] == pytest.approx(math.sqrt(float(whole)))


@pytest.mark.parametrize("steps", [1, 5])
def test_noise_that_is_left_to_choose_uses_the_budget_up(steps):
    """Where the gradients' noise is given: 7 releases, each with so many local steps."""
    rest = Privacy("trained", 2.0, gradient_clip=1.0, gradient_noise=20.0, mu=1.5, releases=7)
    scales = rest.scales(steps)
    assert 7 * (2 * 2.0 / scales.noise) ** 2 + 7 * steps * (2 / 20.0) ** 2 == pytest.approx(1.5**2)


def test_a_budget_ends_where_it_ends():
    Privacy("frozen", clip=1.0, noise=1.0, mu=2.0).check()  # used up exactly by one release
    with pytest.raises(SettingError, match="spent before the first round"):
        Privacy("frozen", clip=1.0, noise=1.0, mu=2.0 - 1e-6).check()
    scales = Privacy("frozen", clip=1.0, noise=1.0, mu=2.0).scales(1)
    assert not scales.exceeds(2.0)
    assert scales.exceeds(2.0 + 1e-6)


@pytest.mark.parametrize("prox", [0.0, 0.8])
def test_every_local_step_has_noise_of_its_own(prox):
    """Of gradients that are zero only the noise is left: `gradient_clip` times its scale, over the
    rows that count, and for each step another line of it; and the pull back to the start."""
    run = Run(TDCD(**SETTINGS), task(), placement(), precision="float64")
    part = run.fed.parts.value["ash"]
    theta = part.initial(run.fed.streams)
    counts = torch.tensor([True, False, True, True])
    batch = Batch(run.placement.x["ash"][:4].double(), run.placement.y["ash"][:4], counts)
    given = Rows(torch.zeros(4, part.shapes.joint, dtype=torch.float64), counts)
    size = sum(a.numel() for a in tree.tensors(theta))
    lines = torch.randn(3, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    lr = torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64)

    def nothing(theta, part, rest, batch):
        loss, statistics = local.local_loss(theta, part, rest, batch)
        return 0.0 * loss, statistics

    shield = Shield(0.4, 7.0, lines)
    new = local.sgd(nothing, part, theta, given, batch, lr, 0.0, prox=prox, shield=shield)
    start, noises = (
        torch.cat([a.flatten() for a in tree.tensors(noise)]) for noise in (theta, new)
    )
    wanted = start.clone()
    for eta, line in zip(lr, lines, strict=True):
        wanted -= eta * (0.4 * 7.0 / 3 * line + prox * (wanted - start))
    assert torch.allclose(noises, wanted, atol=1e-12)
