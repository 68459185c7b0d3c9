"""`python -m benchmarks.few_rows`: rounds of clients with few rows, with steps by products of rows
with rows and with plain ones, side by side."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedloom import mlp
from fedloom.algorithms import fewrows

from .cases import MLP, RIDGE
from .rivals import rounds_of
from .timing import commit, machine, side_by_side, told

CASES = (
    RIDGE.with_(clients=1000),
    MLP.with_(clients=1000),
    MLP.with_(name="MLP 784-32-10", silos=2, clients=1000, shape=(784,), block=mlp(784, [32], 10)),
)


def plainly(round: Callable[[], None]) -> Callable[[], None]:
    """A round in which no rows are few."""

    def one() -> None:
        before, fewrows.FEWER = fewrows.FEWER, 10**9
        try:
            round()
        finally:
            fewrows.FEWER = before

    return one


def main() -> None:
    torch.set_num_threads(2)
    print(f"{machine()}; commit {commit()}")
    for case in CASES:
        short, plain = case.run(), case.run()
        calls = {"few": rounds_of(short)}
        before, fewrows.FEWER = fewrows.FEWER, 10**9
        calls["plain"] = plainly(rounds_of(plain))
        fewrows.FEWER = before
        best = side_by_side(calls, 5)
        print(
            f"| {case.name}, N {case.silos} K {case.clients} B {case.batch} Q {case.steps} "
            f"| {told(best['few'])} | {told(best['plain'])} "
            f"| **{best['few'] / best['plain']:.2f}** |",
            flush=True,
        )


if __name__ == "__main__":
    main()
