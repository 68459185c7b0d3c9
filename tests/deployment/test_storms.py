"""Storms: parties are killed again and again, and what the hubs recorded is what happened."""

import random

import pytest

from benchmarks.kills import CASES, run_file
from benchmarks.storms import SKIP, Storm
from fedloom.config.runfile import RunFile
from fedloom.core.registry import algorithms
from fedloom.deployment.rehearsal import Rehearsal
from tests.deployment.test_skipping import PRIVATE


def storm(folder, file, kills, seed):
    outcome = Storm(Rehearsal(file, folder / "rehearsal", SKIP), kills, random.Random(seed)).blow()
    assert outcome.kills >= kills
    assert outcome.same_ledger
    assert outcome.difference == 0
    return outcome


def test_there_is_one_for_every_algorithm():
    assert {run_file(case, 1).values["algorithm"]["name"] for case in CASES} == set(algorithms)


def test_a_short_one(tmp_path):
    storm(tmp_path, RunFile.parse(PRIVATE.replace("40", "120")), 6, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES)
def test_every_algorithm(tmp_path, case):
    outcome = storm(tmp_path, run_file(case, 400), 25, seed=1)
    assert outcome.hubs
    assert outcome.absences
