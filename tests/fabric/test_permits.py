"""Only what was agreed on passes, out and in."""

import pytest
import torch

from fedloom import Run
from fedloom.core.errors import FrameError
from fedloom.core.placed import Rows
from fedloom.core.registry import algorithms
from fedloom.core.topology import Client
from fedloom.deployment.agreement.agreement import permits_of
from fedloom.engines.party.reference import reference
from fedloom.fabric.kinds import Key, Message
from fedloom.fabric.permits import Permits
from fedloom.fabric.schedule import Drawn, Everyone
from fedloom.models.task import Theta
from fedloom.runs.loop import play
from fedloom.testing.samples import examples_of, sample_of
from fedloom.transports import wire
from fedloom.transports.links.link import Link
from fedloom.transports.mailbox import Mailbox
from fedloom.transports.memory import MemoryTransport

ONE = Client("ash", "1")


def run_of(algorithm):
    task, rows = sample_of(algorithm)
    return Run(algorithm, task, rows, engine="reference", precision="float64", seed=3)


class Checking(MemoryTransport):
    def __init__(self, parties, permits):
        super().__init__(parties)
        self._permits = permits

    def send(self, message):
        self._permits.check(message)
        super().send(message)


@pytest.mark.parametrize("name", sorted(algorithms))
def test_whatever_an_algorithm_sends_was_listed_before(name):
    """Of the first round, all rounds follow: whoever is there, whoever visits."""
    for algorithm in examples_of(algorithms[name]):
        run = run_of(algorithm)
        permits = permits_of(run)
        for schedule in (Everyone(), Drawn(0.6, seed=1)):
            rows = run.placement
            options = {"seed": 3, "schedule": schedule, "device": "cpu"}
            fed = reference(run.task, run.shapes, rows, **options)
            fed._transport = Checking(rows.topology.parties, permits)
            assert len(list(play(fed, algorithm, 4))) == 4


@pytest.fixture(scope="module")
def permits():
    return permits_of(run_of(examples_of(algorithms["tdcd"])[0]))


def test_they_survive_json(permits):
    assert Permits.from_json(permits.to_json()) == permits


def message(kind, payload, source=ONE, to="ash"):
    return Message(Key(0, 1), kind, source, to, payload)


ROWS = torch.zeros(5, 3, dtype=torch.float64)


def test_the_number_of_rows_is_free(permits):
    for count in (0, 1, 30):
        permits.check(message("embedding", torch.zeros(count, 3, dtype=torch.float64)))
        with pytest.raises(FrameError):  # that of their columns is not
            permits.check(message("embedding", torch.zeros(count, 4, dtype=torch.float64)))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (message("features", ROWS), "was not agreed on"),
        (message("embedding", ROWS, "ash", "birch"), "was not agreed on"),
        (message("model", Theta({}, {}), ONE, "ash"), "was not agreed on"),
        (message("embedding", ROWS.float()), "not as agreed on: .*float32"),
        (message("embedding", torch.zeros(5, 4, dtype=torch.float64)), "not as agreed on"),
        (message("embedding", Rows(ROWS, ROWS[:, 0] > 0)), "not as agreed on"),
        (message("embedding", (ROWS, "a word besides")), "not as agreed on"),
        (message("update", Theta({}, {})), "not as agreed on"),
        (message("end", ROWS, "ash", ONE), "carries too much"),
        (message("told", (ROWS,), "ash", ONE), "carries too much"),
    ],
)
def test_what_was_not_agreed_on_is_refused_both_ways(permits, bad, why):
    out = Link(bad.source, bad.to, "r", Mailbox(bad.source), permits=permits)
    with pytest.raises(FrameError, match=why):
        out.post(bad, wire.body_of(bad.payload, bad.kind))
    mailbox = Mailbox(bad.to)
    into = Link(bad.to, bad.source, "r", mailbox, permits=permits)
    with pytest.raises(FrameError, match=why):
        into.receive(wire.encode(bad, "r"))
    assert mailbox.take_each([bad.source], bad.key, 0) == {}
