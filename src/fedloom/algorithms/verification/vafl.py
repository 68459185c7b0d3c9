"""The cost of VAFL, and what the battery plays it with."""

from __future__ import annotations

from typing import Any

from ..central import Central
from ..fedbcd import FedBCD
from ..shared.protection import SHIELDED
from ..shared.step_sizes import InverseTime
from ..splitnn import SplitNN
from ..vafl.vafl import VAFL
from .battery_cases import Cases, Twin, cases


@cases.register(VAFL)
def vafl_cases(kind: type[VAFL]) -> Cases:
    examples = [
        kind(lr=0.3, batch=12),
        kind(lr=0.3, batch=12, max_delay=2, privacy=SHIELDED),
        kind(lr=0.3, batch=9, group=2, weighting="rows", l2=0.02, prime=False),
        kind(lr=0.3, batch=9, max_delay=2, visits=5, master_lr=0.1),
        kind(lr=InverseTime(1.0, 8.0), batch=None, group=3, labels_at="birch", max_delay=1),
    ]
    falling: dict[str, Any] = {"lr": InverseTime(1.0, 8.0), "batch": 9, "local_steps": 2}
    frozen = FedBCD(**falling, updates="frozen-gradient")
    split = SplitNN(**falling)
    sync = kind(lr=0.2, batch=9, l2=0.1, group=3, weighting="rows")
    once = Central(lr=0.2, batch=9, l2=0.1)
    fresh = kind(lr=0.2, batch=9, group=3, weighting="rows", visits=6, prime=False)
    headed = kind(lr=0.2, batch=9, group=3)
    twice = Central(lr=0.2, batch=9, local_steps=2, minibatch="fresh")
    twins = [
        Twin("t = M: SGD", sync, once, 3, None, complete=True),
        Twin("two turns of t = M", fresh, twice, 3, None, complete=True),
        Twin("with a head", headed, Central(lr=0.2, batch=9), 3, 1, head=True, complete=True),
        Twin("t = M, Q steps", kind(**falling, group=3), frozen, 3, None, complete=True),
        Twin("and a head", kind(**falling, group=3), split, 3, 1, head=True, complete=True),
    ]
    return Cases(examples, twins)
