"""A hub that comes from an earlier moment than the others: a backup, an empty folder, a damaged
file. All go on from what all hold, and say so; with real processes and SIGKILL."""

import json
import shutil

import pytest

from fedloom.core.errors import LostError
from fedloom.core.topology import SERVER, Client
from tests.deployment.test_predict import MIDDLE
from tests.deployment.test_processes import (
    ONE,
    RUN,
    SLOW,
    assert_replays,
    kill,
    reach,
    rehearsal,  # noqa: F401
    said,
)
from tests.deployment.test_quorum import events
from tests.deployment.test_visits import LIVE

SHORT = RUN.replace("150", "30")
THREE = SHORT.replace("clients = [2, 1]", 'silos = ["a", "b", "c"]\nclients = [2, 1, 1]').replace(
    '"iris"', '"diabetes"'
)
SERVED = SHORT.replace("local_steps = 2\n", 'name = "splitnn-u"\n') + MIDDLE
SKIP = {"on_missing_client": "skip", "deadline": 20.0}


def out(federation, party):
    return federation.of(party) / "out"


def died(federation, party, point, *options):
    """Started, until it is killed there."""
    federation.start(party, *options, crash=point)
    code = federation.processes[party].wait(SLOW)
    assert code == -9, f"{party}: {code}, {federation.last_words(party)}"


def backed_up(federation, party, at, more):
    """All are started; one party's folder is copied after some rounds, and it is killed some rounds
    later. Returns the reference and the copy."""
    run = federation.prepare()
    for other in run.placement.topology.parties:
        if other != party:
            federation.start(other)
    died(federation, party, f"after checkpoint:{at}")
    copy = federation.folder / f"backup-{party}"
    shutil.copytree(out(federation, party), copy)
    died(federation, party, f"after checkpoint:{more}", "--resume")
    return run, copy


def restored(federation, party, copy=None):
    """As if its machine had been lost; without a copy, its folder is."""
    shutil.rmtree(out(federation, party))
    if copy is not None:
        shutil.copytree(copy, out(federation, party))


def went_back(federation, party):
    """To which rounds, by its own log."""
    return [event["round"] for event in events(federation, party) if event["event"] == "went back"]


def ended(federation, run, *rounds):
    """Everyone is done, with what an undisturbed run gives, and has told of going back."""
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal
    for party in federation.processes:
        rounds_back = went_back(federation, party)
        assert rounds_back, party
        # its log may have been restored, too
        assert rounds_back == list(rounds[-len(rounds_back) :]), party
    known = []
    for hub in run.placement.topology.silos:
        schedule = json.loads((out(federation, hub) / "schedule.json").read_text())
        known.append([round for round, _ in schedule["back"]])
        assert known[-1] == list(rounds[-len(known[-1]) :])  # a restored hub may not know the first
        assert (
            f"going on from round {rounds[0]}, attempt 1"
            in (federation.of(hub) / "log").read_text()
        )
    assert max(known, key=len) == list(rounds)


@pytest.mark.parametrize("party", ["a", pytest.param("b", marks=pytest.mark.slow)])
def test_a_hub_restored_from_a_backup_six_rounds_behind(rehearsal, party):  # noqa: F811
    """Rounds are long enough for others to know what has been heard, and to keep it no more."""
    federation = rehearsal(SHORT.replace("local_steps = 2", "local_steps = 50"), beat=0.05)
    run, copy = backed_up(federation, party, 14, 6)
    restored(federation, party, copy)
    federation.start(party, "--resume")
    ended(federation, run, 14)


def test_a_hub_that_has_lost_its_folder(rehearsal):  # noqa: F811
    """Nothing is left in common: all end with one line, which says what to restore. Then it goes
    on."""
    federation = rehearsal(SHORT)
    run, copy = backed_up(federation, "b", 14, 6)
    restored(federation, "b")
    federation.start("b", "--resume")
    with pytest.raises(LostError, match="exit code 13"):
        federation.wait(SLOW)
    assert {process.returncode for process in federation.processes.values()} == {13}
    (why,) = said(federation, federation.processes)
    assert "hub b has nothing but the start" in why
    assert "Restore the folder of hub b from a backup of rounds 11 to 20" in why
    restored(federation, "b", copy)
    for party in federation.processes:
        federation.start(party, "--resume")
    ended(federation, run, 14)


@pytest.mark.slow
def test_a_hub_that_has_lost_its_folder_while_others_hold_the_start(rehearsal):  # noqa: F811
    federation = rehearsal(SHORT)
    run, _ = backed_up(federation, "a", 4, 4)
    restored(federation, "a")
    federation.start("a", "--resume")
    ended(federation, run, 0)


def copied(federation, hub, rounds, *options):
    """Killed after so many rounds; its folder then."""
    died(federation, hub, f"after checkpoint:{rounds}", *options)
    copy = federation.folder / f"backup-{hub}-{rounds}"
    shutil.copytree(out(federation, hub), copy)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("clients", ["alive", "started again"])
def test_hubs_restored_to_different_rounds(rehearsal, clients):  # noqa: F811
    federation = rehearsal(THREE)
    run = federation.prepare()
    for party in run.placement.topology.parties:
        if party != "c":
            federation.start(party)
    last = copied(federation, "c", 9)
    federation.start("c", "--resume")
    reach(federation, "b", 12)
    kill(federation, "b")
    middle = copied(federation, "b", 2, "--resume")
    federation.start("b", "--resume")
    reach(federation, "a", 17)
    kill(federation, *(federation.processes if clients == "started again" else "abc"))
    restored(federation, "b", middle)
    restored(federation, "c", last)
    for party in federation.processes if clients == "started again" else "abc":
        federation.start(party, "--resume")
    ended(federation, run, 9)


NEGOTIATING = {
    "who decides, before others know": ("a", "agreed:1", None),
    "who decides, having written it": ("a", "went back:1", None),
    "another, before it has written it": ("b", "before agreeing:1", None),
    "another, having written it": ("b", "went back:1", None),
    "both": ("b", "agreed:1", "a"),
}


@pytest.mark.slow
@pytest.mark.parametrize("when", NEGOTIATING)
def test_killed_again_while_hubs_agree(rehearsal, when):  # noqa: F811
    party, point, other = NEGOTIATING[when]
    federation = rehearsal(SHORT)
    run, copy = backed_up(federation, "a", 10, 6)
    restored(federation, "a", copy)
    if party == "b":
        kill(federation, "b")
        federation.start("b", "--resume", crash=point)
    federation.start("a", "--resume", crash=point if party == "a" else None)
    assert federation.processes[party].wait(SLOW) == -9
    if other is not None:
        kill(federation, other)
        federation.start(other, "--resume")
    federation.start(party, "--resume")
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal
    for member in federation.processes:
        assert set(went_back(federation, member)) <= {10}, member
        # the one that was killed could not say so before
        assert went_back(federation, member) or member == party
        begun = [event for event in events(federation, member) if event["event"] == "started"]
        assert begun[-1]["attempt"] or isinstance(member, Client)


@pytest.mark.parametrize("party", ["a", pytest.param("b", marks=pytest.mark.slow)])
def test_with_skip_what_is_made_again_is_recorded_as_it_was_made_last(rehearsal, party):  # noqa: F811
    """A client that was away in these rounds is there when they are made again."""
    federation = rehearsal(SHORT, **SKIP)
    run = federation.prepare()
    for other in run.placement.topology.parties:
        if other != party:
            federation.start(other)
    copy = copied(federation, party, 10)
    kill(federation, ONE)
    died(federation, party, "after checkpoint:6", "--resume")
    federation.start(ONE, "--resume")
    restored(federation, party, copy)
    federation.start(party, "--resume")
    federation.wait(SLOW)
    record = assert_replays(federation)
    assert [round for round, _ in record.back] == [10]
    away = {moment.round for moment, who in record.dropped.items() if "a" in who}
    assert away <= {10}  # it may come a little late for the first of them


@pytest.mark.slow
@pytest.mark.parametrize("party", ["a", "b"])
def test_an_order_that_was_found_is_found_again(rehearsal, party):  # noqa: F811
    federation = rehearsal(LIVE.replace("150", "30").replace("60", "30"))
    _, copy = backed_up(federation, party, 10, 6)
    restored(federation, party, copy)
    federation.start(party, "--resume")
    federation.wait(SLOW)
    record = assert_replays(federation)
    assert [round for round, _ in record.back] == [10]
    assert [len(turns) for turns in record.visits.values()] == [6] * 30


@pytest.mark.slow
def test_a_master_that_has_lost_what_it_decided_in_the_round(rehearsal):  # noqa: F811
    """It would decide otherwise; others have heard, and are elsewhere in the round by now."""
    federation = rehearsal(LIVE.replace("max_delay = 3\n", ""))
    run = federation.prepare()
    for party in run.placement.topology.parties:
        if party != "a":
            federation.start(party)
    died(federation, "a", f"after told:{3 * 6 * 9 + 13}")  # of the tenth round, the fifth turn
    for path in out(federation, "a").glob("round-*"):
        path.unlink()
    federation.start("a", "--resume")
    federation.wait(SLOW)
    assert len(assert_replays(federation).visits) == 60


@pytest.mark.slow
@pytest.mark.parametrize("party", [SERVER, "a"])
def test_with_a_server(rehearsal, party):  # noqa: F811
    federation = rehearsal(SERVED)
    run, copy = backed_up(federation, party, 10, 6)
    restored(federation, party, copy)
    federation.start(party, "--resume")
    ended(federation, run, 10)


@pytest.mark.slow
def test_a_hub_with_its_clients_alone(rehearsal):  # noqa: F811
    """Nobody else remembers but they."""
    federation = rehearsal(SHORT.replace("clients = [2, 1]", 'silos = ["a"]\nclients = 2'))
    run, copy = backed_up(federation, "a", 10, 6)
    restored(federation, "a", copy)
    federation.start("a", "--resume")
    ended(federation, run, 10)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["checkpoint.safetensors", "links-16.msgpack"])
def test_a_hub_whose_last_round_is_damaged(rehearsal, file):  # noqa: F811
    federation = rehearsal(SHORT)
    run, _ = backed_up(federation, "a", 10, 6)
    path = out(federation, "a") / file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    federation.start("a", "--resume")
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal
    assert f"warning: {path} is damaged" in (federation.of("a") / "log").read_text()


@pytest.mark.slow
def test_going_back_twice(rehearsal):  # noqa: F811
    """The second time, to a round of before the first: of an attempt that not all remember."""
    federation = rehearsal(SHORT)
    run, copy = backed_up(federation, "a", 10, 6)
    restored(federation, "a", copy)
    died(federation, "a", "after checkpoint:4", "--resume")
    restored(federation, "a", copy)
    federation.start("a", "--resume")
    ended(federation, run, 10, 10)


@pytest.mark.slow
def test_all_restored_to_one_moment_go_on_without_a_word(rehearsal):  # noqa: F811
    federation = rehearsal(SHORT)
    run = federation.prepare()
    for party in run.placement.topology.parties:
        federation.start(party)
    reach(federation, "a", 8)
    kill(federation, *federation.processes)
    for party in federation.processes:
        shutil.copytree(
            out(federation, party), federation.folder / "then" / str(party).replace("/", "-")
        )
        federation.start(party, "--resume")
    reach(federation, "a", 16)
    kill(federation, *federation.processes)
    for party in federation.processes:
        restored(federation, party, federation.folder / "then" / str(party).replace("/", "-"))
        federation.start(party, "--resume")
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal
    assert not any(went_back(federation, party) for party in federation.processes)
