"""Killed at named lines of code, by SIGKILL, and started again: nothing is different."""

import pytest

from fedloom.core.topology import Client
from tests.deployment.test_processes import ONE, RUN, SLOW, kill, rehearsal  # noqa: F401

PRIVATE = RUN.replace("[algorithm]\n", '[algorithm]\nname = "tdcd-private-labels"\n')
HUB = [
    "before checkpoint",
    "writing links-2.msgpack",
    "between the two files",
    "writing checkpoint.safetensors",
    "written checkpoint.safetensors",
    "after checkpoint",
    "before model",
    "after model",
    "before hub-embedding",
    "after hub-embedding",
    "before rest",
    "after rest",
]
CLIENT = ["before embedding", "after embedding", "before update", "after update"]
LABELS = [
    "after checkpoint",
    "before hub-derivative",
    "after hub-derivative",
    "writing checkpoint.safetensors",
]


def play(federation, run, steps):
    """Each step: a party that dies at a point, the second time it gets there, and others that are
    killed at that moment. Whoever was killed is started again for the next step."""
    for party in run.placement.topology.parties:
        if party != steps[0][0]:
            federation.start(party)
    dead = set()
    for party, point, *others in steps:
        if party in federation.processes and party not in dead:
            kill(federation, party)  # it is given its point by being started anew
        for again in dead - {party}:
            federation.start(again, "--resume")
        options = ["--resume"] if party in federation.processes else []
        federation.start(party, *options, crash=f"{point}:{1 if 'links-' in point else 2}")
        code = federation.processes[party].wait(SLOW)
        assert code == -9, f"{party} at {point}: {code}, {federation.last_words(party)}"
        kill(federation, *others)
        dead = {party, *others}
    for party in dead:
        federation.start(party, "--resume")
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal


def sixty(text):
    return text.replace("150", "60")


@pytest.mark.slow
def test_a_hub(rehearsal):  # noqa: F811
    federation = rehearsal(sixty(RUN))
    points = ["before checkpoint", "writing checkpoint.safetensors", "after checkpoint"]
    points += ["before hub-embedding", "after hub-embedding"]
    play(federation, federation.prepare(), [("a", point) for point in points])


@pytest.mark.slow
def test_a_client_and_two_at_once(rehearsal):  # noqa: F811
    federation = rehearsal(sixty(RUN))
    steps = [
        (ONE, "before update"),
        (ONE, "after embedding", "a"),
        ("b", "writing checkpoint.safetensors", Client("b", "0"), "a"),
    ]
    play(federation, federation.prepare(), steps)


@pytest.mark.slow
def test_the_label_holder(rehearsal):  # noqa: F811
    federation = rehearsal(sixty(PRIVATE))
    play(
        federation,
        federation.prepare(),
        [("a", "before hub-derivative"), ("a", "after checkpoint")],
    )


ALL = {
    "hub a": (RUN, [("a", point) for point in HUB]),
    "hub b": (RUN, [("b", point) for point in HUB]),
    "clients": (RUN, [(ONE, point) for point in CLIENT]),
    "two hubs": (RUN, [("a", point, "b") for point in HUB if "links-" not in point]),
    "hub and client": (RUN, [("a", point, ONE) for point in HUB if "links-" not in point]),
    "label holder": (PRIVATE, [("a", point) for point in LABELS]),
    "other hub": (PRIVATE, [("b", point) for point in HUB[:6]]),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ALL)
def test_every_point(rehearsal, what):  # noqa: F811
    text, steps = ALL[what]
    federation = rehearsal(sixty(text))
    play(federation, federation.prepare(), steps)
