"""A process that has read tables ends with the exit code it chose, whatever Arrow's threads do."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fedloom"

# The reader alone, without torch: a child is there and gone in some milliseconds. Arrow's threads
# run only when nothing else wants to, so that they are late in letting go of what they have read;
# the last thing that Python does on its way out is to wait for a moment.
CHILDREN = """
import os, sys, time, types
package = types.ModuleType("fedloom")
package.__path__ = [sys.argv[1]]
sys.modules["fedloom"] = package
from pathlib import Path
from fedloom.data.tables.files import ReadOptions, read_sheet
from fedloom.core.errors import DataError
import pyarrow.csv, pyarrow.parquet

class Last:
    def __del__(self, sleep=time.sleep):
        sleep(0.05)

def child():
    small = pyarrow.BufferReader(b"a,b\\n" + b"1,2\\n" * 1000)
    pyarrow.csv.read_csv(small, pyarrow.csv.ReadOptions(block_size=500))  # begins its threads
    for thread in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(thread, {min(os.sched_getaffinity(0))})
        if thread != os.getpid():
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    sys.setswitchinterval(1)
    try:
        for place in sys.argv[3:]:
            read_sheet(Path(place), "client bank/north", ReadOptions("person"))
    except DataError as problem:
        print(problem, file=sys.stderr)
    return Last()

for _ in range(int(sys.argv[2])):
    process = os.fork()
    if process == 0:
        last = child()
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="slows threads down as Linux does")
def test_a_missing_file_ends_with_its_exit_code_every_time(tmp_path):
    rows = "".join(f"P{i:06d},{i}.5,town {i % 7},{i % 2}\n" for i in range(5000))
    (tmp_path / "north.csv").write_text("person,income,town,late\n" + rows)
    words = [sys.executable, "-c", CHILDREN, str(SOURCE)]
    files = [str(tmp_path / "north.csv"), str(tmp_path / "missing.csv")]
    halves = [
        subprocess.Popen(
            [*words, "25", *files], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    ended = [half.communicate(timeout=240) for half in halves]
    codes = Counter(" ".join(out for out, _ in ended).split())
    assert codes == {"3": 50}
    assert sum(err.count("there is no file") for _, err in ended) == 50


def test_so_does_the_command(tmp_path):
    """All of it, twice: importing takes most of the time."""
    (tmp_path / "run.toml").write_text(
        '[data]\nid = "person"\nlabel = "late"\n'
        '[data.silos]\nbank = "north.csv"\nshop = "missing.csv"\n'
    )
    rows = "".join(f"P{i:06d},{i}.5,{i % 2}\n" for i in range(20_000))
    (tmp_path / "north.csv").write_text("person,income,late\n" + rows)
    command = [sys.executable, "-m", "fedloom", "check", str(tmp_path / "run.toml")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=240)
        assert process.returncode == 3, err
        assert len(err.splitlines()) == 1
        assert "there is no file" in err
