"""`python -m benchmarks.before_after BEFORE AFTER`: rounds of two checkouts, side by side.

Each checkout plays in a process of its own, and they take turns: only one computes at a time. So
what a change costs is seen apart from what the machine does meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from fedloom import mlp

from .cases import CNN, LSTM, MLP, RIDGE, Case
from .timing import machine, told

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


def play(case: Case, threads: int) -> None:
    """A worker: reads how many rounds to play, answers with the seconds they took."""
    from .rivals import rounds_of

    torch.set_num_threads(threads)
    play_round = rounds_of(case.run(case.placement()))
    for _ in range(5):
        play_round()
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            play_round()
        print(time.perf_counter() - began, flush=True)


class Player:
    """A worker process of one checkout."""

    def __init__(self, checkout: Path, case: str, threads: int):
        command = [sys.executable, "-m", "benchmarks.before_after", "--play", case]
        path = os.pathsep.join([str(checkout / "src"), str(HERE)])
        self._process = subprocess.Popen(
            [*command, "--threads", str(threads)],
            cwd=HERE,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked, self._answers = self._process.stdin, self._process.stdout

    def wait(self) -> None:
        if self._answers.readline() != "ready\n":
            raise SystemExit("a worker did not start")

    def seconds(self, rounds: int) -> float:
        """Of one round, in the mean of so many."""
        print(rounds, file=self._asked, flush=True)
        return float(self._answers.readline()) / rounds

    def close(self) -> None:
        self._asked.close()
        self._process.wait(60)


def compare(checkouts: list[Path], case: str, seconds: float, threads: int) -> list[list[float]]:
    """Seconds of a round in each turn, by checkout."""
    players = [Player(checkout, case, threads) for checkout in checkouts]
    try:
        for player in players:
            player.wait()
        once = min(player.seconds(1) for player in players)
        rounds = max(1, int(TURN / once))
        taken: list[list[float]] = [[] for _ in players]
        began = time.perf_counter()
        while len(taken[0]) < 3 or time.perf_counter() - began < seconds:
            for player, times in zip(players, taken, strict=True):
                times.append(player.seconds(rounds))
        return taken
    finally:
        for player in players:
            player.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, nargs="?", help="a checkout")
    parser.add_argument("after", type=Path, nargs="*", default=[HERE], help="others (this one)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=8, help="for each case")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--play", choices=CASES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        return play(CASES[given.play], given.threads)
    if given.before is None:
        parser.error("which checkout to compare with?")
    checkouts = [path.resolve() for path in (given.before, *given.after)]
    torch.set_num_threads(given.threads)
    print(machine())
    print("| case | checkout | best | of the first | median of the first |\n|---|---|---|---|---|")
    for case in given.cases:
        taken = compare(checkouts, case, given.seconds, given.threads)
        for checkout, times in zip(checkouts, taken, strict=True):
            ratio = min(times) / min(taken[0])
            median = statistics.median(a / b for a, b in zip(times, taken[0], strict=True))
            print(
                f"| {case} | {checkout.name} | {told(min(times))} | {ratio:.2f} | {median:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
