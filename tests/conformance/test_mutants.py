"""Proof that the battery can fail: each classic mistake is caught by the checks named here."""

from dataclasses import dataclass

import pytest
import torch

from fedloom.algorithms import TDCD, VAFL, Central, InverseSqrt, SplitNNAsync, State, Twin
from fedloom.algorithms.shared import local
from fedloom.algorithms.shared.protection import Protection
from fedloom.algorithms.tdcd import EMBEDDING, HUB_EMBEDDING, REST, counted, share_head
from fedloom.algorithms.verification.battery_cases import Cases, cases
from fedloom.core import tree
from fedloom.core.placed import Rows
from fedloom.fabric.local_work import by_rows, in_shares
from fedloom.testing import CHECKS


def caught_by(algorithm, checks=tuple(CHECKS)):
    """Which of these checks fail."""
    caught = set()
    for name in checks:
        try:
            CHECKS[name](algorithm)
        except AssertionError:
            caught.add(name)
    return caught


@dataclass(frozen=True)
class ForgetsAbsence(TDCD):
    """Steps on rows that another silo could not embed."""

    def local_sgd(self, part, theta, rest, batch, *more):
        return super().local_sgd(part, theta, rest._replace(mask=batch.mask), batch, *more)


@dataclass(frozen=True)
class ForgetsPadding(TDCD):
    """Steps on padding."""

    def local_sgd(self, part, theta, rest, batch, *more):
        everything = torch.ones_like(rest.mask)
        return super().local_sgd(part, theta, rest._replace(mask=everything), batch, *more)


@dataclass(frozen=True)
class AveragesEarly(TDCD):
    """Line 32 as printed: the mean of theta^t, before the last step."""

    def local_sgd(self, part, theta, rest, batch, lr, *noise):
        return super().local_sgd(part, theta, rest, batch, lr[:-1], *noise)


@dataclass(frozen=True)
class IgnoresRows(TDCD):
    """Says that clients are weighted by their rows, and counts them all alike."""

    def weigh(self, part, rows):
        return torch.ones_like(rows, dtype=part.shapes.dtype)


@dataclass(frozen=True)
class CountsMaskedRows(TDCD):
    """Weighs clients by all their rows of the minibatch, also those that did not count."""

    def round(self, fed, state, draw):
        part, batch_k, rows = fed.part, draw.batch_k, draw.rows
        theta_k = self.to_clients(fed, state.theta, draw)
        phi = fed.gather(EMBEDDING, fed.at_clients(local.embed, part, theta_k, batch_k), rows)
        rest = fed.at_hubs(local.sum_of_others, part, fed.exchange(HUB_EMBEDDING, phi))
        rest_k = fed.scatter(REST, rest, rows)
        theta_k = fed.at_clients(self.local_sgd, part, theta_k, rest_k, batch_k, draw.lr)
        theta = self.average(fed, theta_k, state, fed.at_clients(counted, batch_k))
        return State(share_head(fed, theta))


@dataclass(frozen=True)
class HalvesHead(TDCD):
    """Replicas of the head that are equal, and wrong."""

    def round(self, fed, state, draw):
        new = super().round(fed, state, draw)
        return State(fed.at_hubs(self.half, new.theta))

    def half(self, theta):
        return theta._replace(head=tree.scale(theta.head, 0.5))


@dataclass(frozen=True)
class ConstantSteps(TDCD):
    """Uses the first step size of a round for all its steps."""

    def local_sgd(self, part, theta, rest, batch, lr, *noise):
        return super().local_sgd(part, theta, rest, batch, lr[:1].expand(len(lr)), *noise)


@cases.register(ConstantSteps)
def constant_steps_cases(kind):
    own, pooled = (made(local_steps=3, lr=InverseSqrt(0.3), batch=9) for made in (kind, Central))
    return Cases([], [Twin("N = K = 1", own, pooled, 1, 1)])


@dataclass(frozen=True)
class SaysByRows(TDCD):
    """Embeds rows less their client's mean, and says that rows are embedded by themselves."""

    @property
    def protection(self):
        return LessTheirMean(self.privacy, self.local_steps)


class LessTheirMean(Protection):
    @by_rows
    def release(self, part, theta, batch, noise):
        phi = super().release(part, theta, batch, noise)
        there = batch.mask[..., None]
        return phi - torch.where(there, phi, 0).sum(-2, keepdim=True) / there.sum().clamp(min=1)


@dataclass(frozen=True)
class SaysInShares(TDCD):
    """A step of a fixed length, which is not linear in its rows."""

    @in_shares
    def local_sgd(self, part, theta, *more):
        new = super().local_sgd(part, theta, *more)
        return tree.map_tensors(lambda a, b: a + (b - a).sign() * 0.1, theta, new)


class TurnsForSteps(VAFL):
    """A silo's step size follows the master's turns, of which each is Q steps."""

    def learn(self, silo, theta, visit, *more):
        turn = visit.turn / self.local_steps
        return super().learn(silo, theta, visit._replace(turn=turn), *more)


class TurnsForStepsAtTheMaster(VAFL):
    def master_lr_of(self, turn, silos):
        return super().master_lr_of(turn / self.local_steps, silos)


class TurnsForStepsAsync(SplitNNAsync):
    def master_lr_of(self, turn, silos):
        return super().master_lr_of(turn / self.local_steps, silos)


SETTINGS = {"local_steps": 3, "lr": 0.2, "batch": 12}


def test_the_original_passes():
    checks = {"absent_rows", "padding", "twins"}  # those that catch mutants; the battery has all
    assert caught_by(TDCD(**SETTINGS), checks) == set()
    for algorithm in (VAFL(batch=9), SplitNNAsync(batch=9)):
        assert caught_by(algorithm, {"twins"}) == set()


@pytest.mark.parametrize(
    ("mutant", "checks"),
    [
        (ForgetsAbsence(**SETTINGS), {"absent_rows"}),
        (ForgetsPadding(**SETTINGS), {"engines_agree", "padding", "absent_rows"}),
        (AveragesEarly(**SETTINGS), {"twins"}),
        (IgnoresRows(**{**SETTINGS, "weighting": "rows"}), {"twins"}),
        (CountsMaskedRows(**{**SETTINGS, "weighting": "rows"}), {"twins"}),
        (HalvesHead(**SETTINGS), {"twins"}),
        (ConstantSteps(**SETTINGS), {"twins"}),
        (SaysByRows(**SETTINGS), {"engines_agree"}),
        (SaysInShares(**{**SETTINGS, "local_steps": 1}), {"engines_agree"}),
        (TurnsForSteps(batch=9), {"twins"}),
        (TurnsForStepsAtTheMaster(batch=9), {"twins"}),
        (TurnsForStepsAsync(batch=9), {"twins"}),
    ],
    ids=lambda value: "" if isinstance(value, set) else type(value).__name__,
)
def test_mutants_are_caught(mutant, checks):
    assert checks <= caught_by(mutant, checks)


def test_exchanging_with_oneself_is_caught(monkeypatch):
    def sum_of_all(part, phis):
        mask = torch.stack([phi.mask for phi in phis.values()]).all(0)
        return Rows(sum(part.place(phi.value, silo) for silo, phi in phis.items()), mask)

    monkeypatch.setattr(local, "sum_of_others", sum_of_all)
    assert "twins" in caught_by(TDCD(**SETTINGS), ["twins"])
