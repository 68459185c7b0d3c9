"""A small federation to test a transport on: each party's program, in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, Unpack

from ...core import tree
from ...core.registry import algorithms
from ...core.topology import Client, Party, Topology
from ...deployment.connect import peers
from ...engines.party.engine import PartyEngine
from ...engines.party.timeouts import Waits
from ...fabric.kinds import Key, Message
from ...fabric.ledger import Ledger
from ...fabric.schedule import Everyone
from ...runs.loop import play
from ...runs.run import Run
from ...transports.base import Transport
from ...transports.links.party import PartyTransport, Timing, TransportOptions
from ..samples import examples_of, sample_of

RUN = "a" * 64
QUICK = Timing(beat=0.1, silence=1.0, linger=5.0)
WITHIN = 30.0  # seconds until something must have happened
BIG = 700_001  # numbers: more than a piece, and no round number of pieces
ASH, BIRCH, ASH_1, ASH_2 = "ash", "birch", Client("ash", "1"), Client("ash", "2")
TOPOLOGY = Topology({ASH: ("1", "2"), BIRCH: ("1",)})

Make = Callable[[Topology], "Wires"]
Transports = Mapping[Party, Transport]
Connect = Callable[[Topology], AbstractContextManager[Transports]]


class Wires(Protocol):
    """What connects a federation's parties: written by a transport's tests."""

    def transport(
        self,
        me: Party,
        run: str,
        dials: Sequence[Party],
        expected: Sequence[Party],
        **options: Unpack[TransportOptions],
    ) -> PartyTransport:
        """One process of a party, not open yet; called again, another one of it. Hubs come before
        those who dial them."""
        ...

    def cut(self, first: Party, second: Party) -> None:
        """The connection of these two breaks; another one may be made at once."""
        ...


class Federation(dict[Party, PartyTransport]):
    """A process of each party, as they are started; they are closed together."""

    def __init__(self, make: Make, topology: Topology = TOPOLOGY, timing: Timing = QUICK):
        self.wires, self.topology, self._timing = make(topology), topology, timing

    def start(
        self, *parties: Party, run: str = RUN, **options: Unpack[TransportOptions]
    ) -> PartyTransport:
        """Open them; one that was there already is not closed, another takes its place."""
        for me in parties:
            self[me] = self.process(me, run, **options)
        return self[parties[-1]]

    def process(
        self, me: Party, run: str = RUN, **options: Unpack[TransportOptions]
    ) -> PartyTransport:
        """An open process of a party; the caller closes it."""
        options.setdefault("timing", self._timing)
        made = self.wires.transport(me, run, *peers(self.topology, me), **options)
        made.open()
        return made

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *problem: object) -> None:
        together(transport.close for transport in self.values())


def connected(make: Make) -> Connect:
    """A federation with all its parties connected."""

    @contextmanager
    def connect(topology: Topology) -> Iterator[Transports]:
        with Federation(make, topology) as parties:
            parties.start(*topology.parties)
            yield parties

    return connect


def together(works: Iterable[Callable[[], Any]]) -> list[Any]:
    """All at the same time; their results, or the first error."""
    wanted = list(works)
    with ThreadPoolExecutor(max(1, len(wanted))) as pool:
        return [future.result() for future in [pool.submit(work) for work in wanted]]


def until(ready: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WITHIN
    while not ready():
        assert time.monotonic() < end, f"within {WITHIN:g} s: {what}"
        time.sleep(0.01)


def message(source: Party, to: Party, move: int, payload: Any = None, round: int = 0) -> Message:
    return Message(Key(round, move), "update", source, to, payload)


def take(transport: Transport, me: Party, source: Party, move: int, round: int = 0) -> Any:
    received = transport.mailbox(me).take(source, Key(round, move), "update", WITHIN)
    assert received is not None, f"move {move} of {source} did not come; a later one did"
    return received.payload


def run_over(transports: Transports, name: str, rounds: int = 2) -> None:
    """A whole run, every party in a thread of its own: states and ledger are the reference's."""
    algorithm = examples_of(algorithms[name])[0]
    task, rows = sample_of(algorithm)
    right = Run(algorithm, task, rows, engine="reference", precision="float64", seed=3).fit(rounds)

    def party(me: Party) -> tuple[PartyEngine, Any]:
        fed = PartyEngine(
            right.task,
            right.shapes,
            rows.view([me]),
            hosted=[me],
            transport=transports[me],
            seed=3,
            schedule=Everyone(),
            waits=Waits(patience=WITHIN),
        )
        *_, (_, state) = play(fed, algorithm, rounds)
        return fed, state

    ended = together([lambda me=me: party(me) for me in rows.topology.parties])  # type: ignore[misc]
    for field in algorithm.State._fields:
        wanted = right.fed.read(getattr(right.state, field))
        by_party: dict[Any, Any] = {}
        for fed, state in ended:
            by_party.update(fed.read(getattr(state, field)))
        by_party = {party: by_party[party] for party in wanted}
        assert tree.largest_difference(by_party, dict(wanted)) == 0, f"{name}: {field} differs"
    ledger = Ledger.merged(fed.ledger for fed, _ in ended)
    assert list(ledger) == list(right.ledger), f"{name}: ledgers differ"


def topology_of(name: str) -> Topology:
    """Of the run that `run_over` makes."""
    _, rows = sample_of(examples_of(algorithms[name])[0])
    return rows.topology


def problem_at(transport: Transport, me: Party) -> Exception | None:
    try:
        transport.mailbox(me).check()
    except Exception as problem:
        return problem
    return None
