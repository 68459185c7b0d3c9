"""Starts torchrun on this machine, and reads its output."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUN = """\
[data]
name = "iris"

[partition]
clients = [2, 3]

[algorithm]
local_steps = 2
lr = 0.05
batch = 20
rounds = 40

[engine]
precision = "float64"
presence = 0.8

[evaluation]
every = 2
baselines = ["alone"]

[output]
checkpoint_every = 1
report = false
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Torchrun:
    """Ranks under torchrun; their output goes to a file."""

    def __init__(self, log, *arguments, ranks=2, options=()):
        self.log = log
        place = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
        head = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks))
        paths = [str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*head, *place, *options, *map(str, arguments)],
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self):
        return self.log.read_text()

    def code(self, seconds=200):
        return self.process.wait(seconds)

    def done(self, seconds=200):
        assert self.code(seconds) == 0, self.said

    def pid(self, rank):
        """The process of a rank."""
        own = self.process.pid
        for child in Path(f"/proc/{own}/task/{own}/children").read_text().split():
            if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                return int(child)
        raise AssertionError(f"no rank {rank}")

    def kill(self, rank, sign=signal.SIGKILL):
        os.kill(self.pid(rank), sign)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


@pytest.fixture
def torchrun(tmp_path):
    started = []

    def start(*arguments, **options):
        started.append(Torchrun(tmp_path / f"log{len(started)}", *arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(RUN)
    return path


def wait_until(condition, seconds=200):
    """Wait until a condition holds; the bound is on the wait, not on what is tested."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def records(folder):
    """A run's records, without seconds."""
    lines = (Path(folder) / "records.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    for line in reports:
        del line["wall"]
    return reports
