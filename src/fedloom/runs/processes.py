"""Many `fedloom` processes on one machine, started quickly.

To import torch and the rest takes two seconds of CPU. Here one process does it and is copied for
each that is wanted (Linux; elsewhere every process starts by itself). The copies are processes like
any other, with a file for what they print.
"""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.files import touch

IMPORTED = [
    "cli.main",
    "runs.job",
    "algorithms",
    "deployment.party.host",
    "deployment.prediction.query",
]
COMMAND = "fedloom.cli.main:main"  # what a user starts
THREADS = "OMP_NUM_THREADS"


class Started:
    """`fedloom words` as a process, with what of subprocess.Popen is needed. `env` names its number
    of threads (OMP_NUM_THREADS); `session`: one of its own, so that Ctrl-C does not reach it."""

    def __init__(
        self, words: Sequence[str], env: Mapping[str, str], log: Path, session: bool = False
    ):
        self._words = ["fedloom", *words]
        touch(log)  # if that cannot be, it is said here
        given = list(words), dict(env), log, session
        self._process = _ways().Process(target=_run, args=given)
        with _another_program():
            self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._words, timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None and self.pid is not None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


@cache
def _ways() -> Any:
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    ways = multiprocessing.get_context("forkserver")
    ways.set_forkserver_preload([f"fedloom.{name}" for name in IMPORTED])
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "1"  # no threads are to be there when it is copied
    try:
        with _another_program():
            forkserver.ensure_running()
    finally:
        del os.environ[THREADS]
        if before is not None:
            os.environ[THREADS] = before
    return ways


@contextmanager
def _another_program() -> Iterator[None]:
    """Python would run the script of this program in those that it starts, too."""
    own = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = own


def _run(words: list[str], env: dict[str, str], log: Path, session: bool) -> None:
    if session:
        os.setsid()
    into = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(into, stream)
    os.close(into)
    os.environ.clear()
    os.environ.update(env)
    import torch

    main = pkgutil.resolve_name(COMMAND)
    torch.set_num_threads(int(env[THREADS]))  # it has read the variable already
    sys.argv = ["fedloom", *words]
    sys.exit(main(words))
