"""`python -m benchmarks.norms`: rounds of networks with BatchNorm and with GroupNorm (or without a
norm), side by side."""

from __future__ import annotations

import argparse

import torch

from fedloom import cnn, mlp, resnet18

from . import timing
from .cases import Case
from .rivals import rounds_of
from .timing import commit, duration, machine, side_by_side

IMAGES = {"shape": (3, 32, 32), "loss": "cross-entropy", "classes": 10, "rows": 1_000, "steps": 2}
TABLE = {"shape": (20,), "loss": "cross-entropy", "classes": 10}
CASES = {
    "ResNet18 width 8, N 2 K 4 B 160 Q 2": [
        Case("", 2, 4, 160, block=resnet18(3, 10, 8, norm=norm), **IMAGES)
        for norm in ("batch", "group")
    ],
    "CNN width 16, N 2 K 10 B 200 Q 2": [
        Case("", 2, 10, 200, block=cnn(3, (32, 32), 10, 16, norm=norm), **IMAGES)
        for norm in ("batch", "none")
    ],
    "MLP 20-32-10, N 2 K 20 B 400 Q 10": [
        Case("", 2, 20, 400, block=mlp(20, [32], 10, norm=norm), **TABLE)
        for norm in ("batch", "none")
    ],
}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seconds", type=float, default=6.0)
    asked.add_argument("--threads", type=int, default=2)
    asked.add_argument("--only", nargs="*", default=[], help="cases that begin with these words")
    asked.add_argument("--cpu-time", action="store_true", help="of one thread, on a busy machine")
    given = asked.parse_args()
    timing.CPU_TIME = given.cpu_time
    torch.set_num_threads(1 if given.cpu_time else given.threads)
    print(f"{machine()}; commit {commit()}\n")
    print("| case | with BatchNorm | with GroupNorm, or none | ratio |\n|---|---|---|---|")
    for name, (batch, other) in CASES.items():
        if given.only and not any(name.startswith(word) for word in given.only):
            continue
        rows = batch.placement()
        calls = {"batch": rounds_of(batch.run(rows)), "other": rounds_of(other.run(rows))}
        best = side_by_side(calls, given.seconds)
        ratio = best["batch"] / best["other"]
        print(
            f"| {name} | {duration(best['batch'])} | {duration(best['other'])} | **{ratio:.2f}** |",
            flush=True,
        )


if __name__ == "__main__":
    main()
