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


def out(one, party):
    return one.of(party) / "out"


def died(one, party, point, *options):
    """Started, until it is killed there."""
    one.start(party, *options, crash=point)
    code = one.processes[party].wait(SLOW)
    assert code == -9, f"{party}: {code}, {one.last_words(party)}"


def backed_up(one, party, at, more):
    """All are started; one party's folder is copied after some rounds, and it is killed some rounds
    later. Returns the reference and the copy."""
    run = one.prepare()
    for other in run.placement.topology.parties:
        if other != party:
            one.start(other)
    died(one, party, f"after checkpoint:{at}")
    copy = one.folder / f"backup-{party}"
    shutil.copytree(out(one, party), copy)
    died(one, party, f"after checkpoint:{more}", "--resume")
    return run, copy


def restored(one, party, copy=None):
    """As if its machine had been lost; without a copy, its folder is."""
    shutil.rmtree(out(one, party))
    if copy is not None:
        shutil.copytree(copy, out(one, party))


def went_back(one, party):
    """To which rounds, by its own log."""
    return [told["round"] for told in events(one, party) if told["event"] == "went back"]


def ended(one, run, *rounds):
    """Everyone is done, with what an undisturbed run gives, and has told of going back."""
    one.wait(SLOW)
    assert one.compare(run, 0.0).is_equal
    for party in one.processes:
        told = went_back(one, party)
        assert told, party
        assert told == list(rounds[-len(told) :]), party  # its log may have been restored, too
    for hub in run.placement.topology.silos:
        told = json.loads((out(one, hub) / "schedule.json").read_text())
        assert [round for round, _ in told["back"]] == list(rounds)
        assert f"going on from round {rounds[0]}, attempt 1" in (one.of(hub) / "log").read_text()


@pytest.mark.parametrize("party", ["a", pytest.param("b", marks=pytest.mark.slow)])
def test_a_hub_restored_from_a_backup_six_rounds_behind(rehearsal, party):  # noqa: F811
    """Rounds are long enough for others to know what has been heard, and to keep it no more."""
    one = rehearsal(SHORT.replace("local_steps = 2", "local_steps = 50"), beat=0.05)
    run, copy = backed_up(one, party, 14, 6)
    restored(one, party, copy)
    one.start(party, "--resume")
    ended(one, run, 14)


def test_a_hub_that_has_lost_its_folder(rehearsal):  # noqa: F811
    """Nothing is left in common: all end with one line, which says what to restore. Then it goes
    on."""
    one = rehearsal(SHORT)
    run, copy = backed_up(one, "b", 14, 6)
    restored(one, "b")
    one.start("b", "--resume")
    with pytest.raises(LostError, match="exit code 13"):
        one.wait(SLOW)
    assert {process.returncode for process in one.processes.values()} == {13}
    (why,) = said(one, one.processes)
    assert "hub b has nothing but the start" in why
    assert "Restore the folder of hub b from a backup of rounds 11 to 20" in why
    restored(one, "b", copy)
    for party in one.processes:
        one.start(party, "--resume")
    ended(one, run, 14)


@pytest.mark.slow
def test_a_hub_that_has_lost_its_folder_while_others_hold_the_start(rehearsal):  # noqa: F811
    one = rehearsal(SHORT)
    run, _ = backed_up(one, "a", 4, 4)
    restored(one, "a")
    one.start("a", "--resume")
    ended(one, run, 0)


def copied(one, hub, rounds, *options):
    """Killed after so many rounds; its folder then."""
    died(one, hub, f"after checkpoint:{rounds}", *options)
    copy = one.folder / f"backup-{hub}-{rounds}"
    shutil.copytree(out(one, hub), copy)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("clients", ["alive", "started again"])
def test_hubs_restored_to_different_rounds(rehearsal, clients):  # noqa: F811
    one = rehearsal(THREE)
    run = one.prepare()
    for party in run.placement.topology.parties:
        if party != "c":
            one.start(party)
    last = copied(one, "c", 9)
    one.start("c", "--resume")
    reach(one, "b", 12)
    kill(one, "b")
    middle = copied(one, "b", 2, "--resume")
    one.start("b", "--resume")
    reach(one, "a", 17)
    kill(one, *(one.processes if clients == "started again" else "abc"))
    restored(one, "b", middle)
    restored(one, "c", last)
    for party in one.processes if clients == "started again" else "abc":
        one.start(party, "--resume")
    ended(one, run, 9)


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
    one = rehearsal(SHORT)
    run, copy = backed_up(one, "a", 10, 6)
    restored(one, "a", copy)
    if party == "b":
        kill(one, "b")
        one.start("b", "--resume", crash=point)
    one.start("a", "--resume", crash=point if party == "a" else None)
    assert one.processes[party].wait(SLOW) == -9
    if other is not None:
        kill(one, other)
        one.start(other, "--resume")
    one.start(party, "--resume")
    one.wait(SLOW)
    assert one.compare(run, 0.0).is_equal
    for each in one.processes:
        assert set(went_back(one, each)) <= {10}, each
        assert went_back(one, each) or each == party  # which was killed before it could say so
        begun = [told for told in events(one, each) if told["event"] == "started"]
        assert begun[-1]["attempt"] or isinstance(each, Client)


@pytest.mark.parametrize("party", ["a", pytest.param("b", marks=pytest.mark.slow)])
def test_with_skip_what_is_made_again_is_recorded_as_it_was_made_last(rehearsal, party):  # noqa: F811
    """A client that was away in these rounds is there when they are made again."""
    one = rehearsal(SHORT, **SKIP)
    run = one.prepare()
    for other in run.placement.topology.parties:
        if other != party:
            one.start(other)
    copy = copied(one, party, 10)
    kill(one, ONE)
    died(one, party, "after checkpoint:6", "--resume")
    one.start(ONE, "--resume")
    restored(one, party, copy)
    one.start(party, "--resume")
    one.wait(SLOW)
    record = assert_replays(one)
    assert [round for round, _ in record.back] == [10]
    away = {moment.round for moment, who in record.dropped.items() if "a" in who}
    assert away <= {10}  # it may come a little late for the first of them


@pytest.mark.slow
@pytest.mark.parametrize("party", ["a", "b"])
def test_an_order_that_was_found_is_found_again(rehearsal, party):  # noqa: F811
    one = rehearsal(LIVE.replace("150", "30").replace("60", "30"))
    _, copy = backed_up(one, party, 10, 6)
    restored(one, party, copy)
    one.start(party, "--resume")
    one.wait(SLOW)
    record = assert_replays(one)
    assert [round for round, _ in record.back] == [10]
    assert [len(turns) for turns in record.visits.values()] == [6] * 30


@pytest.mark.slow
def test_a_master_that_has_lost_what_it_decided_in_the_round(rehearsal):  # noqa: F811
    """It would decide otherwise; others have heard, and are elsewhere in the round by now."""
    one = rehearsal(LIVE.replace("max_delay = 3\n", ""))
    run = one.prepare()
    for party in run.placement.topology.parties:
        if party != "a":
            one.start(party)
    died(one, "a", f"after told:{3 * 6 * 9 + 13}")  # of the tenth round, the fifth turn
    for path in out(one, "a").glob("round-*"):
        path.unlink()
    one.start("a", "--resume")
    one.wait(SLOW)
    assert len(assert_replays(one).visits) == 60


@pytest.mark.slow
@pytest.mark.parametrize("party", [SERVER, "a"])
def test_with_a_server(rehearsal, party):  # noqa: F811
    one = rehearsal(SERVED)
    run, copy = backed_up(one, party, 10, 6)
    restored(one, party, copy)
    one.start(party, "--resume")
    ended(one, run, 10)


@pytest.mark.slow
def test_a_hub_with_its_clients_alone(rehearsal):  # noqa: F811
    """Nobody else remembers but they."""
    one = rehearsal(SHORT.replace("clients = [2, 1]", 'silos = ["a"]\nclients = 2'))
    run, copy = backed_up(one, "a", 10, 6)
    restored(one, "a", copy)
    one.start("a", "--resume")
    ended(one, run, 10)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["checkpoint.safetensors", "links-16.msgpack"])
def test_a_hub_whose_last_round_is_damaged(rehearsal, file):  # noqa: F811
    one = rehearsal(SHORT)
    run, _ = backed_up(one, "a", 10, 6)
    path = out(one, "a") / file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    one.start("a", "--resume")
    one.wait(SLOW)
    assert one.compare(run, 0.0).is_equal
    assert f"warning: {path} is damaged" in (one.of("a") / "log").read_text()


@pytest.mark.slow
def test_going_back_twice(rehearsal):  # noqa: F811
    """The second time, to a round of before the first: of an attempt that not all remember."""
    one = rehearsal(SHORT)
    run, copy = backed_up(one, "a", 10, 6)
    restored(one, "a", copy)
    died(one, "a", "after checkpoint:4", "--resume")
    restored(one, "a", copy)
    one.start("a", "--resume")
    ended(one, run, 10, 10)


@pytest.mark.slow
def test_all_restored_to_one_moment_go_on_without_a_word(rehearsal):  # noqa: F811
    one = rehearsal(SHORT)
    run = one.prepare()
    for party in run.placement.topology.parties:
        one.start(party)
    reach(one, "a", 8)
    kill(one, *one.processes)
    for party in one.processes:
        shutil.copytree(out(one, party), one.folder / "then" / str(party).replace("/", "-"))
        one.start(party, "--resume")
    reach(one, "a", 16)
    kill(one, *one.processes)
    for party in one.processes:
        restored(one, party, one.folder / "then" / str(party).replace("/", "-"))
        one.start(party, "--resume")
    one.wait(SLOW)
    assert one.compare(run, 0.0).is_equal
    assert not any(went_back(one, party) for party in one.processes)
