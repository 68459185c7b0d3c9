"""Many `fedloom` processes on one machine, started quickly.

To import torch and the rest takes two seconds of CPU. Here one process does it and is copied for
each that is wanted (Linux; elsewhere every process starts by itself). The copies are processes like
any other, with a file for what they print.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

IMPORTED = ["cli.main", "build", "job", "algorithms", "parties.host", "parties.asking"]


class Started:
    """`fedloom words` as a process, with what of subprocess.Popen is needed. `session`: one of its
    own, so that Ctrl-C does not reach it."""

    def __init__(
        self, words: Sequence[str], env: Mapping[str, str], log: Path, session: bool = False
    ):
        self._words = ["fedloom", *words]
        given = list(words), dict(env), log, session
        self._process = _ways(env).Process(target=_run, args=given, daemon=True)
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


def _ways(env: Mapping[str, str]) -> Any:
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    ways = multiprocessing.get_context("forkserver")
    ways.set_forkserver_preload([f"fedloom.{name}" for name in IMPORTED])
    before = dict(os.environ)
    _become(env)  # the number of threads is read once
    try:
        forkserver.ensure_running()
    finally:
        _become(before)
    return ways


def _become(env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)


def _run(words: list[str], env: dict[str, str], log: Path, session: bool) -> None:
    if session:
        os.setsid()
    into = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(into, stream)
    os.close(into)
    _become(env)
    from .cli.main import main

    sys.argv = ["fedloom", *words]
    sys.exit(main(words))
