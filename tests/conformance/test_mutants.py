"""Proof that the battery can fail: each classic mistake is caught by the checks named here."""

from dataclasses import dataclass

import pytest
import torch

from fedloom.algorithms import TDCD, local
from fedloom.federation.placed import Rows
from fedloom.testing import CHECKS


def caught_by(algorithm):
    """Which checks fail."""
    caught = set()
    for name, check in CHECKS.items():
        try:
            check(algorithm)
        except AssertionError:
            caught.add(name)
    return caught


@dataclass(frozen=True)
class ForgetsAbsence(TDCD):
    """Steps on rows that another silo could not embed."""

    def local_sgd(self, part, theta, rest, batch, lr):
        return super().local_sgd(part, theta, rest._replace(mask=batch.mask), batch, lr)


@dataclass(frozen=True)
class ForgetsPadding(TDCD):
    """Steps on padding."""

    def local_sgd(self, part, theta, rest, batch, lr):
        everything = torch.ones_like(rest.mask)
        return super().local_sgd(part, theta, rest._replace(mask=everything), batch, lr)


@dataclass(frozen=True)
class AveragesEarly(TDCD):
    """Line 32 as printed: the mean of theta^t, before the last step."""

    def local_sgd(self, part, theta, rest, batch, lr):
        return super().local_sgd(part, theta, rest, batch, lr[:-1])


@dataclass(frozen=True)
class IgnoresRows(TDCD):
    """Says that clients are weighted by their rows, and counts them all alike."""

    def weigh(self, part, rows):
        return torch.ones_like(rows, dtype=part.shapes.dtype)


SETTINGS = {"local_steps": 3, "lr": 0.2, "batch": 12}


def test_the_original_passes():
    assert caught_by(TDCD(**SETTINGS)) == set()


@pytest.mark.parametrize(
    ("mutant", "checks"),
    [
        (ForgetsAbsence(**SETTINGS), {"absent_rows"}),
        (ForgetsPadding(**SETTINGS), {"engines_agree", "padding", "absent_rows"}),
        (AveragesEarly(**SETTINGS), {"twins"}),
        (IgnoresRows(**{**SETTINGS, "weighting": "rows"}), {"twins"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TDCD) else "",
)
def test_mutants_are_caught(mutant, checks):
    assert checks <= caught_by(mutant)


def test_exchanging_with_oneself_is_caught(monkeypatch):
    def sum_of_all(part, phis):
        mask = torch.stack([phi.mask for phi in phis.values()]).all(0)
        return Rows(sum(part.place(phi.value, silo) for silo, phi in phis.items()), mask)

    monkeypatch.setattr(local, "sum_of_others", sum_of_all)
    assert "twins" in caught_by(TDCD(**SETTINGS))
