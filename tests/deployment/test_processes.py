"""Parties as processes of their own, killed and started again; every wait has an end."""

import random
import re
import signal
import time
from pathlib import Path

import pytest

from fedloom.cli.main import main
from fedloom.config.runfile import RunFile
from fedloom.core.errors import LostError
from fedloom.core.topology import Client
from fedloom.deployment.rehearsal import Rehearsal
from fedloom.fabric.schedule import Moment

RUN = """\
[data]
name = "iris"

[partition]
clients = [2, 1]

[algorithm]
local_steps = 2
lr = 0.05
batch = 20
rounds = 150
"""
ONE = Client("a", "1")
EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = {"patience": 60.0, "beat": 0.2, "silence": 2.0, "linger": 5.0}
SLOW = 120  # seconds: nothing here takes longer, or it is an error


@pytest.fixture
def rehearsal(tmp_path):
    made = []

    def make(text=RUN, **waits):
        federation = Rehearsal(RunFile.parse(text), tmp_path / f"r{len(made)}", {**QUICK, **waits})
        made.append(federation)
        return federation

    yield make
    for federation in made:
        federation.stop()


def begin(rehearsal):
    run = rehearsal.prepare()
    for party in run.placement.topology.parties:
        rehearsal.start(party)
    return run


def reach(rehearsal, party, round):
    """Wait until a party has done so many rounds."""
    until = time.monotonic() + SLOW
    log = rehearsal.of(party) / "log"
    while not log.exists() or f"round {round} of" not in log.read_text():
        assert time.monotonic() < until, "it did not get there in time"
        assert rehearsal.processes[party].poll() is None, rehearsal.last_words(party)
        time.sleep(0.02)


def kill(rehearsal, *parties):
    for party in parties:
        rehearsal.processes[party].send_signal(signal.SIGKILL)
    for party in parties:
        rehearsal.processes[party].wait()


def assert_replays(federation):
    """What happened, as the hubs recorded it, gives the same model and ledger in one process."""
    run = federation.replayed()
    assert federation.compare(run, 0.0).is_equal
    return run.schedule


def test_the_command(tmp_path, capsys):
    path = tmp_path / "small.toml"
    path.write_text(RUN.replace("150", "3"))
    assert main(["rehearse", str(path), "--out", str(tmp_path / "out"), "--within", "120"]) == 0
    output = capsys.readouterr().out
    assert "model: equal to the reference, bit for bit" in output
    assert "ledger: equal, message by message" in output
    assert main(["rehearse", str(path), "--out", str(tmp_path / "out")]) == 5


def test_running_statistics_travel_with_the_model(tmp_path):
    """BatchNorm, over gRPC: the same model, bit for bit, and the same bytes."""
    path = tmp_path / "run.toml"
    model = '\n[model]\nname = "mlp"\nhidden = [6]\nnorm = "batch"\n'
    path.write_text(RUN.replace("150", "3") + model)
    assert main(["rehearse", str(path), "--out", str(tmp_path / "out"), "--within", "120"]) == 0


@pytest.mark.slow
def test_the_example_whose_clients_lack_views(tmp_path, capsys):
    """What an algorithm demands of rows holds for the made-up ones of the agreement too."""
    shorter = ["--set", "algorithm.rounds=2", "--set", "data.take=300"]
    folder = ["--out", str(tmp_path / "out"), "--within", "120"]
    assert main(["rehearse", str(EXAMPLES / "hyfem-digits.toml"), *shorter, *folder]) == 0
    assert "model: equal to the reference, bit for bit" in capsys.readouterr().out


@pytest.mark.slow
def test_an_asynchronous_run_replays_its_order(rehearsal):
    vafl = RUN.replace("local_steps = 2\n", 'name = "vafl"\n').replace("150", "3")
    federation = rehearsal(vafl)
    run = begin(federation)
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal


MORE = [pytest.param(killed, marks=pytest.mark.slow) for killed in (("a",), (ONE,), ("a", ONE))]


@pytest.mark.parametrize("killed", [("a", "b"), *MORE], ids=lambda who: "+".join(map(str, who)))
def test_killed_parties_come_back_and_nothing_is_different(rehearsal, killed):
    federation = rehearsal()
    run = begin(federation)
    for round in (20, 70):
        reach(federation, "b" if round == 70 else "a", round)
        kill(federation, *killed)
        for party in killed:
            federation.start(party, "--resume")
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal


def said(federation, parties):
    """The last words of several."""
    return {federation.last_words(party) for party in parties}


def test_a_client_that_stays_away_ends_the_run_for_everyone(rehearsal):
    """Within the deadline, with one cause and one exit code; what was done is kept, and the run
    goes on from it."""
    federation = rehearsal(patience=6.0)
    run = begin(federation)
    reach(federation, "a", 20)
    kill(federation, ONE)
    with pytest.raises(LostError, match="hub a: exit code 10; hub b: exit code 10"):
        federation.wait(60)  # so long at most
    others = [party for party in federation.processes if party != ONE]
    assert all(federation.processes[party].returncode == 10 for party in others)
    (cause,) = said(federation, others)
    assert re.search("hub a waited for .* from client a/1, which did not answer within 6 s", cause)
    assert not (federation.of("a") / "out" / "done.json").exists()
    for party in federation.processes:
        federation.start(party, "--resume")
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal


THEIRS = Client("b", "0")


@pytest.mark.parametrize(
    "gone", [pytest.param(["b"], marks=pytest.mark.slow), ["b", THEIRS]], ids=["a hub", "a silo"]
)
def test_a_silo_that_is_gone_ends_the_run_for_everyone(rehearsal, gone):
    """Its neighbour names it, and so do its own clients, who hear of nobody else. When it is back,
    all go on."""
    federation = rehearsal(patience=4.0)
    run = begin(federation)
    reach(federation, "a", 20)
    kill(federation, *gone)
    with pytest.raises(LostError, match="hub a: exit code 10"):
        federation.wait(90)  # so long at most
    left = [party for party in federation.processes if party not in gone]
    assert {federation.processes[party].returncode for party in left} == {10}
    (cause,) = said(federation, ["a", ONE, Client("a", "0")])
    assert "from hub b, of which nothing was heard for 8 s" in cause
    assert "hub b" in federation.last_words(THEIRS) or THEIRS in gone
    assert not (federation.of("a") / "out" / "done.json").exists()
    for party in federation.processes:
        federation.start(party, "--resume")
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal


@pytest.mark.slow
def test_a_silo_that_is_not_back_is_named_at_every_start(rehearsal):
    federation = rehearsal(start=6.0)
    run = federation.prepare()
    for party in run.placement.topology.parties:
        if party not in ("b", THEIRS):
            federation.start(party)
    with pytest.raises(LostError, match="hub a: exit code 10"):
        federation.wait(90)
    assert {process.returncode for process in federation.processes.values()} == {10}
    (cause,) = said(federation, federation.processes)
    assert "hub a was not connected with hub b within 6 s" in cause


def test_a_missing_client_is_skipped_and_the_record_replays(rehearsal):
    federation = rehearsal(on_missing_client="skip", deadline=5.0)
    begin(federation)
    reach(federation, "a", 20)
    kill(federation, ONE)
    reach(federation, "a", 40)
    federation.start(ONE, "--resume")
    reach(federation, "a", 60)
    federation.wait(SLOW)
    assert any(names == {"a": ("1",)} for names in assert_replays(federation).dropped.values())


@pytest.mark.slow
def test_a_hub_dies_while_a_client_is_missing(rehearsal):
    """And the client is back before the hub is: the hub must not count it in that round."""
    federation = rehearsal(on_missing_client="skip", deadline=5.0)
    begin(federation)
    reach(federation, "a", 20)
    kill(federation, ONE)
    reach(federation, "a", 30)
    federation.start(ONE, "--resume")
    kill(federation, "a")
    federation.start("a", "--resume")
    federation.wait(SLOW)
    assert_replays(federation)


@pytest.mark.slow
def test_a_hub_dies_and_a_client_that_had_answered_too(rehearsal):
    """The hub tells the others what it told them before, though the client cannot answer again."""
    federation = rehearsal(on_missing_client="skip", deadline=20.0)
    run = federation.prepare()
    for party in run.placement.topology.parties:
        if party != "a":
            federation.start(party)
    federation.start("a", crash="after hub-embedding:9")
    federation.processes["a"].wait(SLOW)
    kill(federation, ONE)
    federation.start("a", "--resume")
    reach(federation, "a", 30)
    federation.start(ONE, "--resume")
    federation.wait(SLOW)
    record = assert_replays(federation)
    assert record.dropped[Moment(8, "update")] == {"a": ("1",)}
    assert Moment(8, "embedding") not in record.dropped


@pytest.mark.slow
def test_killed_at_random(rehearsal):
    """Whoever, whenever, one or two at a time: the model is that of an undisturbed run."""
    draw = random.Random(11)
    federation = rehearsal(RUN.replace("150", "600"))
    run = begin(federation)
    reach(federation, "a", 1)
    kills = 0
    while all(process.poll() is None for process in federation.processes.values()) and kills < 12:
        time.sleep(draw.uniform(0.0, 3.0))
        chosen = draw.sample(list(federation.processes), draw.choice([1, 1, 2]))
        if any(federation.processes[party].poll() is not None for party in chosen):
            break
        kill(federation, *chosen)
        kills += len(chosen)
        time.sleep(draw.uniform(0.0, 0.5))
        for party in chosen:
            federation.start(party, "--resume")
    federation.wait(SLOW)
    assert kills >= 5
    assert federation.compare(run, 0.0).is_equal
