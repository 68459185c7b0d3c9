"""Every registered algorithm passes every check of the battery."""

import pytest
from personal import Counting, Personal

import fedloom.algorithms  # noqa: F401  (registers them)
from fedloom.registry import algorithms
from fedloom.testing import CHECKS

# With state held at clients, as another package would bring them.
THIRD_PARTY = [
    pytest.param(example, id=kind.__name__.lower())
    for kind in (Personal, Counting)
    for example in kind.examples()
]

CASES = THIRD_PARTY + [
    pytest.param(example, id=f"{name}-{number}")
    for name in algorithms
    for number, example in enumerate(algorithms[name].examples())
]


@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
@pytest.mark.parametrize("algorithm", CASES)
def test_battery(algorithm, check):
    check(algorithm)
