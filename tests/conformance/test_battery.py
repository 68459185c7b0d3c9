"""Every registered algorithm passes every check of the battery."""

import pytest
from personal import Personal

import fedloom.algorithms  # noqa: F401  (registers them)
from fedloom.registry import algorithms
from fedloom.testing import CHECKS

# One with state held at clients, as another package would bring it.
THIRD_PARTY = [pytest.param(example, id="personal") for example in Personal.examples()]

CASES = THIRD_PARTY + [
    pytest.param(example, id=f"{name}-{number}")
    for name in algorithms
    for number, example in enumerate(algorithms[name].examples())
]


@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
@pytest.mark.parametrize("algorithm", CASES)
def test_battery(algorithm, check):
    check(algorithm)
