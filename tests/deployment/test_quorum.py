"""With `skip`, a quorum of a silo's clients must be there: processes killed with SIGKILL."""

import json
import re
import time
from collections import defaultdict

import pytest

from fedloom.core.errors import LostError
from fedloom.core.topology import Client
from tests.deployment.test_processes import (
    RUN,
    SLOW,
    assert_replays,
    begin,
    kill,
    reach,
    rehearsal,  # noqa: F401
    said,
)

THREE = RUN.replace("[2, 1]", "[3, 1]").replace("150", "400")
ZERO, ONE, TWO = (Client("a", name) for name in "012")
WAITS = {"on_missing_client": "skip", "deadline": 10.0, "quorum": 2}


def events(federation, party):
    """What a party has written down so far, in its order; the last line may not be whole yet."""
    log = federation.of(party) / "out" / "log.jsonl"
    lines = log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []
    return [json.loads(line) for line in lines]


def places(federation, party, event, **facts):
    """Where in its log a party tells of an event."""
    wanted = {"event": event, **facts}
    log = events(federation, party)
    return [k for k, entry in enumerate(log) if wanted.items() <= entry.items()]


def until(ready):
    end = time.monotonic() + SLOW
    while not ready():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.slow
def test_above_the_quorum_it_goes_on_and_below_it_waits(rehearsal):  # noqa: F811
    federation = rehearsal(THREE, **WAITS)
    begin(federation)
    reach(federation, "a", 20)
    kill(federation, ONE)
    reach(federation, "a", 40)  # two of three are enough
    kill(federation, TWO)
    until(lambda: places(federation, "a", "left", peer=str(TWO)))
    for party in (ONE, TWO):
        federation.start(party, "--resume")
    federation.wait(SLOW)
    (left, *_), log = places(federation, "a", "left", peer=str(TWO)), events(federation, "a")
    back = next(k for k in range(left, len(log)) if log[k]["event"] == "joined")
    assert sum(event["event"] == "round" for event in log[left:back]) <= 1  # it had its answers
    away = defaultdict(set)
    for moment, dropped in assert_replays(federation).dropped.items():
        away[moment.round].update(dropped.get("a", ()))
    assert {"1"} in away.values()
    assert max(map(len, away.values())) == 1


@pytest.mark.slow
def test_below_the_quorum_the_run_ends_for_everyone_and_goes_on_from_there(rehearsal):  # noqa: F811
    """After `patience`, with one cause and one exit code."""
    federation = rehearsal(THREE, patience=8.0, **WAITS)
    begin(federation)
    reach(federation, "a", 20)
    kill(federation, ONE, TWO)
    with pytest.raises(LostError, match=r"hub a: exit code 10; .*hub b: exit code 10"):
        federation.wait(90)  # so long at most
    others = ["a", "b", ZERO, Client("b", "0")]
    assert [federation.processes[party].returncode for party in others] == [10] * 4
    (cause,) = said(federation, others)
    few = "fewer than 2 clients of hub a, its quorum, (answered|are connected) within 8 s"
    assert re.search(few, cause)
    assert not (federation.of("a") / "out" / "done.json").exists()
    clients = [party for party in federation.processes if isinstance(party, Client)]
    for party in clients:
        federation.start(party, "--resume")
    until(lambda: all(len(places(federation, party, "started")) == 2 for party in clients))
    for hub in ("a", "b"):
        federation.start(hub, "--resume")
    federation.wait(SLOW)
    assert_replays(federation)
