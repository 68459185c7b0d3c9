"""`python -m benchmarks.few_rows`: rounds of clients with few rows, side by side: with steps by
products of rows, with plain steps, and compiled."""

from __future__ import annotations

import torch

from fedloom import mlp
from fedloom.engines.limits import Limits

from .cases import MLP, RIDGE
from .rivals import rounds_of
from .timing import commit, duration, machine, side_by_side

CASES = (
    RIDGE.with_(clients=1000),
    *(MLP.with_(clients=k) for k in (10, 50, 1000)),
    MLP.with_(name="MLP 784-32-10", silos=2, clients=1000, shape=(784,), block=mlp(784, [32], 10)),
)


PLAIN = Limits(columns_per_row=10**9)  # no rows are few


def main() -> None:
    torch.set_num_threads(2)
    print(f"{machine()}; commit {commit()}")
    for case in CASES:
        rows, calls = case.placement(), {}
        calls["few"] = rounds_of(case.run(rows, compile=False))
        calls["plain"] = rounds_of(case.run(rows, compile=False, limits=PLAIN))
        calls["compiled"] = rounds_of(case.run(rows, compile=True))
        best = side_by_side(calls, 5)
        print(
            f"| {case.name}, N {case.silos} K {case.clients} B {case.batch} Q {case.steps} "
            f"| {duration(best['few'])} | {duration(best['plain'])} | {duration(best['compiled'])} "
            f"| **{best['few'] / best['plain']:.2f}** "
            f"| **{best['compiled'] / best['few']:.2f}** |",
            flush=True,
        )


if __name__ == "__main__":
    main()
