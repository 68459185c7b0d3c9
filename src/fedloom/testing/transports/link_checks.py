"""Checks of links between processes: connections break, processes end and come back, the wrong
party connects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from threading import Event, Thread

import torch

from ...core.errors import FrameError, LostError, OutOfStepError, RefusedError
from ...core.topology import Client, Party, Topology
from ...fabric.attempts import AttemptHistory
from ...fabric.permits import Permits
from ...transports.links.party import PartyTransport, Timing
from ...transports.links.position import Position
from .federation import (
    ASH,
    ASH_1,
    ASH_2,
    BIRCH,
    TOPOLOGY,
    Federation,
    Make,
    Wires,
    message,
    problem_at,
    run_over,
    take,
    together,
    topology_of,
    until,
)

LinkCheck = Callable[[Make], None]
LINK_CHECKS: dict[str, LinkCheck] = {}
CUTS, EVERY = 8, 0.15  # of each connection; seconds
BRIEF = Timing(beat=0.1, silence=1.0, linger=1.0)  # where somebody stays away for good


def _check(f: LinkCheck) -> LinkCheck:
    LINK_CHECKS[f.__name__] = f
    return f


def _meet(parties: Federation) -> None:
    """Until everybody is connected with all that it has links to."""

    def all_there() -> bool:
        return all(set(party.health().present) == set(party.links) for party in parties.values())

    until(all_there, "everybody is connected")


@contextmanager
def _cutting(wires: Wires, topology: Topology) -> Iterator[None]:
    """All connections, one after the other; some times, since a slow machine must get on, too."""
    pairs: list[tuple[Party, Party]] = [*pairwise(topology.silos)]
    pairs += [(silo, client) for silo in topology.silos for client in topology.of(silo)]
    over = Event()

    def cut() -> None:
        for _ in range(CUTS):
            for pair in pairs:
                wires.cut(*pair)
            if over.wait(EVERY):
                return

    cutting = Thread(target=cut)
    cutting.start()
    try:
        yield
    finally:
        over.set()
        cutting.join()


@_check
def resumes(make: Make) -> None:
    """Connections break while messages are on their way: each arrives once, in its order."""
    ways: list[tuple[Party, Party]] = [(ASH_1, ASH), (ASH, ASH_1), (BIRCH, ASH), (ASH, BIRCH)]
    with Federation(make) as parties:
        parties.start(*TOPOLOGY.parties)
        with _cutting(parties.wires, TOPOLOGY):
            for move in range(1, 61):
                for source, to in ways:
                    parties[source].send(message(source, to, move, torch.full((500,), move)))
                time.sleep(0.02)
        for source, to in ways:
            received = [int(take(parties[to], to, source, move)[0]) for move in range(1, 61)]
            assert received == [*range(1, 61)], f"from {source} to {to}"
            assert parties[to].mailbox(to).waiting(source) == 0, "something came twice"


@_check
def runs_on(make: Make) -> None:
    """A whole run over connections that break is the run that it would have been."""
    topology = topology_of("tdcd")
    with Federation(make, topology) as parties:
        parties.start(*topology.parties)
        with _cutting(parties.wires, topology):
            run_over(parties, "tdcd", rounds=3)


@_check
def hears_again(make: Make) -> None:
    """A client's restarted process receives the messages of its hub's current round again; what it
    sends twice counts once."""
    with Federation(make, timing=BRIEF) as parties:
        parties.start(ASH, ASH_1)
        for move in (1, 2):
            parties[ASH_1].send(message(ASH_1, ASH, move, torch.tensor(move)))
            parties[ASH].send(message(ASH, ASH_1, move, torch.tensor(-move)))
            take(parties[ASH], ASH, ASH_1, move)
            take(parties[ASH_1], ASH_1, ASH, move)
        parties[ASH_1].abandon()
        again = parties.start(ASH_1)
        assert [int(take(again, ASH_1, ASH, move)) for move in (1, 2)] == [-1, -2]
        for move in (1, 2, 3):
            again.send(message(ASH_1, ASH, move, torch.tensor(move)))
        assert int(take(parties[ASH], ASH, ASH_1, 3)) == 3
        assert parties[ASH].mailbox(ASH).waiting(ASH_1) == 0


@_check
def gone_and_back(make: Make) -> None:
    """A client without a connection counts as gone after a time, until it is back."""
    timing = Timing(beat=0.1, silence=1.0, linger=5.0, absent=0.3)
    with Federation(make, timing=timing) as parties:
        parties.start(*TOPOLOGY.parties)
        _meet(parties)
        box = parties[ASH].mailbox(ASH)
        assert not box.is_gone(ASH_1)
        parties[ASH_1].abandon()
        until(lambda: box.is_gone(ASH_1), "it counts as gone")
        assert ASH_1 not in parties[ASH].health().present
        assert not box.is_gone(ASH_2)
        parties.start(ASH_1)
        until(lambda: not box.is_gone(ASH_1), "it is back")
        parties[ASH_1].send(message(ASH_1, ASH, 1))
        take(parties[ASH], ASH, ASH_1, 1)


@_check
def goodbye(make: Make) -> None:
    """What was on its way when a party closed still arrives; then nobody waits for it."""
    with Federation(make) as parties:
        parties.start(*TOPOLOGY.parties)
        for number in range(1, 21):
            parties[ASH_1].send(message(ASH_1, ASH, number, torch.zeros(5000)))
            parties[ASH].send(message(ASH, BIRCH, number, torch.zeros(5000)))
    for me, source in ((ASH, ASH_1), (BIRCH, ASH)):
        box = parties[me].mailbox(me)
        assert box.waiting(source) == 20, f"{box.waiting(source)} of 20 messages of {source} came"
        assert box.is_gone(source)
        assert parties[me].links[source].bye


@_check
def another_run(make: Make) -> None:
    """A party with another run's fingerprint is refused, and hears why."""
    with Federation(make, timing=BRIEF) as parties:
        parties.start(ASH, ASH_2)
        other = parties.start(ASH_1, run="b" * 64)
        problem = _problem(other)
        assert isinstance(problem, RefusedError), repr(problem)
        assert "different runs" in str(problem)
        parties[ASH_2].send(message(ASH_2, ASH, 1))  # who disturbs nobody
        take(parties[ASH], ASH, ASH_2, 1)


@_check
def one_process_each(make: Make) -> None:
    """While a party's process is connected, a second one of it is kept out."""
    with Federation(make) as parties:
        parties.start(*TOPOLOGY.parties)
        _meet(parties)
        twin = parties.process(ASH_1)
        until(lambda: parties[ASH].health().refusals > 0, "the twin is refused")
        assert not twin.links[ASH].boot
        twin.abandon()
        parties[ASH_1].send(message(ASH_1, ASH, 1))
        take(parties[ASH], ASH, ASH_1, 1)


@_check
def permits(make: Make) -> None:
    """What was not agreed on is neither sent nor taken."""
    with Federation(make, timing=BRIEF) as parties:
        parties.start(ASH, permits=Permits({}))
        parties.start(ASH_1)
        with suppress(FrameError):
            parties[ASH].send(message(ASH, ASH_1, 1))
            raise AssertionError("it was sent")
        parties[ASH_1].send(message(ASH_1, ASH, 1))
        problem = _problem(parties[ASH_1])
        assert isinstance(problem, RefusedError), repr(problem)
        assert "was not agreed on" in str(problem)
        assert parties[ASH].mailbox(ASH).waiting(ASH_1) == 0


@_check
def out_of_step(make: Make) -> None:
    """Hubs in different attempts both end with an OutOfStepError."""
    with Federation(make, timing=BRIEF) as parties:
        parties.start(ASH)
        parties.start(BIRCH, position=Position(AttemptHistory().back_to(3, "another", 1)))
        for hub in (ASH, BIRCH):
            problem = _problem(parties[hub])
            assert isinstance(problem, OutOfStepError), f"{hub}: {problem!r}"


def _problem(party: PartyTransport) -> Exception | None:
    until(lambda: problem_at(party, party.me) is not None, f"{party.me} hears what is wrong")
    return problem_at(party, party.me)


@_check
def one_cause(make: Make) -> None:
    """Of several causes everybody settles on one, and on whether something is to be restored."""
    far = Client(BIRCH, "1")
    with Federation(make) as parties:
        parties.start(*TOPOLOGY.parties)
        _meet(parties)
        aborts: list[tuple[Party, str, bool]] = [(ASH_1, "b", False), (far, "a", True)]
        together(lambda given=given: parties[given[0]].abort(*given[1:]) for given in aborts)  # type: ignore[misc]
        for party in parties.values():
            until(lambda party=party: party.cause == "a", f"{party.me} hears of the first cause")  # type: ignore[misc]
            assert party.restore


@_check
def waits_to_begin(make: Make) -> None:
    """Whoever comes first waits for the others, and not for ever."""
    with Federation(make, timing=BRIEF) as parties:
        parties.start(ASH)
        with suppress(LostError):
            parties[ASH].await_peers([ASH_1], 0.3)
            raise AssertionError("nobody came, and nobody said so")
        parties.start(ASH_1)
        parties[ASH].await_peers([ASH_1], 20.0)
        parties[ASH_1].await_peers([ASH], 20.0)
        assert parties[ASH].health().present == [ASH_1]
