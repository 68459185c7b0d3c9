"""The table: a round against the floor and against a loop over copies of the module."""

from __future__ import annotations

import torch

from .cases import MLP, ON_CPU, RIDGE, Case
from .rivals import Rivals, rounds_of
from .timing import duration, side_by_side

HEADER = [
    "| case | floor | loop over copies | FedLoom | of the floor | wanted | x the loop | wanted |",
    "|---|---|---|---|---|---|---|---|",
]


def measure(
    case: Case, seconds: float, compiled: bool = True, loop: bool = True
) -> dict[str, float]:
    run = case.run()
    rivals = Rivals(case, run)
    calls = {"fedloom": rounds_of(run), "eager": rivals.floor()}
    if loop:
        calls["loop"] = rivals.loop()
    if compiled:
        try:
            quick = rivals.floor(compiled=True)
            quick()
            calls["compiled"] = quick
        except Exception as problem:  # no compiler here: the eager floor stands
            print(f"  torch.compile is not available: {type(problem).__name__}")
    best = side_by_side(calls, seconds)
    best["floor"] = min(best["eager"], best.get("compiled", best["eager"]))
    return best


def line(case: Case, best: dict[str, float]) -> str:
    which = "compiled" if best.get("compiled") == best["floor"] else "eager"
    return (
        f"| {case.name}, N {case.silos} K {case.clients} B {case.batch} Q {case.steps} "
        f"| {duration(best['floor'])} ({which}) | {duration(best['loop'])} "
        f"| {duration(best['fedloom'])} | **{best['fedloom'] / best['floor']:.2f}** "
        f"| <= {case.wanted} | **{best['loop'] / best['fedloom']:.1f}** | >= {case.wanted_loop} |"
    )


def table(seconds: float, compiled: bool = True, steps: int = 10) -> list[str]:
    lines = [*HEADER]
    for case in (case.with_(steps=steps) for case in ON_CPU):
        torch._dynamo.reset()
        lines.append(line(case, measure(case, seconds, compiled)))
        print(lines[-1], flush=True)
    return lines


def one_step(seconds: float, compiled: bool = True) -> list[str]:
    """Q = 1: one weighted shared step would do."""
    lines = ["| Q = 1 | floor | FedLoom | of the floor | wanted |", "|---|---|---|---|---|"]
    for case in ON_CPU:
        torch._dynamo.reset()
        best = measure(case.with_(steps=1), seconds, compiled, loop=False)
        ratio = best["fedloom"] / best["floor"]
        lines.append(
            f"| {case.name} | {duration(best['floor'])} | {duration(best['fedloom'])} "
            f"| **{ratio:.2f}** | <= 1.1 |"
        )
        print(lines[-1], flush=True)
    return lines


def clients(seconds: float) -> list[str]:
    """The same rows, more clients."""
    from .cases import CNN

    lines = ["| clients | fewer | more | ratio | wanted |", "|---|---|---|---|---|"]
    many = {"rows": 100_000, "batch": 2000, "weighting": "participants"}
    for case, few, more, wanted in (
        (RIDGE, 10, 1000, "1.5"),
        (MLP, 10, 1000, "1.5"),
        (CNN.with_(steps=2), 10, 500, "-"),
        (RIDGE.with_(**many), 1000, 100_000, "2"),
        (MLP.with_(**many), 1000, 100_000, "2"),
        (MLP.with_(**{**many, "weighting": "uniform"}), 1000, 100_000, "2"),
    ):
        calls = {str(k): rounds_of(case.with_(clients=k).run()) for k in (few, more)}
        best = side_by_side(calls, seconds)
        lines.append(
            f"| {case.name}, N {case.silos} B {case.batch} Q {case.steps}, {case.weighting} "
            f"| K {few}: {duration(best[str(few)])} | K {more}: {duration(best[str(more)])} "
            f"| **{best[str(more)] / best[str(few)]:.2f}** | <= {wanted} |"
        )
        print(lines[-1], flush=True)
    return lines
