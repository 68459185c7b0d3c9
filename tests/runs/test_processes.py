"""Processes that are copies of one that has imported everything."""

import os
import signal
import subprocess
import sys

import pytest

from fedloom.core.errors import WriteError
from fedloom.runs.processes import Started

WITHIN = 60


@pytest.fixture
def start(tmp_path):
    made = []

    def call(*words, **env):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        made.append(Started(words, environment, tmp_path / "log"))
        return made[-1]

    yield call
    for one in made:
        one.kill()
        one.wait(WITHIN)


def test_they_are_the_command(start, tmp_path):
    """Exit codes, and what is printed, one after the other."""
    assert start("list").wait(WITHIN) == 0
    assert start("run", str(tmp_path / "no.toml")).wait(WITHIN) != 0
    log = (tmp_path / "log").read_text()
    assert log.startswith("algorithms")
    assert "no.toml" in log.splitlines()[-1]


def test_each_has_the_environment_that_it_is_given(start, tmp_path):
    for folder in ("first", "second"):
        place = tmp_path / folder
        place.mkdir()
        start("data", "--json", FEDLOOM_DATA=str(place)).wait(WITHIN)
        assert str(place) in (tmp_path / "log").read_text()


def test_they_can_be_waited_for_and_killed(start, tmp_path):
    os.mkfifo(tmp_path / "run.toml")  # reading it waits for a writer
    one = start("run", str(tmp_path / "run.toml"))
    with pytest.raises(subprocess.TimeoutExpired, match="fedloom"):
        one.wait(0.01)
    assert one.poll() is None
    one.send_signal(signal.SIGKILL)
    assert one.wait(WITHIN) == -signal.SIGKILL == one.returncode
    one.send_signal(signal.SIGKILL)  # nobody is there: nothing happens


def test_a_log_that_cannot_be_is_said_at_once(tmp_path):
    with pytest.raises(WriteError, match="nowhere"):
        Started(["list"], os.environ, tmp_path / "nowhere" / "log")


SCRIPT = """
import os, sys
from pathlib import Path
from fedloom.runs.processes import Started

print("once", flush=True)
env = {**os.environ, "OMP_NUM_THREADS": "1"}
print(Started(["list"], env, Path(sys.argv[1])).wait(60))
"""


def test_a_script_that_starts_them_runs_once(tmp_path):
    """Also one that does not ask whether it is the main program."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "script.py", tmp_path / "log"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN)
    assert ran.stdout.split() == ["once", "0"], ran.stderr
    assert (tmp_path / "log").read_text().startswith("algorithms")
