"""Measures calls side by side: all in turn, many times, the best time of each."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

CPU_TIME = False  # measure CPU time of one thread, on a machine that others use


def _now() -> float:
    return time.process_time() if CPU_TIME else time.perf_counter()


def side_by_side(
    rivals: Mapping[str, Callable[[], object]], seconds: float = 6.0, least: int = 3
) -> dict[str, float]:
    """Seconds of one call of each, the best of calls made in turn within `seconds`."""
    for call in rivals.values():  # warm: at least twice, and up to 25 times or 3 seconds
        began = time.perf_counter()
        for number in range(25):
            if number > 1 and time.perf_counter() - began > 3:
                break
            call()
    best = dict.fromkeys(rivals, float("inf"))
    repeat = {name: max(1, int(0.02 / max(once(call), 1e-9))) for name, call in rivals.items()}
    began, turns = time.perf_counter(), 0
    while turns < least or time.perf_counter() - began < seconds:
        for name, call in rivals.items():
            best[name] = min(best[name], once(call, repeat[name]))
        turns += 1
    return best


def once(call: Callable[[], object], times: int = 1) -> float:
    """Seconds of one call, averaged over `times` calls."""
    _wait()
    began = _now()
    for _ in range(times):
        call()
    _wait()
    return (_now() - began) / times


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def machine() -> str:
    """A description of the machine."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{cpu}, {os.cpu_count()} cores{gpu}; Python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )


def commit() -> str:
    folder = Path(__file__).parent
    try:
        process = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=folder, capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return process.stdout.strip() or "unknown"
