"""Real processes under torchrun: same results as one process, whatever happens to a rank."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedloom.core import tree
from fedloom.core.registry import algorithms
from fedloom.records.checkpoint import load_checkpoint
from tests.engines.multiprocess.conftest import HERE, RUN, Torchrun, records, wait_until

TOLERANCE = 1e-12
FOUR = ("tdcd ", "fedbcd 0", "vafl 4", "hyfem-avg 1", "alike", "held")
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")


def compared(torchrun, tmp_path, ranks, *names):
    torchrun(HERE / "worker.py", tmp_path / "found.json", *names, ranks=ranks).done(500)
    return json.loads((tmp_path / "found.json").read_text())


def judge(results):
    assert results
    for case in results:
        assert case["state"] <= TOLERANCE, case
        assert case["loss"] <= TOLERANCE, case
        assert case["bits"], case  # ranks agree to the bit
        assert case["books"], case


def test_two_ranks_are_one(torchrun, tmp_path):
    """TDCD (three weightings, reused and fresh), FedBCD, VAFL with calls, HyFEM's collected models,
    silos that share chunks, compiled or not, state held at clients; with absent clients, over a
    restart."""
    results = compared(torchrun, tmp_path, 2, "Drawn", *FOUR)
    assert len(results) == 17
    assert all(case["clients"] > 0 for case in results)
    judge(results)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_algorithm(torchrun, tmp_path, ranks):
    results = compared(torchrun, tmp_path, ranks, "", "")
    assert {name.split()[0] for name in (case["name"] for case in results)} >= set(algorithms)
    judge(results)


def test_who_leaves_leaves_no_thread(torchrun, tmp_path):
    """A thread that frees a tensor while Python exits aborts the process (exit code 134)."""
    torchrun(HERE / "leaving.py", tmp_path).done()
    for rank in range(2):
        before, after = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert before
        assert not after


def test_a_problem_of_one_rank_is_everyones(torchrun, tmp_path):
    torchrun(HERE / "faults.py", tmp_path).done()
    zero, one = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    for client in (0, 3):  # one is computed by either rank
        name = f"embedding from client ash/{client};"
        assert name in zero[f"alone {client}"]
        assert zero[f"alone {client}"] == zero[f"client {client}"] == one[f"client {client}"]
    for output in (zero, one):
        assert "not in step" in output["places"]
        assert "only stacked can be spread" in output["engine"]
        assert output["after"] == [0, 1]  # and they meet again
    assert zero["one"] == "FedLoomError: rank 1: ValueError: only here"


def state(folder):
    return load_checkpoint(folder / "checkpoint.safetensors")


def same(folder, straight):
    """Runs of equally many ranks are equal to the bit."""
    for part in (".", "baselines/alone"):
        assert records(folder / part) == records(straight / part)
        a, b = state(folder / part), state(straight / part)
        assert a.tensors.keys() == b.tensors.keys()
        assert all(value.equal(b.tensors[name]) for name, value in a.tensors.items())
        assert a.clock == b.clock
        assert list(a.ledger) == list(b.ledger)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An undisturbed run of two ranks."""
    folder = tmp_path_factory.mktemp("straight")
    (folder / "small.toml").write_text(RUN)
    ran = Torchrun(
        folder / "log", "-m", "fedloom", "run", folder / "small.toml", "--out", folder / "run"
    )
    ran.done()
    assert ran.said.count("tdcd: round 0 of 40") == 1  # one rank speaks
    assert ran.said.count("folder:") == 1
    return folder / "run"


def far(folder, lines=4):
    path = folder / "records.jsonl"
    return path.is_file() and path.read_bytes().count(b"\n") >= lines


def test_the_command(straight, run_file, tmp_path):
    """One process gives the same, up to a tolerance."""
    command = [sys.executable, "-m", "fedloom", "run", run_file, "--out", tmp_path / "run"]
    subprocess.run([*map(str, command), "--quiet"], check=True, timeout=250)
    for part in (".", "baselines/alone"):
        a, b = state(tmp_path / "run" / part), state(straight / part)
        assert tree.largest_difference(dict(a.tensors), dict(b.tensors)) <= TOLERANCE
        assert list(a.ledger) == list(b.ledger)
        assert a.record == b.record
        losses = [[line["train_loss"] for line in records(f)] for f in (tmp_path / "run", straight)]
        assert losses[0] == pytest.approx(losses[1], abs=TOLERANCE)


@pytest.mark.slow
def test_the_first_rank_is_killed(torchrun, run_file, tmp_path, straight):
    folder = tmp_path / "run"
    ran = torchrun("-m", "fedloom", "run", run_file, "--out", folder)
    wait_until(lambda: far(folder) or ran.process.poll() is not None)
    ran.kill(0)
    assert ran.code() != 0
    assert "fedloom: rank 1: another rank was lost" in ran.said
    torchrun("-m", "fedloom", "run", "--resume", folder, "--quiet").done()
    same(folder, straight)


@pytest.mark.slow
def test_another_is_killed_and_torchrun_starts_everyone_again(
    torchrun, run_file, tmp_path, straight
):
    """After a restart, gloo sometimes fails to connect, or hangs: then it takes another restart,
    after `--wait`."""
    folder = tmp_path / "run"
    arguments = ("-m", "fedloom", "run", run_file, "--out", folder, "--wait", 20)
    ran = torchrun(*arguments, options=("--max-restarts", "3"))
    wait_until(lambda: far(folder) or ran.process.poll() is not None)
    ran.kill(1)
    ran.done()
    assert "fedloom: rank 0: another rank was lost" in ran.said
    same(folder, straight)


def test_a_silent_rank_is_not_waited_for(torchrun, run_file, tmp_path):
    folder = tmp_path / "run"
    ran = torchrun("-m", "fedloom", "run", run_file, "--out", folder, "--wait", 5)
    wait_until(lambda: far(folder) or ran.process.poll() is not None)
    ran.kill(1, signal.SIGSTOP)
    wait_until(lambda: "or silent for 5 s" in ran.said, 100)
    ran.kill(1)
    assert ran.code() != 0


def test_ctrl_c_stops_all_after_the_same_round(torchrun, run_file, tmp_path):
    folder = tmp_path / "run"
    ran = torchrun("-m", "fedloom", "run", run_file, "--out", folder)
    wait_until(lambda: far(folder) or ran.process.poll() is not None)
    ran.kill(1, signal.SIGINT)  # at one of them
    assert ran.code() != 0
    assert ran.said.count(f"stopped after round {state(folder).round} of 40") == 1
    assert json.loads((folder / "manifest.json").read_text())["interrupted"]


def test_other_commands_refuse_to_be_several(torchrun, run_file, tmp_path):
    """Each rank would run the whole sweep, in the same folders."""
    out = tmp_path / "sweep"
    words = ("-m", "fedloom", "sweep", run_file, "--grid", "algorithm.lr=[0.1,0.2]", "--out", out)
    one = torchrun(*words)
    assert one.code() != 0
    output = "fedloom: torchrun is for `fedloom run`; start `fedloom sweep` alone"
    assert one.said.count(output) == 1
    assert not out.exists()


def test_a_folder_in_the_way_stops_all(torchrun, run_file, straight):
    ran = torchrun("-m", "fedloom", "run", run_file, "--out", straight)
    assert ran.code() != 0
    assert ran.said.count("already holds a finished run") == 1
