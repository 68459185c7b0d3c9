"""When training counts as diverged, and what is said then."""

import re
from dataclasses import replace

import pytest

from fedloom import TDCD, Central, Cosine, FedBCD, HubAdam, Relaxed, Run
from fedloom.core.errors import DivergedError, NotFiniteError
from fedloom.records.record import Record
from fedloom.runs.divergence import check_divergence, cure, divergence
from fedloom.testing import placement, task

ONE = Record(0, 0, None, 0.0, {}, 1.0, {})


def records(*losses):
    return [replace(ONE, round=5 * at, train_loss=loss) for at, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("losses", "bound", "words"),
    [
        ((1.0, 9.9), 10, None),
        ((1.0, 10.1), 10, r"10\.1, 10\.1 times its start \(1\)$"),
        ((2.0, 0.5, 30.0), 10, r"30, 15 times its start \(2\), after 0\.5 in round 5$"),
        ((2.0, 30.0, 1.0), 10, None),
        ((1.0, 1e9), None, None),
        ((1.0, float("nan")), None, r"is nan \(at the start 1\)"),
        ((1.0, 0.5, float("inf")), 10, "is inf.*after 0.5 in round 5"),
        ((0.0, 5.0), 10, None),
        ((5.0,), 10, None),
    ],
)
def test_the_rule(losses, bound, words):
    why = divergence(records(*losses), bound)
    assert (why is None) == (words is None)
    if words is not None:
        assert re.search(words, why)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (TDCD(lr=0.5, batch=9), ['try relaxation = "auto"', "1/3", "(now 0.5)", "(now 10)"]),
        (TDCD(hub=Relaxed("auto"), batch=9), ["smaller relaxation", "(now 0.333)"]),
        (TDCD(hub=HubAdam(0.2), batch=9), ["try a smaller lr in [algorithm.hub] (now 0.2)"]),
        (FedBCD(order="sequential", batch=9, lr=0.3), ["try a smaller lr (now 0.3)"]),
        (Central(lr=Cosine(0.4, steps=10), batch=9), ["try a smaller lr (now 0.4)"]),
    ],
)
def test_what_to_change_has_the_runs_own_numbers(algorithm, words):
    said = cure(Run(algorithm, task(), placement()))
    for word in words:
        assert word in said
    assert ("relaxation" in said) == isinstance(algorithm, TDCD) * (
        not isinstance(getattr(algorithm, "hub", None), HubAdam)
    )


def test_a_run_that_diverges():
    run = Run(TDCD(lr=200.0, batch=9), task(), placement()).fit(2, every=1, progress=False)
    with pytest.raises(DivergedError, match=r"round 2: training diverged: the training loss is"):
        check_divergence(run, 10)
    check_divergence(run, None)
    assert issubclass(NotFiniteError, DivergedError)
