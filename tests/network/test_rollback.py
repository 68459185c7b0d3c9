"""A hub that comes from an earlier moment than the others: a backup, an empty folder, a damaged
file. All go on from what all hold, and say so; with real processes and SIGKILL."""

import json
import shutil

import pytest

from fedloom.errors import LostError

from .test_processes import (
    RUN,
    SLOW,
    rehearsal,  # noqa: F401
    said,
)
from .test_quorum import events

SHORT = RUN.replace("150", "40")


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
        assert went_back(one, party) == list(rounds), party
    for hub in run.placement.topology.silos:
        told = json.loads((out(one, hub) / "schedule.json").read_text())
        assert [round for round, _ in told["back"]] == list(rounds)
        assert f"going on from round {rounds[0]}, attempt 1" in (one.of(hub) / "log").read_text()


@pytest.mark.parametrize("party", ["a", pytest.param("b", marks=pytest.mark.slow)])
def test_a_hub_restored_from_a_backup_six_rounds_behind(rehearsal, party):  # noqa: F811
    one = rehearsal(SHORT)
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
    with pytest.raises(LostError, match="hub a: exit code 13; hub b: exit code 13"):
        one.wait(SLOW)
    assert {process.returncode for process in one.processes.values()} == {13}
    (why,) = said(one, one.processes)
    assert "hub b has nothing but the start" in why
    assert "Restore the folder of hub b from a backup of rounds 11 to 20" in why
    restored(one, "b", copy)
    for party in one.processes:
        one.start(party, "--resume")
    ended(one, run, 14)
