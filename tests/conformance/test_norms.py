"""The battery once more, on blocks with BatchNorm.

Not `absent_rows`: a row that an absent client has in another silo counts in the statistics of the
exchange, where nobody knows of the absence yet. tests/models/test_batch_norm.py has what holds.
"""

from dataclasses import dataclass

import pytest

from fedloom import (
    TDCD,
    VAFL,
    Alone,
    Central,
    FedAvg,
    FedBCD,
    SplitNN,
    SplitNNAsync,
    TDCDPrivateLabels,
)
from fedloom.algorithms import Cases, cases
from fedloom.testing import CHECKS
from tests.helpers.norms import sample

FRESH = {"local_steps": 2, "lr": 0.2, "batch": 18, "minibatch": "fresh"}
PLAIN = {"local_steps": 2, "lr": 0.2, "batch": 18, "l2": 0.01}
SETTINGS = {
    TDCD: [PLAIN, {**FRESH, "weighting": "rows"}, {**PLAIN, "local_steps": 1}],
    TDCDPrivateLabels: [FRESH],
    FedBCD: [
        {**PLAIN, "prox": 0.3, "order": "sequential"},
        {**FRESH, "updates": "frozen-gradient"},
    ],
    SplitNN: [PLAIN],
    FedAvg: [FRESH],
    Alone: [{**PLAIN, "local_steps": 1}],
    Central: [PLAIN],
    VAFL: [{"lr": 0.2, "batch": 18, "max_delay": 1}],
    SplitNNAsync: [{"lr": 0.1, "batch": 18, "local_steps": 2}],
}


def with_norms(kind):
    """The algorithm, as the battery plays it on blocks with BatchNorm."""
    own = dataclass(frozen=True)(type(f"{kind.__name__}WithNorms", (kind,), {}))

    @cases.register(own)
    def own_cases(kind):
        def one_or_all(silos, clients, head):
            return sample(1 if kind.one_silo else silos, clients, head)

        return Cases([], sample=one_or_all)

    return own


EXAMPLES = [
    (f"{kind.__name__}-{number}", own(**settings), kind is TDCD and number == 0)
    for kind, every in SETTINGS.items()
    for own in [with_norms(kind)]
    for number, settings in enumerate(every)
]
LEFT_OUT = {"twins", "absent_rows"}
QUICK = {"engines_agree", "padding"}
ITEMS = [
    pytest.param(
        algorithm,
        check,
        id=f"{name}-{word}",
        marks=[] if whole or word in QUICK else pytest.mark.slow,
    )
    for name, algorithm, whole in EXAMPLES
    for word, check in CHECKS.items()
    if word not in LEFT_OUT
]


@pytest.mark.parametrize(("algorithm", "check"), ITEMS)
def test_battery(algorithm, check):
    check(algorithm)
