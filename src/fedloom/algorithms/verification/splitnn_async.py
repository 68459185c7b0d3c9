"""The cost of asynchronous split learning, and what the battery plays it with."""

from __future__ import annotations

from typing import Any

from ..shared.step_sizes import InverseTime
from ..vafl.splitnn_async import SplitNNAsync
from ..vafl.vafl import VAFL
from .battery_cases import Cases, Twin, cases


@cases.register(SplitNNAsync)
def splitnn_async_cases(kind: type[SplitNNAsync]) -> Cases:
    examples = [
        kind(lr=0.2, batch=12, local_steps=3),
        kind(lr=0.2, batch=9, local_steps=2, weighting="rows", l2=0.02, labels_at="birch"),
    ]
    same: dict[str, Any] = {"lr": 0.2, "batch": 9, "local_steps": 3}
    rule: dict[str, Any] = {**same, "lr": InverseTime(1.0, 9.0)}
    slower = VAFL(**same, master_lr=0.2 / 3)
    falling = VAFL(**rule, master_lr=InverseTime(3 * 3.0, 9.0 / 3))  # of turns: Q steps each
    about = "VAFL with Q steps and a slower master"
    twins = [
        Twin(about, kind(**same), slower, 3, None, head=True),
        Twin(f"{about}, both slowing down", kind(**rule), falling, 3, None, head=True),
    ]
    return Cases(examples, twins)
