"""State that clients keep, over their own death and over going back: with an algorithm of somebody
else, in real processes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedloom.algorithms.shared.tiered import MODEL
from fedloom.config.runfile import RunFile
from fedloom.core.errors import LostError, OutOfStepError, RefusedError
from fedloom.core.registry import algorithms
from fedloom.core.topology import Client
from fedloom.deployment.party.client_state import ClientState
from fedloom.deployment.party.past_rounds import LinkState, PastRounds
from fedloom.deployment.party.resume import Memory
from fedloom.deployment.rehearsal import Rehearsal
from fedloom.engines.party.engine import PartyEngine
from fedloom.fabric.attempts import START, ResumePoint
from fedloom.fabric.kinds import Key, Message
from fedloom.fabric.ledger import Ledger
from fedloom.fabric.schedule import Everyone, Recorded
from fedloom.records.snapshot import Snapshot
from fedloom.testing import placement, task
from fedloom.transports.grpc.tls import Identity, PeerAddress
from fedloom.transports.grpc.transport import GrpcTransport
from tests.deployment.test_processes import (
    ONE,
    QUICK,
    RUN,
    SLOW,
    assert_replays,
    begin,
    kill,
    reach,
)
from tests.deployment.test_rollback import backed_up, died, out, restored, went_back
from tests.helpers.personal import Personal

ONE_ASH = Client("ash", "0")
PROGRAM = f"""\
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from fedloom.cli.main import main
from fedloom.core.registry import algorithms
from fedloom.runs.run import Snapshot
from fedloom.testing import placement, task
from fedloom.transports.grpc import GrpcTransport
from fedloom.transports.grpc.tls import PeerAddress, Identity
from tests.helpers.personal import Personal
algorithms.register("personal")(Personal)
sys.exit(main(sys.argv[1:]))
"""
TEXT = RUN.replace("[algorithm]\n", '[algorithm]\nname = "personal"\n').replace("150", "30")


class WithPersonal(Rehearsal):
    """Its parties know the algorithm."""

    def launch(self, party, words, env):
        with (self.of(party) / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *words], env=env, stdout=log, stderr=log
            )


@pytest.fixture
def rehearsal(tmp_path):
    made = []

    def make(text=TEXT, **waits):
        made.append(WithPersonal(RunFile.parse(text), tmp_path / f"r{len(made)}", QUICK | waits))
        return made[-1]

    with algorithms.scratch():
        algorithms.register("personal")(Personal)
        yield make
    for federation in made:
        federation.stop()


def ended(federation, run, *rounds):
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal
    assert went_back(federation, "a") == list(rounds)


@pytest.mark.slow
def test_a_client_comes_back_with_what_it_has_kept(rehearsal):
    """And where it comes with something older, all go back to that."""
    federation = rehearsal()
    run = federation.prepare()
    for party in run.placement.topology.parties:
        if party != ONE:
            federation.start(party)
    died(federation, ONE, "after checkpoint:12")
    shutil.copytree(out(federation, ONE), federation.folder / "backup")
    federation.start(ONE, "--resume")
    reach(federation, "a", 15)
    kill(federation, ONE)
    restored(federation, ONE, federation.folder / "backup")
    federation.start(ONE, "--resume")
    ended(federation, run, 12)


@pytest.mark.slow
@pytest.mark.parametrize("party", ["a", "b"])
def test_a_hub_restored_from_a_backup(rehearsal, party):
    federation = rehearsal()
    run, copy = backed_up(federation, party, 10, 6)
    restored(federation, party, copy)
    federation.start(party, "--resume")
    ended(federation, run, 10)


@pytest.mark.slow
def test_a_client_that_has_lost_what_it_kept_is_refused(rehearsal):
    federation = rehearsal(patience=6.0)
    run = begin(federation)
    reach(federation, "a", 14)
    kill(federation, ONE)
    shutil.move(out(federation, ONE), federation.folder / "moved")
    federation.start(ONE, "--resume")
    with pytest.raises(LostError, match="exit code"):
        federation.wait(SLOW)
    assert federation.processes[ONE].returncode == 12
    last_words = federation.last_words(ONE)
    assert "client a/1 has its own state of round 0, and not of round" in last_words
    assert "restore its folder" in last_words
    assert federation.processes["a"].returncode == 10
    shutil.rmtree(out(federation, ONE))
    shutil.move(federation.folder / "moved", out(federation, ONE))
    for party in federation.processes:
        federation.start(party, "--resume")
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal


@pytest.mark.slow
def test_with_skip_it_counts_what_its_hub_accepted_last(rehearsal):
    long = TEXT.replace("rounds = 30", "rounds = 500\nrate = 0.00001")
    federation = rehearsal(long, on_missing_client="skip", deadline=20.0)
    run = federation.prepare()
    for party in run.placement.topology.parties:
        if party != ONE:
            federation.start(party)
    died(federation, ONE, "after checkpoint:8")
    federation.start(ONE, "--resume")
    federation.wait(SLOW)
    away = {
        moment.round for moment, who in assert_replays(federation).dropped.items() if "a" in who
    }
    assert 0 < len(away) < 480  # it was away, and came back


def past_of(folder, rounds, accepted):
    """A hub that has done so many rounds; of each, it accepted what its client sent in them, or
    the last time before."""
    past = PastRounds(folder, "e" * 64)
    past.scan()
    for round in range(1, rounds + 1):
        last = max(
            (accepted_round for accepted_round in accepted if accepted_round < round), default=None
        )
        receipts = [] if last is None else [(*ONE, last, 4)]
        past.save(
            Snapshot(round, {}, Ledger(), Recorded()), LinkState(run=past.run, receipts=receipts), 0
        )
    return past


def held(*rounds):
    return tuple(ResumePoint(round, "") for round in rounds)


def test_what_a_client_must_have_kept(tmp_path):
    client_state = ClientState(past_of(tmp_path, 12, accepted=[*range(8)]))
    for own in (held(8), held(12, 11, 8), held(10, 3)):  # nothing was accepted since round 8
        client_state.check(ONE, own, 12)
    assert client_state.offers(held(12, 11)) == held(12, 11)
    with pytest.raises(OutOfStepError, match="state of round 7, and not of round 12"):
        client_state.check(ONE, held(7, 6), 12)
    assert client_state.offers(held(12, 9, 8, 7, 6, 5)) == held(7, 6)
    client_state.check(ONE, held(12), 12)
    assert client_state.offers(held(12, 7)) == held(12, 7)  # it has found its newest again
    for own in ((START,), (ResumePoint(12, "of another attempt"), START)):
        with pytest.raises(RefusedError, match="nor of any that can be gone back to"):
            client_state.check(ONE, own, 12)


def a_client():
    """One that is connected to nobody."""
    rows, nowhere = placement(), PeerAddress("127.0.0.1:1", b"", "nobody", None)
    transport = GrpcTransport(ONE_ASH, "e" * 64, Identity(b"", b""), dials={"ash": nowhere})
    fed = PartyEngine(
        task(), task().shapes(rows, torch.float64), rows.view([ONE_ASH]), hosted=[ONE_ASH],
        transport=transport, seed=3, schedule=Everyone(),
    )  # fmt: skip
    return fed, transport


@pytest.mark.parametrize(
    ("receipt", "counts"), [(Key(0, 3), 1.0), (Key(0, 2), 0.0), (Key(-1, 9), 0.0), (None, 0.0)]
)
def test_what_is_not_decided_yet_is_kept_with_what_it_may_fall_back_to(tmp_path, receipt, counts):
    """Its hub tells which of the two counts with its next message; also to another process."""
    algorithm = Personal(local_steps=2, lr=0.2, batch=20)
    fed, transport = a_client()
    start = algorithm.start(fed)
    (old,) = fed.read(start.offset).values()
    offset = fed.place_clients({ONE_ASH: fed.add_pending(ONE_ASH, old + 1, old, Key(0, 3))})
    past = PastRounds(tmp_path, "e" * 64)
    past.scan()
    Memory(past).save(fed, start._replace(offset=offset), 1, transport, 0.0)
    again = PastRounds(tmp_path, "e" * 64)
    assert again.scan() == (ResumePoint(1, ""), START)
    fed, transport = a_client()
    state = Memory(again).restore(1, fed, algorithm, transport)
    fed.continue_from(1, {})
    fed.begin(1)
    message = Message(Key(1, 1), MODEL.name, "ash", ONE_ASH, torch.zeros(1), receipt)
    transport.mailbox(ONE_ASH).put(message)
    fed.to_clients(MODEL, start.theta)
    (offset,) = fed.read(state.offset).values()
    assert torch.equal(offset, old + counts)
