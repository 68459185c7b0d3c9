"""Checks of what an engine needs of any transport."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import torch

from ...core import tree
from ...core.errors import AbortedError, LostError, ProtocolError
from ...core.topology import Party
from ...fabric.kinds import Key
from .federation import (
    ASH,
    ASH_1,
    ASH_2,
    BIG,
    BIRCH,
    TOPOLOGY,
    Connect,
    message,
    problem_at,
    run_over,
    take,
    topology_of,
    until,
)

TransportCheck = Callable[[Connect], None]
TRANSPORT_CHECKS: dict[str, TransportCheck] = {}


def _check(f: TransportCheck) -> TransportCheck:
    TRANSPORT_CHECKS[f.__name__] = f
    return f


@_check
def order(connect: Connect) -> None:
    """Messages of a link arrive in the order of their keys, both ways at once."""
    with connect(TOPOLOGY) as transports:
        for move in range(1, 51):
            for source, to in ((ASH_1, ASH), (ASH, ASH_1), (BIRCH, ASH), (ASH, BIRCH)):
                transports[source].send(message(source, to, move, torch.tensor(move)))
        for source, to in ((ASH_1, ASH), (ASH, ASH_1), (BIRCH, ASH), (ASH, BIRCH)):
            received = [int(take(transports[to], to, source, move)) for move in range(1, 51)]
            assert received == list(range(1, 51)), f"from {source} to {to}"


@_check
def payloads(connect: Connect) -> None:
    """What arrives is what was sent, when it was sent."""
    sent: dict[str, Any] = {
        "nothing": None,
        "numbers": (3, 0.1, True, "words", None),
        "tensors": {"a": torch.randn(3, 2), "b": {"c": torch.randn(4, 6).T[1:]}},
        "types": tuple(torch.ones(2, dtype=t) for t in (torch.bfloat16, torch.int8, torch.bool)),
        "empty": torch.zeros(0, 4, dtype=torch.float64),
    }
    with connect(TOPOLOGY) as transports:
        for move, payload in enumerate(sent.values()):
            transports[ASH_1].send(message(ASH_1, ASH, move, payload))
        for move, (what, payload) in enumerate(sent.items()):
            received = take(transports[ASH], ASH, ASH_1, move)
            assert tree.signature(received) == tree.signature(payload), what
            pairs = zip(tree.tensors(payload), tree.tensors(received), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), what
        tensor = torch.zeros(3)
        transports[ASH_1].send(message(ASH_1, ASH, 90, tensor))
        tensor += 1
        assert not take(transports[ASH], ASH, ASH_1, 90).any(), "it was changed after it was sent"


@_check
def large_payloads(connect: Connect) -> None:
    """Megabytes, both ways at once, with small ones between them."""
    big = torch.randn(BIG, dtype=torch.float64)
    with connect(TOPOLOGY) as transports:
        for move in range(1, 5):
            for source, to in ((ASH_1, ASH), (ASH, ASH_1)):
                payload = big + move if move % 2 else torch.tensor(move)
                transports[source].send(message(source, to, move, payload))
        for move in range(1, 5):
            for source, to in ((ASH_1, ASH), (ASH, ASH_1)):
                received = take(transports[to], to, source, move)
                assert torch.equal(received, big + move if move % 2 else torch.tensor(move))


@_check
def mailboxes(connect: Connect) -> None:
    """Each party has a mailbox; a message to oneself arrives; unknown parties are refused."""
    with connect(TOPOLOGY) as transports:
        transports[ASH].send(message(ASH, ASH_1, 1, torch.tensor(1)))
        transports[ASH].send(message(ASH, ASH_2, 1, torch.tensor(2)))
        transports[ASH].send(message(ASH, ASH, 1, torch.tensor(3)))
        others: list[Party] = [ASH_1, ASH_2, ASH]
        for number, to in enumerate(others, 1):
            assert int(take(transports[to], to, ASH, 1)) == number
            assert transports[to].mailbox(to).waiting(ASH) == 0, "it came twice"
        try:
            transports[ASH].send(message(ASH, "nobody", 2))
        except ProtocolError:
            return
        raise AssertionError("a message to nobody was taken")


@_check
def pulses(connect: Connect) -> None:
    """Whoever waits for one that gives signs of life waits on; silence is an error."""
    with connect(TOPOLOGY) as transports:
        transports[ASH].send(message(ASH, ASH_1, 1))
        take(transports[ASH_1], ASH_1, ASH, 1)  # they are connected
        over, box = Event(), transports[ASH_1].mailbox(ASH_1)

        def alive() -> None:
            end = time.monotonic() + 2.0
            while time.monotonic() < end and not over.wait(0.05):
                transports[ASH].pulse(ASH)
            transports[ASH].send(message(ASH, ASH_1, 2))

        pulsing = Thread(target=alive)
        pulsing.start()
        try:
            assert box.take(ASH, Key(0, 2), "update", 1.0) is not None
        finally:
            over.set()
            pulsing.join()
        with suppress(LostError):
            box.take(ASH, Key(0, 3), "update", 0.3)
            raise AssertionError("nobody said that nothing came")


@_check
def aborts(connect: Connect) -> None:
    """All parties get the abort with one cause: those who wait, and those who wait later."""
    with connect(TOPOLOGY) as transports:
        for client in (ASH_1, ASH_2):
            transports[client].send(message(client, ASH, 1))
            take(transports[ASH], ASH, client, 1)
        transports[ASH_2].abort("client ash/2: out of milk")
        for me in TOPOLOGY.parties:
            until(lambda me=me: problem_at(transports[me], me) is not None, f"{me} hears of it")  # type: ignore[misc]
            problem = problem_at(transports[me], me)
            assert isinstance(problem, AbortedError), repr(problem)
            assert str(problem) == "client ash/2: out of milk"


@_check
def whole_runs(connect: Connect) -> None:
    """A synchronous and an asynchronous algorithm: to the bit, and to the message."""
    for name in ("tdcd", "vafl"):
        with connect(topology_of(name)) as transports:
            run_over(transports, name)
