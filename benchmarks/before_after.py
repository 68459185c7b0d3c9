"""`python -m benchmarks.before_after BEFORE AFTER`: rounds of two checkouts, side by side.

Each checkout has a process of its own, and they take turns, so that the cost of a change is
separated from what else the machine does. On a busy machine, `--cpu-time --threads 1` counts
seconds of the CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedloom import mlp

from .cases import CNN, LSTM, MLP, RIDGE, Case
from .timing import duration, machine

HERE = Path(__file__).resolve().parents[1]
WIDE = MLP.with_(name="MLP 784-512-10", silos=2, shape=(784,), block=mlp(784, [512], 10))
FEW = MLP.with_(
    name="MLP 784-32-10, K 1000", silos=2, clients=1000, shape=(784,), block=mlp(784, [32], 10)
)
CASES: dict[str, Case] = {
    "ridge": RIDGE,
    "ridge-plain": RIDGE.with_(compile=False),
    "ridge-many": RIDGE.with_(clients=1000, compile=False),
    "mlp": MLP,
    "mlp-plain": MLP.with_(compile=False),
    "mlp-many": MLP.with_(clients=1000, compile=False),
    "mlp-one-step": MLP.with_(steps=1, compile=False),
    "mlp-wide": WIDE.with_(compile=False),
    "mlp-few": FEW.with_(compile=False),
    "cnn": CNN.with_(steps=2),
    "lstm": LSTM.with_(steps=2),
}
TURN = 0.3  # seconds of a turn, or one round


def play(case: Case, threads: int, clock: Callable[[], float]) -> None:
    """The worker's program: reads numbers of rounds to play, prints the seconds that they took."""
    from .rivals import rounds_of

    torch.set_num_threads(threads)
    play_round = rounds_of(case.run(case.placement()))
    for _ in range(5):
        play_round()
    print("ready", flush=True)
    for line in sys.stdin:
        began = clock()
        for _ in range(int(line)):
            play_round()
        print(clock() - began, flush=True)


class Worker:
    """A worker process of one checkout."""

    def __init__(self, checkout: Path, case: str, threads: int, cpu: bool):
        command = [sys.executable, "-m", "benchmarks.before_after", "--play", case]
        path = os.pathsep.join([str(checkout / "src"), str(HERE)])
        self._process = subprocess.Popen(
            [*command, "--threads", str(threads), *(["--cpu-time"] if cpu else [])],
            cwd=HERE,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def wait(self) -> None:
        if self._answers.readline() != "ready\n":
            raise SystemExit("a worker did not start")

    def seconds(self, rounds: int) -> float:
        """Seconds of one round, averaged over `rounds`."""
        print(rounds, file=self._requests, flush=True)
        return float(self._answers.readline()) / rounds

    def close(self) -> None:
        self._requests.close()
        self._process.wait(60)


def compare(
    checkouts: list[Path], case: str, seconds: float, threads: int, cpu: bool
) -> list[list[float]]:
    """Seconds of a round in each turn, by checkout."""
    workers = [Worker(checkout, case, threads, cpu) for checkout in checkouts]
    try:
        for worker in workers:
            worker.wait()
        once = min(worker.seconds(1) for worker in workers)
        rounds = max(1, int(TURN / once))
        taken: list[list[float]] = [[] for _ in workers]
        began = time.perf_counter()
        while len(taken[0]) < 3 or time.perf_counter() - began < seconds:
            for worker, times in zip(workers, taken, strict=True):
                times.append(worker.seconds(rounds))
        return taken
    finally:
        for worker in workers:
            worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, nargs="?", help="a checkout")
    parser.add_argument("after", type=Path, nargs="*", default=[HERE], help="others (this one)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=8, help="for each case")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--cpu-time", action="store_true", help="seconds of the CPU, of all threads"
    )
    parser.add_argument("--play", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play:
        clock = time.process_time if args.cpu_time else time.perf_counter
        return play(CASES[args.play], args.threads, clock)
    if args.before is None:
        parser.error("which checkout to compare with?")
    checkouts = [path.resolve() for path in (args.before, *args.after)]
    torch.set_num_threads(args.threads)
    print(machine())
    print("| case | checkout | best | of the first | median of the first |\n|---|---|---|---|---|")
    for case in args.cases:
        taken = compare(checkouts, case, args.seconds, args.threads, args.cpu_time)
        for checkout, times in zip(checkouts, taken, strict=True):
            ratio = min(times) / min(taken[0])
            median = statistics.median(a / b for a, b in zip(times, taken[0], strict=True))
            print(
                f"| {case} | {checkout.name} | {duration(min(times))} "
                f"| {ratio:.2f} | {median:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
