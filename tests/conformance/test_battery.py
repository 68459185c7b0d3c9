"""Every registered algorithm passes every check of the battery."""

import pytest

import fedloom.algorithms  # noqa: F401  (registers them)
from fedloom.core.registry import algorithms
from fedloom.testing import CHECKS, sample_of
from fedloom.testing.samples import examples_of
from tests.helpers.personal import Counting, Personal

# With state held at clients, as another package would bring them.
THIRD_PARTY = [
    (kind.__name__.lower(), number, example)
    for kind in (Personal, Counting)
    for number, example in enumerate(examples_of(kind))
]
REGISTERED = [
    (name, number, example)
    for name in algorithms
    for number, example in enumerate(examples_of(algorithms[name]))
]


def several_hubs(algorithm):
    """Whether there are hubs that must predict alike."""
    return algorithm.joint and len(sample_of(algorithm)[1].topology.silos) > 1


# An algorithm's first example takes every check. Of the others, those here are made each time, and
# the rest with `make slow`.
SECOND = {"engines_agree", "parties_alone", "ledgers", "resuming"}
LATER = {"engines_agree", "ledgers"}
CASES = [
    pytest.param(
        example,
        check,
        id=f"{name}-{number}-{word}",
        marks=[] if number == 0 or word in (SECOND if number == 1 else LATER) else pytest.mark.slow,
    )
    for name, number, example in THIRD_PARTY + REGISTERED
    for word, check in CHECKS.items()
    if word != "twins" or number == 0  # an algorithm's twins are the same for all its examples
    if word != "replicas" or several_hubs(example)
]


@pytest.mark.parametrize(("algorithm", "check"), CASES)
def test_battery(algorithm, check):
    check(algorithm)
