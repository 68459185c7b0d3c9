"""`python -m benchmarks`: all CPU measurements, into benchmarks/RESULTS.md."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from . import others, rounds, timing
from .timing import commit, machine

RESULTS = Path(__file__).parent / "RESULTS.md"
SECTIONS = {
    "rounds": ("A round against the floor", lambda a: rounds.table(a.seconds, a.compile, a.steps)),
    "one-step": ("One local step a round", lambda a: rounds.one_step(a.seconds, a.compile)),
    "clients": ("More clients, the same rows", lambda a: rounds.clients(a.seconds)),
    "others": ("Overhead, memory, visits, set-up", lambda a: _others(a.seconds)),
}


def _others(seconds: float) -> list[str]:
    return [
        "| what | measured | wanted |",
        "|---|---|---|",
        *others.overhead(seconds),
        *others.visits(seconds),
        *others.memory(),
        *others.setting_up(),
    ]


def _other_sections(text: str, measured: set[str]) -> list[str]:
    """The sections of the results file that other commands measure."""
    lines: list[str] = []
    for section in text.split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        if title not in measured:
            lines += [f"## {title}", *rest.rstrip().splitlines(), ""]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=SECTIONS, help="only these sections")
    parser.add_argument("--seconds", type=float, default=8, help="for each measurement")
    parser.add_argument("--steps", type=int, default=10, help="Q of the first table")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--write", action="store_true", help="write benchmarks/RESULTS.md")
    parser.add_argument("--cpu-time", action="store_true", help="of one thread; for busy machines")
    args = parser.parse_args()
    timing.CPU_TIME = args.cpu_time
    torch.set_num_threads(1 if args.cpu_time else args.threads)
    lines = [
        "# Measured",
        "",
        "Everything of a line is measured side by side in one process, in turn; the best of each "
        "counts. The floor is one forward and Q forward-backward-update steps of the same rows "
        "through one shared model per silo in plain PyTorch, the better of eager and compiled.",
        "",
        f"`make bench`: {machine()}; commit {commit()}.",
    ]
    for name, (title, section) in SECTIONS.items():
        if args.only is None or name in args.only:
            print(f"== {title}", flush=True)
            lines += ["", f"## {title}", "", *section(args)]
    if args.write:
        measured = {title for title, _ in SECTIONS.values()}
        lines += ["", *_other_sections(RESULTS.read_text(encoding="utf-8"), measured)]
        RESULTS.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
        print(f"written to {RESULTS.name}")


if __name__ == "__main__":
    main()
