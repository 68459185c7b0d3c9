"""Real parties that stop early: all in the same round, with the model of the simulation."""

import json

import pytest

from fedloom.core.topology import SERVER, Client
from tests.deployment.test_crashes import play
from tests.deployment.test_processes import SLOW, begin, rehearsal  # noqa: F401

RUN = """\
[data]
name = "iris"
validation = 0.25

[partition]
clients = [2, 1]

[algorithm]
local_steps = 6
lr = 0.6
batch = 20
rounds = 60

[evaluation]
every = 2

[stopping]
patience = 2
"""
NAMED = 'batch = 20\nname = "{}"\n'
WITH_SERVER = """
[model]
embedding = 4
head = {name = "linear"}
middle = {name = "linear"}
"""


def rounds_of(federation):
    outs = [federation.of(party) / "out" for party in federation.processes]
    return {json.loads((out / "done.json").read_text())["rounds"] for out in outs}


def check(federation, run):
    assert federation.compare(run, 0.0).is_equal
    assert rounds_of(federation) == {run.round}
    assert 0 < run.best.round < run.round < 60
    assert run.best.metric in run.halted


def test_all_stop_in_the_same_round_though_a_hub_was_killed(rehearsal):  # noqa: F811
    """Hub `a` dies while it tells the others what it found, and tells them the same again."""
    federation = rehearsal(RUN)
    run = federation.prepare()
    play(federation, run, [("a", "before validation")])
    check(federation, run)
    said = (federation.of("b") / "log").read_text()
    assert f"hub b: {run.halted}" in said


MORE = {
    "a metric": RUN + 'metric = "accuracy"\n',
    "participants": RUN.replace("batch = 20\n", 'batch = 3\nweighting = "participants"\n'),
    "private labels": RUN.replace("batch = 20\n", NAMED.format("tdcd-private-labels")),
    "splitnn": RUN.replace("batch = 20\n", NAMED.format("splitnn")),
    "vafl": RUN.replace("batch = 20\n", NAMED.format("vafl")),
    "vafl by arrival": RUN.replace("batch = 20\n", NAMED.format("vafl"))
    + '[engine]\norder = "arrival"\n',
}


@pytest.mark.slow
@pytest.mark.parametrize("what", MORE)
def test_other_algorithms(rehearsal, what):  # noqa: F811
    federation = rehearsal(MORE[what])
    run = begin(federation)
    federation.wait(SLOW)
    check(federation, federation.replayed() if federation.is_live else run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("party", "point"),
    [
        ("a", "after validation"),
        ("a", "before validation-scores"),
        ("b", "after hub-embedding"),
        (Client("a", "1"), "before validation-losses"),
        (Client("a", "1"), "after validation-losses"),
    ],
)
def test_killed_in_an_evaluation(rehearsal, party, point):  # noqa: F811
    federation = rehearsal(RUN)
    run = federation.prepare()
    play(federation, run, [(party, point)])
    check(federation, run)


@pytest.mark.slow
def test_with_a_server(rehearsal):  # noqa: F811
    federation = rehearsal(RUN.replace("batch = 20\n", NAMED.format("splitnn-u")) + WITH_SERVER)
    run = begin(federation)
    assert SERVER in federation.processes
    federation.wait(SLOW)
    check(federation, run)
