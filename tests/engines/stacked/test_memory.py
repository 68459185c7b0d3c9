"""Models of all clients are never in memory together: memory grows with the chunk, not with K."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import re, sys, torch
from fedloom import TDCD, Run, Task, linear, partition
torch.set_num_threads(1)
x = {"a": torch.randn(120, 500)}
rows = partition(x, torch.zeros(120), {"a": 60})
task = Task({"a": linear(500, 500)}, "squared", head=linear(500))   # a block of 1 MB
chunk = 60 if sys.argv[1] == "all" else int(sys.argv[1])
run = Run(TDCD(local_steps=2, lr=1e-3, batch=120), task, rows, chunk=chunk)

def peak():  # of this program: getrusage's peak is inherited from whoever started it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read()).group(1))

before = peak()
run.fit(2)
print(peak() - before)
"""


def kilobytes(chunk):
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, chunk],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    return int(ran.stdout)


@pytest.mark.skipif(
    not Path("/proc/self/status").is_file() or "VmHWM" not in Path("/proc/self/status").read_text(),
    reason="this system does not tell a program's peak of memory",
)
def test_memory_follows_the_chunk():
    one, everyone = kilobytes("1"), kilobytes("all")
    assert everyone > 60 * 1000  # all 60 blocks at once, to know that this measures something
    assert one < everyone / 3
