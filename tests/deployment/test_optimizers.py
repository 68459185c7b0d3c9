"""What clients and hubs remember of their optimisers, over their own death."""

import pytest

from tests.deployment.test_processes import (
    ONE,
    RUN,
    SLOW,
    begin,
    kill,
    reach,
    rehearsal,  # noqa: F401
)

TEXT = (
    RUN.replace("150", "40")
    + """
[algorithm.optimizer]
name = "adam"
state = "kept"
clip_norm = 1.0

[algorithm.hub]
name = "adam"
lr = 0.05
"""
)


def assert_remembered(federation, run):
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal
    assert len(run.fed.read(run.state.kept)) == 3
    assert len(run.fed.read(run.state.hub)) == 2


def test_a_client_and_its_hub_are_killed_and_go_on_with_what_they_remember(rehearsal):  # noqa: F811
    federation = rehearsal(TEXT)
    run = begin(federation)
    reach(federation, "a", 12)
    kill(federation, "a", ONE)
    for party in ("a", ONE):
        federation.start(party, "--resume")
    assert_remembered(federation, run)


@pytest.mark.slow
def test_hubs_and_clients_of_a_split_network(rehearsal):  # noqa: F811
    text = TEXT.replace("[algorithm]\n", '[algorithm]\nname = "splitnn"\n')
    head = '[model]\nname = "linear"\nembedding = 4\n[model.head]\nname = "linear"\n\n[algorithm]'
    federation = rehearsal(text.replace("[algorithm]", head, 1))
    run = begin(federation)
    reach(federation, "b", 12)
    kill(federation, "b", ONE)
    for party in ("b", ONE):
        federation.start(party, "--resume")
    assert_remembered(federation, run)
    assert len(run.fed.read(run.state.kept_top)) == 2
