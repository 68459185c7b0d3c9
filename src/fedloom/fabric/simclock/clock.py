"""The virtual clock: how long a run would take on a given network.

Every party has its own time. A message leaves at its sender's time. It arrives after the link's
latency plus its bytes over the link's bandwidth. A receiver continues when all messages that it
needs have arrived. Local steps take time where an algorithm declares them (`steps=`); everything
else takes none. Links do not share bandwidth. Nobody waits at the end of a round.

With constant t_comm and t_comp, a round of TDCD takes 3 t_comm + Q t_comp: model down, embeddings
up, exchange, rest down, Q steps, update up.

Asynchronous algorithms (`visits`): a silo sets out for the master when it is ready and awake. The
master answers silos in the order of their expected arrival. The master has its own time, apart from
the hub on the same machine; it is then the time of the run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from ...core.errors import SettingError
from ...core.rng import Floats, Ints, Streams
from ...core.topology import Topology
from ..schedule import Bools
from .delays import Delays
from .network import Network as Network
from .network import hubs_of, pairs_of


class Crossing(NamedTuple):
    """A message between hubs, or a hub and the server."""

    source: str
    to: str
    bytes: int


class VisitPace(NamedTuple):
    """A silo's visits so far, and how long the last one took to reach the master."""

    visits: int
    took: float


class Times(NamedTuple):
    """The time of every party: hubs and the server by name, a silo's clients in their order. Its
    arrays are never changed. Where silos visit a master: the master's time, and every silo's
    pace."""

    hubs: Mapping[str, float]
    clients: Mapping[str, Floats]
    master: float | None = None
    paces: Mapping[str, VisitPace] = {}

    @property
    def latest(self) -> float:
        """The time of the master; where there is none, of the latest hub or the server."""
        return max(self.hubs.values()) if self.master is None else self.master

    def to_json(self) -> dict[str, Any]:
        clients = {silo: times.tolist() for silo, times in self.clients.items()}
        saved: dict[str, Any] = {"hubs": dict(self.hubs), "clients": clients}
        if self.master is not None:
            saved |= {
                "master": self.master,
                "paces": {j: [*pace] for j, pace in self.paces.items()},
            }
        return saved

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Times:
        clients = {silo: np.array(times, dtype=float) for silo, times in saved["clients"].items()}
        paces = {silo: VisitPace(*pace) for silo, pace in saved.get("paces", {}).items()}
        return Times(dict(saved["hubs"]), clients, saved.get("master"), paces)


class Clock:
    """The virtual time of every party, advanced by the fabric. `start`: times to continue from;
    `asynchronous`: silos are delayed before their visits, not before rounds."""

    def __init__(
        self,
        network: Network,
        topology: Topology,
        streams: Streams,
        start: Times | None = None,
        asynchronous: bool = False,
    ):
        network.check(topology)
        self._network, self._streams = network, streams
        self._late = Delays(network, topology.silos, streams)
        self._silos, self._round, self._asynchronous = topology.silos, 0, asynchronous
        self._step = {
            silo: network.t_comp / self._speeds(topology, silo) for silo in topology.silos
        }
        self._delay = {silo: self._delays(topology, silo) for silo in topology.silos}
        self._width = {silo: self._widths(topology, silo) for silo in topology.silos}
        self._between = {pair: self._link(*pair) for pair in pairs_of(topology)}
        fresh = Times(
            dict.fromkeys(hubs_of(topology), 0.0),
            {silo: np.zeros(len(names)) for silo, names in topology.clients.items()},
        )
        if start is not None and _sizes(start) != _sizes(fresh):
            raise SettingError("the saved times are not those of these hubs and clients")
        self.done = self.times = start or fresh

    @property
    def now(self) -> float:
        """The time of the latest hub (or the server), or the master's."""
        return self.times.latest

    def begin(self, round: int = 0) -> None:
        """Begin a round. The time of an unfinished round is dropped."""
        self.times, self._round = self.done, round
        if not self._asynchronous:
            waits = {silo: self._late.before_round(silo, round) for silo in self._silos}
            for silo, wait in waits.items():
                if wait:
                    self._set_hub(silo, self.times.hubs[silo] + wait)

    def end(self) -> None:
        """End the round."""
        self.done = self.times

    # Operations that take time

    def down(self, silo: str, there: Bools, bytes: int | Ints) -> None:
        """From a hub to the clients that are present. `bytes`: of each message, or by client."""
        now = self.times.clients[silo]
        arrival = self.times.hubs[silo] + self._delay[silo] + bytes / self._width[silo]
        self._set_clients(silo, np.where(there, np.maximum(now, arrival), now))

    def up(self, silo: str, there: Bools, bytes: int | Ints) -> None:
        """To a hub from the clients that answered; it waits for the last of them."""
        if there.any():
            arrival = self.times.clients[silo] + self._delay[silo] + bytes / self._width[silo]
            self._set_hub(silo, max(self.times.hubs[silo], float(arrival[there].max())))

    def across(self, sent: Iterable[Crossing]) -> None:
        """Between hubs and the server: all messages of a move."""
        before = self.times.hubs
        for source, to, size in sent:
            delay, width = self._between[source, to]
            arrival = before[source] + delay + size / width
            self._set_hub(to, max(self.times.hubs[to], arrival))

    def work(self, silo: str, there: Bools, steps: int) -> None:
        """Local steps at the clients that are present."""
        now = self.times.clients[silo]
        self._set_clients(silo, np.where(there, now + steps * self._step[silo], now))

    def work_at(self, party: str, steps: int) -> None:
        """Local steps at a hub or the server, at speed 1."""
        self._set_hub(party, self.times.hubs[party] + steps * self._network.t_comp)

    # Visits to a master, a hub or the server

    def visitors(self, master: str, group: int) -> tuple[str, ...]:
        """The silos that will arrive at the master first, in order. A silo that is down comes
        last."""

        def expected(silo: str) -> tuple[bool, float, int]:
            way = self._pace(silo, master).took
            down = self._late.is_down(silo, self._round)
            return down, self._start(silo, master) + way, self._silos.index(silo)

        return tuple(sorted(self._silos, key=expected)[:group])

    def set_out(self, silo: str, master: str) -> float:
        """The silo begins its next visit; returns the time."""
        self._set_hub(silo, self._start(silo, master))
        return self.times.hubs[silo]

    def arrive(self, silo: str, master: str, sizes: Collection[int], begun: float) -> None:
        """The silo's messages arrive at the master. `sizes`: their bytes."""
        there = self._came(silo, master, sizes)
        pace = VisitPace(self._pace(silo, master).visits + 1, there - begun)
        self.times = self.times._replace(paces={**self.times.paces, silo: pace})

    def answer(self, master: str, steps: int) -> None:
        """The master computes an answer: steps at speed 1."""
        self._set_master(self._master(master) + steps * self._network.t_comp)

    def come_back(self, silo: str, master: str, size: int) -> None:
        """The answer arrives at the silo."""
        there = self._master(master) + self._way(master, silo, size)
        self._set_hub(silo, max(self.times.hubs[silo], there))

    def fetch(self, silo: str, master: str) -> None:
        """The master calls a silo for fresh embeddings; a sleeping silo receives it when it
        wakes."""
        there = self._master(master) + self._way(master, silo, 0)
        start = self._late.awake(silo, max(self.times.hubs[silo], there))
        self._set_hub(silo, start)

    def fetched(self, silo: str, master: str, sizes: Collection[int]) -> None:
        """The fresh embeddings arrive at the master."""
        self._came(silo, master, sizes)

    def _came(self, silo: str, master: str, sizes: Collection[int]) -> float:
        way = max((self._way(silo, master, size) for size in sizes), default=0.0)
        there = self.times.hubs[silo] + way
        self._set_master(max(self._master(master), there))
        return there

    def _master(self, master: str) -> float:
        return self.times.hubs[master] if self.times.master is None else self.times.master

    def _start(self, silo: str, master: str) -> float:
        """The time at which the silo begins its next visit."""
        visit = self._pace(silo, master).visits
        start = self._late.sets_out(silo, self.times.hubs[silo], visit)
        down = self._late.is_down(silo, self._round)
        return start + (self._network.outage if down else 0.0)

    def _pace(self, silo: str, master: str) -> VisitPace:
        """A silo's pace; before its first visit, an estimate from its latencies."""
        if silo in self.times.paces:
            return self.times.paces[silo]
        return VisitPace(0, 2 * float(self._delay[silo].max()) + self._way(silo, master, 0))

    def _way(self, source: str, to: str, size: int) -> float:
        if source == to:
            return 0.0
        delay, width = self._between[source, to]
        return delay + size / width

    def _set_master(self, time: float) -> None:
        self.times = self.times._replace(master=time)

    def _set_hub(self, party: str, time: float) -> None:
        self.times = self.times._replace(hubs={**self.times.hubs, party: time})

    def _set_clients(self, silo: str, times: Floats) -> None:
        self.times = self.times._replace(clients={**self.times.clients, silo: times})

    # Settings of the network

    def _speeds(self, topology: Topology, silo: str) -> Floats:
        """Speeds of a silo's clients. The silo's speed is their median; a client may have its
        own."""
        names, spread = topology.clients[silo], self._network.speed_spread
        speeds = np.full(len(names), float(self._network.speed.get(silo, 1.0)))
        if spread:
            uniform = self._streams.common("speed", silo).uniform_for(names)
            uniform = np.clip(uniform, 2.0**-53, 1 - 2.0**-53)
            speeds *= np.exp(spread * torch.special.ndtri(torch.from_numpy(uniform)).numpy())
        return self._named(topology, silo, speeds, self._network.speed)

    def _delays(self, topology: Topology, silo: str) -> Floats:
        latency = self._network.latency.get(silo, self._network.t_comm / 2)
        every = np.full(len(topology.clients[silo]), float(latency))
        return self._named(topology, silo, every, self._network.latency)

    def _widths(self, topology: Topology, silo: str) -> Floats:
        width = self._network.bandwidths.get(silo, self._network.bandwidth)
        every = np.full(len(topology.clients[silo]), np.inf if width is None else float(width))
        return self._named(topology, silo, every, self._network.bandwidths)

    def _link(self, source: str, to: str) -> tuple[float, float]:
        """(latency, bandwidth) between two hubs, or a hub and the server."""
        network, names = self._network, (f"{source}-{to}", f"{to}-{source}")
        delays = [network.latency[name] for name in names if name in network.latency]
        widths = [network.bandwidths[name] for name in names if name in network.bandwidths]
        width = widths[0] if widths else network.bandwidth
        return delays[0] if delays else network.t_comm, math.inf if width is None else width

    def _named(
        self, topology: Topology, silo: str, every: Floats, named: Mapping[str, float]
    ) -> Floats:
        """Replace the values of clients that the settings name."""
        if any(key.startswith(f"{silo}/") for key in named):
            for place, client in enumerate(topology.of(silo)):
                every[place] = named.get(str(client), every[place])
        return every


def _sizes(times: Times) -> tuple[set[str], dict[str, int]]:
    return set(times.hubs), {silo: len(of_clients) for silo, of_clients in times.clients.items()}
