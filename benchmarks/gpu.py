"""`python -m benchmarks.gpu`: the rows of the table for a GPU, in a few minutes.

The floor is compiled and, for bf16, under autocast. FedLoom runs with `compile` and that
`precision`, measured after compilation. The loop takes cuDNN's first choice of kernels: trying them
out, as the others do, would take minutes for its many numbers of rows. Prints the lines, and writes
them to the given file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from fedloom.engines.limits import DEFAULT, Limits

from .cases import RESNET, VIEWS, Case
from .rivals import Rivals, rounds_of
from .timing import commit, duration, machine, once, side_by_side

COMPILED = 60  # local steps after which everything is compiled
HEADER = [
    "| case | precision | floor | loop over copies | FedLoom | of the floor | wanted | x the loop "
    "| wanted | FedLoom's memory |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


class Bench:
    """One case in one precision: first prepared, which takes minutes, then measured."""

    def __init__(self, case: Case, precision: str, limits: Limits = DEFAULT):
        self.case, self.precision = case, precision
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        self.run = case.run(precision=precision, compile=True, limits=limits)
        self.rivals = Rivals(case, self.run, self._precise)
        self.floors = {"eager": self.rivals.floor(), "compiled": self.rivals.floor(compiled=True)}
        self.loop = self.rivals.loop(silos=1)

    def _precise(self) -> torch.autocast:
        kind = self.case.device
        return torch.autocast(kind, torch.bfloat16, enabled=self.precision == "bf16")

    def ready(self) -> None:
        """Run everything once, so that it is compiled."""
        began = time.perf_counter()
        self.floors["eager"]()
        try:
            self.floors["compiled"]()
        except Exception as problem:
            print(f"  torch.compile is not available: {type(problem).__name__}: {problem}")
            del self.floors["compiled"]
        print(f"  the floor is ready after {time.perf_counter() - began:.0f} s", flush=True)
        self.round = rounds_of(self.run)
        for number in range(max(1, COMPILED // self.case.steps)):
            start = time.perf_counter()
            self.round()
            torch.cuda.synchronize()
            print(f"  round {number}: {time.perf_counter() - start:.2f} s", flush=True)
        print(f"  FedLoom is ready after {time.perf_counter() - began:.0f} s", flush=True)

    def line(self, seconds: float) -> str:
        case = self.case
        best = side_by_side(self.floors, seconds, least=2)
        floor, which = min((best[name], name) for name in best)
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=True):
            self.loop()
            loop = once(self.loop) * case.silos
        print(f"  floor {duration(floor)} ({which}), loop {duration(loop)}", flush=True)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fedloom = side_by_side({"fedloom": self.round}, seconds, least=2)["fedloom"]
        memory = (torch.cuda.max_memory_allocated() - before) / 2**30
        return (
            f"| {case.name}, N {case.silos} K {case.clients} B {case.batch} Q {case.steps} "
            f"| {self.precision} | {duration(floor)} ({which}) | {duration(loop)} "
            f"| {duration(fedloom)} | **{fedloom / floor:.2f}** | <= {case.wanted} "
            f"| **{loop / fedloom:.1f}** | >= {case.wanted_loop} | {memory:.1f} GiB |"
        )

    def profiles(self) -> str:
        """The kernels that take longest in a round, FedLoom's and the floor's."""
        floor = self.floors.get("compiled", self.floors["eager"])
        return f"FedLoom: {kernels(self.round)}\nThe floor: {kernels(floor)}"


def kernels(round: Callable[[], object]) -> str:
    """The kernels that take longest in a round."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        round()
        torch.cuda.synchronize()
    by_name = [e for e in profiled.key_averages() if e.self_device_time_total]
    total = sum(e.self_device_time_total for e in by_name) / 1e3
    by_name.sort(key=lambda e: -e.self_device_time_total)
    return "\n".join(
        [f"{total:.0f} ms in {sum(e.count for e in by_name)} kernels"]
        + [
            f"  {e.self_device_time_total / 1e3:8.1f} ms  {e.count:5} x  {e.key[:110]}"
            for e in by_name[:30]
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="for each measurement")
    parser.add_argument("--steps", type=int, default=10, help="Q")
    parser.add_argument("--case", choices=["resnet", "views"], help="only this one")
    parser.add_argument("--precision", choices=["tf32", "bf16"], help="only this one")
    parser.add_argument("--profile", action="store_true", help="say where a round's time goes")
    parser.add_argument("--tries", type=int, default=3, help="kernels cuDNN tries for a shape")
    parser.add_argument(
        "--pieces", type=int, help="chunks of a GPU that only save padding, at most"
    )
    parser.add_argument("--out", type=Path, help="write the lines to this file")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark_limit = args.tries
    limits = Limits(gpu_pieces=args.pieces or DEFAULT.gpu_pieces)
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here")
    lines = [f"`make bench-gpu`: {machine()}; commit {commit()}.", "", *HEADER]
    cases = {"resnet": RESNET, "views": VIEWS}
    precisions = [args.precision] if args.precision else ["tf32", "bf16"]
    for case in [cases[args.case]] if args.case else cases.values():
        for precision in precisions:
            torch._dynamo.reset()
            try:
                chosen = case.with_(device="cuda", steps=args.steps)
                bench = Bench(chosen, precision, limits)
                bench.ready()
                lines.append(bench.line(args.seconds))
                print(lines[-1], flush=True)
                if args.profile:
                    print(bench.profiles(), flush=True)
                del bench
            except Exception as problem:
                first = str(problem).splitlines()[0]
                lines.append(f"| {case.name} | {precision} | {type(problem).__name__}: {first} |")
                print(lines[-1], flush=True)
            torch.cuda.empty_cache()
            if args.out:
                args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
