"""Measures overhead, memory, visits per second and set-up time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedloom import Run, Task, linear, partition
from fedloom.core.registry import algorithms

from .cases import TINY, Case
from .rivals import by_hand, rounds_of
from .timing import side_by_side

AT_ONCE = 50  # rounds of the tiny case in one call
ROOT = Path(__file__).parent.parent
MEMORY = """
import re, sys
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)) / 2**20
import torch, fedloom
torch.set_num_threads(2)
torch.nn.functional.conv2d(torch.ones(1, 1, 9, 9), torch.ones(1, 1, 3, 3))
from benchmarks.cases import RESNET
before = peak()
case = RESNET.with_(batch=100, rows=2000, steps=2)
run = case.run()
run.fit(1)
print(peak() - before)
"""
IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
DEMO = """
import time; began = time.perf_counter()
from pathlib import Path
from fedloom.runs.build import build_data, build_parts
from fedloom.config.runfile import RunFile
file = RunFile.read(Path("examples/diabetes.toml"))
run = next(iter(build_parts(file, build_data(file)).values()))
run.add_record()
print(time.perf_counter() - began)
"""


def _printed(script: str, tries: int = 3) -> float:
    """The smallest number that a script prints in several runs. Imports are compiled before, as
    those of an installed package are."""
    numbers = []
    with TemporaryDirectory() as compiled:
        environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": compiled}
        for _ in range(tries + 1):
            process = subprocess.run(
                [sys.executable, "-c", script],
                cwd=ROOT,
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=True,
            )
            numbers.append(float(process.stdout.split()[-1]))
    return min(numbers)


def overhead(seconds: float) -> list[str]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run, plain = TINY.run(), TINY.run(compile=False)
    rounds_of(run)
    rounds_of(plain)
    hand = by_hand(TINY, run)

    def by_fedloom() -> None:
        run.fit(run.round + AT_ONCE)

    def without_compiling() -> None:
        plain.fit(plain.round + AT_ONCE)

    def by_hand_as_many() -> None:
        for _ in range(AT_ONCE):
            hand()

    calls = {"hand": by_hand_as_many, "fedloom": by_fedloom, "plain": without_compiling}
    best = side_by_side(calls, seconds)
    best = {name: took / AT_ONCE for name, took in best.items()}
    share = best["hand"] / best["fedloom"]
    lines = [
        f"| tiny ridge, rounds a second of a hand-written loop ({1 / best['hand']:.0f}/s) "
        f"| {1 / best['fedloom']:.0f}/s, **{share:.2f}** (without `compile` "
        f"{best['hand'] / best['plain']:.2f}) | >= 0.5 |"
    ]
    print(lines[-1], flush=True)
    larger = TINY.with_(batch=1000, rows=20_000, clients=50)
    for compile in (False, True):
        for case, rounds in ((TINY, 200), (larger, 100)):
            lines.append(_evaluating(case.with_(compile=compile), rounds))
            print(lines[-1], flush=True)
    torch.set_num_threads(threads)
    return lines


def _evaluating(case: Case, rounds: int) -> str:
    """The overhead of evaluation, records and progress at the default interval (about 20
    evaluations in a run), in the CPU time of one thread, which waiting threads do not affect."""
    best = {"plain": float("inf"), "evaluating": float("inf")}
    placement = case.placement()
    for _ in range(8):  # a tenth of half a second is soon lost in noise
        for name, every in (("plain", None), ("evaluating", rounds // 20)):
            run = case.run(placement)
            run.fit(20)  # traced by now
            began = time.process_time()
            run.fit(20 + rounds, every=every, progress=name == "evaluating")
            best[name] = min(best[name], time.process_time() - began)
    more = 100 * (best["evaluating"] / best["plain"] - 1)
    return (
        f"| evaluation, records and progress, {case.name} K {case.clients} of {case.rows} rows, "
        f"{rounds} rounds{', compiled' if case.compile else ''} | {more:.0f} % | <= 10 % |"
    )


def visits(seconds: float) -> list[str]:
    """VAFL visits per second: logistic regression on data of MNIST's size, 7 silos, one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60_000, 784, generator=draw)
    y = torch.randint(10, (60_000,), generator=draw)
    silos = {f"silo{j}": x[:, 112 * j : 112 * (j + 1)] for j in range(7)}
    rows = partition(silos, y, dict.fromkeys(silos, 1))
    task = Task({silo: linear(112, 10) for silo in silos}, "cross-entropy")
    lines = []
    for batch in (1, 100):
        rule = algorithms["vafl"](lr=0.01, batch=batch, visits=70)
        best = side_by_side({"fedloom": rounds_of(Run(rule, task, rows))}, seconds / 2)
        lines.append(f"| VAFL visits a second, B {batch} | {70 / best['fedloom']:.0f} | >= 3000 |")
        print(lines[-1], flush=True)
    torch.set_num_threads(threads)
    return lines


def memory() -> list[str]:
    lines = [
        f"| memory of ResNet18 N 2 K 50 above the interpreter | {_printed(MEMORY, 1):.2f} GiB "
        "| <= 2 GiB |"
    ]
    print(lines[-1], flush=True)
    return lines


def setting_up() -> list[str]:
    more = _printed(IMPORT.format("torch, fedloom")) - _printed(IMPORT.format("torch"))
    lines = [
        f"| `import fedloom` beyond torch's import | {more:.2f} s | <= 1 s |",
        f"| the demo's first round starts after | {_printed(DEMO, 2):.1f} s | <= 5 s |",
    ]
    print("\n".join(lines), flush=True)
    return lines
