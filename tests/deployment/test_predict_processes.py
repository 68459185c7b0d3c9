"""Prediction by parties that are processes of their own; some are killed."""

import signal
import time

import pytest
import torch

from fedloom.core.errors import LostError
from fedloom.core.topology import Client
from tests.helpers.predictions import SLOW, parties_of, read_scores, text_of, write_ids

ONE, B0 = Client("a", "1"), Client("b", "0")


@pytest.mark.timeout(600)
def test_rehearsed_and_asked(finished):
    """Real processes, from training to scores."""
    made, run = finished(text_of("tdcd").replace("rounds = 2", "rounds = 5"))
    for party in parties_of(made):
        for path in (made.of(party) / "out").iterdir():
            path.unlink()
        made.start(party)
    made.wait(SLOW)
    assert made.compare(run, 0.0).is_equal
    ids = write_ids(made, range(run.placement.size))
    for party in parties_of(made):
        own = ("--ids", str(ids), "--out", str(made.folder / "scores.csv"))
        made.start(party, *(own if party == ONE else ("--for", "a/1")), verb="predict")
    made.wait(SLOW)
    scores, by = read_scores(made)
    assert torch.equal(scores, run.predict("train"))
    assert set(by) == {"a+b"}
    assert (
        f"{run.placement.size} of {run.placement.size} rows" in (made.of("b") / "log").read_text()
    )
    assert len({log.splitlines()[-1].split()[-1] for log in logs(made)}) <= 2  # version, written


def logs(made):
    return [path.read_text() for path in made.folder.glob("parties/*/log")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lost", [ONE, "b"], ids=str)
def test_somebody_who_dies_ends_it_for_everyone(finished, lost):
    """Processes, SIGKILL: exit code 10 everywhere, within the deadlines, and no scores; asked
    again, all is well."""
    made, run = finished(text_of("tdcd"), start=30.0, patience=5.0)
    ids, out = write_ids(made, range(run.placement.size)), made.folder / "scores.csv"
    options = {B0: ("--ids", str(ids), "--out", str(out))}
    parties = [party for party in parties_of(made) if party != B0]

    def start(*some):
        for party in some:
            made.start(party, *options.get(party, ("--for", "b/0")), verb="predict")

    start(*parties)
    until = time.monotonic() + SLOW
    audit = made.of(lost) / "out" / "audit.jsonl"
    while not audit.exists() or '"joined"' not in audit.read_text():
        assert time.monotonic() < until
        assert made.processes[lost].poll() is None, made.last_words(lost)
        time.sleep(0.02)
    made.processes[lost].send_signal(signal.SIGKILL)
    made.processes[lost].wait()
    start(B0)
    with pytest.raises(LostError, match="exit code"):
        made.wait(SLOW)
    codes = {party: made.processes[party].returncode for party in parties_of(made)}
    assert codes.pop(lost) == -signal.SIGKILL
    assert set(codes.values()) == {10}, codes
    assert not out.exists()
    start(*parties, B0)
    made.wait(SLOW)
    assert torch.equal(read_scores(made)[0], run.predict("train"))
