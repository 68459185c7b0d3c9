"""Killed, interrupted, out of disk, in the way: what was done is never lost, nor overwritten."""

import errno
import json
import os
import random
import signal
import time

import pytest

from fedloom.core import files
from fedloom.records.checkpoint import load_checkpoint
from fedloom.runs import job
from tests.cli.conftest import process, records

BASELINE = 'evaluation.baselines=["alone"]'
LONG = "algorithm.rounds=40"


def wait_until(condition, seconds=150):
    """Until a condition holds, looking often; a bound on the wait, not on the time it takes."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def lines(path):
    return path.read_bytes().count(b"\n") if path.is_file() else 0


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run to compare with."""
    from tests.cli.conftest import RUN

    folder = tmp_path_factory.mktemp("straight")
    (folder / "small.toml").write_text(RUN)
    arguments = ("run", folder / "small.toml", "--out", folder / "run", "--quiet")
    ran = process(*arguments, "--set", LONG, "--set", BASELINE)
    _, err = ran.communicate(timeout=120)
    assert ran.returncode == 0, err
    return folder / "run"


def same(folder, straight):
    for part in (".", "baselines/alone"):
        assert records(folder / part) == records(straight / part)
        ledgers = [json.loads((f / part / "ledger.json").read_text()) for f in (folder, straight)]
        assert ledgers[0] == ledgers[1]
        states = [load_checkpoint(f / part / "checkpoint.safetensors") for f in (folder, straight)]
        assert states[0].tensors.keys() == states[1].tensors.keys()
        assert all(v.equal(states[1].tensors[k]) for k, v in states[0].tensors.items())
        assert states[0].clock == states[1].clock


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_as_if_undisturbed(seed, run_file, tmp_path, straight):
    folder, chance = tmp_path / "run", random.Random(seed)
    arguments = ["run", run_file, "--out", folder, "--quiet", "--set", LONG, "--set", BASELINE]
    kills = 0
    while kills < 20:
        ran = process(*arguments)
        part = folder if not (folder / "ledger.json").exists() else folder / "baselines" / "alone"
        target = lines(part / "records.jsonl") + chance.randint(6, 18)
        wait_until(lambda p=part, t=target, r=ran: lines(p / "records.jsonl") >= t or not _runs(r))
        time.sleep(chance.random() * 0.05)  # somewhere in a round, a record or a checkpoint
        ran.kill()
        ran.communicate(timeout=150)
        kills += 1
        if ran.returncode == 0 or ((folder / "manifest.json").exists() and _finished(folder)):
            break
        if (folder / "run.toml").exists():
            arguments = ["run", "--resume", folder, "--quiet"]
    assert kills > 1  # it was killed at least once on the way
    ran = process("run", "--resume", folder, "--quiet")
    _, err = ran.communicate(timeout=120)
    assert ran.returncode == 0, err
    same(folder, straight)


def _runs(ran):
    return ran.poll() is None


def _finished(folder):
    return json.loads((folder / "manifest.json").read_text())["finished"] is not None


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_so(sign, run_file, tmp_path, straight):
    folder = tmp_path / "run"
    arguments = ["run", run_file, "--out", folder, "--set", LONG, "--set", BASELINE]
    ran = process(*arguments)
    wait_until(lambda: lines(folder / "records.jsonl") >= 3 or not _runs(ran))
    ran.send_signal(sign)
    _, err = ran.communicate(timeout=150)
    assert ran.returncode == 130, err
    assert f"fedloom run --resume {folder}" in err
    assert json.loads((folder / "manifest.json").read_text())["interrupted"]
    ran = process("run", "--resume", folder, "--quiet")
    _, err = ran.communicate(timeout=120)
    assert ran.returncode == 0, err
    assert not json.loads((folder / "manifest.json").read_text())["interrupted"]
    same(folder, straight)


def test_a_report_of_an_interrupted_run_says_so(run_file, tmp_path, fedloom, monkeypatch):
    folder = tmp_path / "run"
    real = job.JobRun._record

    def look_and_ask(part):
        real(part)
        if part.run.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(job.JobRun, "_record", look_and_ask)
    code, _, err = fedloom("run", run_file, "--out", folder, "--quiet")
    assert code == 130
    assert "stopped after round 2 of 6" in err
    code, _, err = fedloom("run", run_file, "--out", folder, "--quiet")
    assert code == 5
    assert f"already holds a run: go on with it (fedloom run --resume {folder})" in err
    assert fedloom("report", folder)[0] == 0
    assert "interrupted" in (folder / "report.html").read_text()


def test_a_folder_with_a_run_is_never_overwritten(run_file, tmp_path, fedloom):
    folder = tmp_path / "run"
    assert fedloom("run", run_file, "--out", folder, "--quiet")[0] == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, _, err = fedloom("run", run_file, "--out", folder)
    assert code == 5
    assert "already holds a finished run: name another folder" in err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_folder_with_other_things_is_left_alone(run_file, tmp_path, fedloom):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    code, _, err = fedloom("run", run_file, "--out", tmp_path / "mine")
    assert code == 5
    assert "not empty" in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_two_processes_cannot_run_one_folder(run_file, tmp_path, fedloom):
    folder = tmp_path / "run"
    fedloom("run", run_file, "--out", folder, "--quiet")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with files.locked(folder):
        code, _, err = fedloom("run", "--resume", folder, "--quiet")
    assert code == 5
    assert "another process is running it" in err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert fedloom("run", "--resume", folder, "--quiet")[0] == 0


def test_a_second_ctrl_c_stops_at_once(run_file, tmp_path, fedloom, monkeypatch):
    real = job.JobRun._record

    def look_and_ask_twice(part):
        real(part)
        if part.run.round == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(job.JobRun, "_record", look_and_ask_twice)
    code, _, err = fedloom("run", run_file, "--out", tmp_path / "run")
    assert code == 130
    assert "stopping after this round" in err
    assert "go on from the last checkpoint" in err
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["interrupted"]


def test_resuming_a_finished_run_changes_no_record(run_file, tmp_path, fedloom):
    folder = tmp_path / "run"
    fedloom("run", run_file, "--out", folder, "--quiet")
    before = (folder / "records.jsonl").read_bytes()
    assert fedloom("run", "--resume", folder, "--quiet")[0] == 0
    assert (folder / "records.jsonl").read_bytes() == before


def full_disk(monkeypatch, after):
    """From the given write on, the disk is full (simulated where files reach the disk)."""
    real, count = os.fsync, [0]

    def fsync(handle):
        count[0] += 1
        if count[0] > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle)

    monkeypatch.setattr(files.os, "fsync", fsync)


@pytest.mark.parametrize("after", [0, 3, 9, 12, 15, 16, 17])
def test_a_full_disk(after, run_file, tmp_path, fedloom, monkeypatch):
    straight, folder = tmp_path / "straight", tmp_path / "run"
    assert fedloom("run", run_file, "--out", straight, "--quiet")[0] == 0
    with monkeypatch.context() as patch:
        full_disk(patch, after)
        code, _, err = fedloom("run", run_file, "--out", folder, "--quiet")
    assert code == 6
    assert "No space left on device" in err
    assert not list(folder.rglob("*.part"))  # no halves are left behind
    again = ("--resume", folder) if (folder / "run.toml").exists() else (run_file, "--out", folder)
    code, _, err = fedloom("run", *again, "--quiet")
    assert code == 0, err
    assert records(folder) == records(straight)


def a_bit(content):
    """One bit of the last weight, which is a number as any other."""
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


@pytest.mark.parametrize("damage", [a_bit, lambda b: b[: len(b) // 2], lambda b: b""])
def test_a_damaged_checkpoint_is_never_used(damage, run_file, tmp_path, fedloom):
    """The one before takes its place, which is said aloud; without one, it is named."""
    folder = tmp_path / "run"
    fedloom("run", run_file, "--out", folder, "--quiet")
    path, entries = folder / "checkpoint.safetensors", records(folder)
    whole = load_checkpoint(path)
    path.write_bytes(damage(path.read_bytes()))
    code, _, err = fedloom("run", "--resume", folder, "--quiet")
    assert code == 0, err
    assert f"warning: {path} is damaged" in err
    assert "Going on from the one before, of round 5" in err
    assert records(folder) == entries
    again = load_checkpoint(path)
    assert again.round == 6
    assert all(a.equal(whole.tensors[name]) for name, a in again.tensors.items())
    before = folder / "checkpoint-5.safetensors"
    for file in (path, before):
        file.write_bytes(damage(file.read_bytes()))
    code, _, err = fedloom("run", "--resume", folder)
    assert code == 3
    assert f"{path} is damaged" in err
    assert "no earlier checkpoint is whole: restore the folder from a backup" in err


def test_resume_needs_a_run_and_nothing_else(run_file, tmp_path, fedloom):
    code, _, err = fedloom("run", "--resume", tmp_path / "nowhere")
    assert code == 3
    assert "holds no run to resume" in err
    code, _, err = fedloom("run", run_file, "--resume", tmp_path)
    assert code == 2
    assert "no run file, --set, --out or --more" in err
    assert fedloom("run")[0] == 2


def test_divergence_has_its_own_code_and_keeps_what_was_done(run_file, tmp_path, fedloom):
    rule = "algorithm.lr={rule = 'step-decay', lr = 0.1, factor = 1e45, every = 6}"
    code, _, err = fedloom("run", run_file, "--out", tmp_path / "run", "--set", rule, "--quiet")
    assert code == 4
    assert "a smaller step size" in err
    assert [line["round"] for line in records(tmp_path / "run")] == [0, 2]
    assert load_checkpoint(tmp_path / "run" / "checkpoint.safetensors").round == 3


def test_a_loss_far_above_its_start_ends_the_run(run_file, tmp_path, fedloom):
    """What was done is there: records, ledger, checkpoint, report; and the line says what to
    change."""
    folder, much = tmp_path / "run", ["--set", "algorithm.lr=30000.0", "--set", "model.name=linear"]
    code, _, err = fedloom("run", run_file, "--out", folder, *much, "--quiet")
    assert code == 4
    assert "training diverged: the training loss is" in err
    assert 'relaxation = "auto" in [algorithm.hub]' in err
    assert "(now 30000)" in err
    last = records(folder)[-1]
    assert last["train_loss"] > 10 * records(folder)[0]["train_loss"]
    assert load_checkpoint(folder / "checkpoint.safetensors").records[-1].round <= last["round"]
    assert (folder / "ledger.json").is_file()
    assert "training loss grew" in (folder / "report.html").read_text()
    never = ["--set", "evaluation.diverged='none'"]
    assert fedloom("run", run_file, "--out", tmp_path / "on", *much, *never, "--quiet")[0] == 0
