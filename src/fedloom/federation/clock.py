"""Virtual time: what a run would take on a given network.

Every party has a time of its own. A message leaves at its sender's time and is there one way later,
plus its bytes over the bandwidth of the link; a receiver goes on when everything it needs is there;
local steps take time where an algorithm declares them (`steps=`), everything else is free. Links do
not share bandwidth, and nobody waits at the end of a round: hubs keep their own time.

With constant t_comm and t_comp, a round of TDCD takes 3 t_comm + Q t_comp: model down, embeddings
up, exchange, rest down, Q steps, update up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch

from ..errors import SettingError, nearest
from ..rng import Floats, Ints, Streams
from .schedule import Bools
from .topology import SERVER, Topology


@dataclass(frozen=True)
class Network:
    """The `[network]` of a run file, in any unit of time.

    `latency`, `bandwidths` and `speed` name those that differ: "bank" is hub bank with each of its
    clients (or those clients), "bank/north" one client, "bank-insurer" two hubs, "server-bank" a
    hub and the server.
    """

    t_comm: Annotated[float, "between two hubs one way; between hub and client there and back"] = (
        10.0
    )
    t_comp: Annotated[float, "one local step at a client of speed 1"] = 1.0
    bandwidth: Annotated[float | None, "bytes in a unit of time, on every link; none: no limit"] = (
        None
    )
    latency: Annotated[
        dict[str, float], 'one way, of some links: `"bank"`, `"bank/north"`, `"bank-insurer"`'
    ] = field(default_factory=dict)
    bandwidths: Annotated[dict[str, float], "of some links"] = field(default_factory=dict)
    speed: Annotated[
        dict[str, float], 'of some clients: `"bank/north" = 0.5` is half as fast, `"bank"` all'
    ] = field(default_factory=dict)
    speed_spread: Annotated[
        float, "sigma of the lognormal speeds drawn for clients from the run's seed"
    ] = 0.0

    def check(self, topology: Topology) -> None:
        """Refuse numbers that mean nothing, and names of what is not there."""
        for name in ("t_comm", "t_comp", "speed_spread"):
            _check_number(name, getattr(self, name), zero=True)
        if self.bandwidth is not None:
            _check_number("bandwidth", self.bandwidth, zero=False)
        for setting in ("latency", "bandwidths", "speed"):
            named = getattr(self, setting)
            if not isinstance(named, Mapping):
                raise SettingError(f"network: {setting} must be a table of names, not {named!r}")
            seen: dict[Any, str] = {}
            for name, value in named.items():
                _check_number(f"{setting} of {name!r}", value, zero=setting == "latency")
                meant = _meant(setting, name, topology)
                if seen.setdefault(meant, name) != name:
                    raise SettingError(
                        f"network: {setting}: {seen[meant]!r} and {name!r} are the same link"
                    )


def _check_number(name: str, value: Any, zero: bool) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < 0 or (value == 0 and not zero):
        least = "of at least 0" if zero else "above 0"
        raise SettingError(f"network: {name} must be a number {least}, not {value!r}")


def _meant(setting: str, name: str, topology: Topology) -> Any:
    """The one link, silo or client of this name."""
    silo, slash, client = name.partition("/")
    if slash and silo in topology.clients:
        if client not in topology.clients[silo]:
            known = [str(other) for other in topology.of(silo)[:50]]
            raise SettingError(f"network: {setting}: no client {name!r}{nearest(name, known)}")
        return name
    pairs = {} if setting == "speed" else {pair: "-".join(pair) for pair in _pairs(topology)}
    meant = {frozenset(pair) for pair, called in pairs.items() if called == name}
    meant |= {frozenset([silo]) for silo in topology.silos if silo == name}
    if len(meant) > 1:
        raise SettingError(f"network: {setting}: {name!r} can mean two links; rename a silo")
    if not meant:
        known = [*topology.silos, *pairs.values()][:200]
        what = "silo or client" if setting == "speed" else "link"
        raise SettingError(f"network: {setting}: no {what} {name!r}{nearest(name, known)}")
    return meant.pop()


def _hubs(topology: Topology) -> tuple[str, ...]:
    return (*topology.silos, SERVER) if topology.server else topology.silos


def _pairs(topology: Topology) -> list[tuple[str, str]]:
    """Every two hubs, and the server with every hub, in both directions."""
    return list(permutations(_hubs(topology), 2))


class Crossing(NamedTuple):
    """A message between hubs, or a hub and the server."""

    source: str
    to: str
    bytes: int


class Times(NamedTuple):
    """Everyone's time: of hubs and the server by name, of a silo's clients in their order. Its
    arrays are never changed."""

    hubs: Mapping[str, float]
    clients: Mapping[str, Floats]

    @property
    def latest(self) -> float:
        """The time of the latest hub (or the server)."""
        return max(self.hubs.values())

    def to_json(self) -> dict[str, Any]:
        clients = {silo: mine.tolist() for silo, mine in self.clients.items()}
        return {"hubs": dict(self.hubs), "clients": clients}

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Times:
        clients = {silo: np.array(mine, dtype=float) for silo, mine in saved["clients"].items()}
        return Times(dict(saved["hubs"]), clients)


class Clock:
    """Everyone's virtual time, moved on by the fabric. `start`: times to go on from."""

    def __init__(
        self, network: Network, topology: Topology, streams: Streams, start: Times | None = None
    ):
        network.check(topology)
        self._network, self._streams = network, streams
        self._step = {
            silo: network.t_comp / self._speeds(topology, silo) for silo in topology.silos
        }
        self._delay = {silo: self._delays(topology, silo) for silo in topology.silos}
        self._width = {silo: self._widths(topology, silo) for silo in topology.silos}
        self._between = {pair: self._link(*pair) for pair in _pairs(topology)}
        fresh = Times(
            dict.fromkeys(_hubs(topology), 0.0),
            {silo: np.zeros(len(names)) for silo, names in topology.clients.items()},
        )
        if start is not None and _sizes(start) != _sizes(fresh):
            raise SettingError("the saved times are not those of these hubs and clients")
        self.done = self.times = start or fresh

    @property
    def now(self) -> float:
        """The time of the latest hub (or the server)."""
        return self.times.latest

    def begin(self) -> None:
        """A new round; what an unfinished one took is forgotten."""
        self.times = self.done

    def end(self) -> None:
        """The round is complete."""
        self.done = self.times

    # What takes time

    def down(self, silo: str, there: Bools, bytes: int | Ints) -> None:
        """From a hub to the clients that are there; `bytes` of every message, or of each."""
        mine = self.times.clients[silo]
        arrival = self.times.hubs[silo] + self._delay[silo] + bytes / self._width[silo]
        self._set_clients(silo, np.where(there, np.maximum(mine, arrival), mine))

    def up(self, silo: str, there: Bools, bytes: int | Ints) -> None:
        """To a hub from the clients that answered; it goes on when the last of them is there."""
        if there.any():
            arrival = self.times.clients[silo] + self._delay[silo] + bytes / self._width[silo]
            self._set_hub(silo, max(self.times.hubs[silo], float(arrival[there].max())))

    def across(self, sent: Iterable[Crossing]) -> None:
        """Between hubs and the server: all messages of a move at once."""
        before = self.times.hubs
        for source, to, size in sent:
            delay, width = self._between[source, to]
            arrival = before[source] + delay + size / width
            self._set_hub(to, max(self.times.hubs[to], arrival))

    def work(self, silo: str, there: Bools, steps: int) -> None:
        """Local steps at the clients that are there."""
        mine = self.times.clients[silo]
        self._set_clients(silo, np.where(there, mine + steps * self._step[silo], mine))

    def work_at(self, party: str, steps: int) -> None:
        """Local steps at a hub, or at the server: of speed 1."""
        self._set_hub(party, self.times.hubs[party] + steps * self._network.t_comp)

    def _set_hub(self, party: str, time: float) -> None:
        self.times = self.times._replace(hubs={**self.times.hubs, party: time})

    def _set_clients(self, silo: str, times: Floats) -> None:
        self.times = self.times._replace(clients={**self.times.clients, silo: times})

    # What the network says

    def _speeds(self, topology: Topology, silo: str) -> Floats:
        """A silo's speed is the median of its clients'; a client named by itself has its own."""
        names, spread = topology.clients[silo], self._network.speed_spread
        speeds = np.full(len(names), float(self._network.speed.get(silo, 1.0)))
        if spread:
            drawn = self._streams.common("speed", silo).uniform_for(names)
            drawn = np.clip(drawn, 2.0**-53, 1 - 2.0**-53)
            speeds *= np.exp(spread * torch.special.ndtri(torch.from_numpy(drawn)).numpy())
        return self._named(topology, silo, speeds, self._network.speed)

    def _delays(self, topology: Topology, silo: str) -> Floats:
        one_way = self._network.latency.get(silo, self._network.t_comm / 2)
        every = np.full(len(topology.clients[silo]), float(one_way))
        return self._named(topology, silo, every, self._network.latency)

    def _widths(self, topology: Topology, silo: str) -> Floats:
        width = self._network.bandwidths.get(silo, self._network.bandwidth)
        every = np.full(len(topology.clients[silo]), np.inf if width is None else float(width))
        return self._named(topology, silo, every, self._network.bandwidths)

    def _link(self, source: str, to: str) -> tuple[float, float]:
        """(one way, bandwidth) between two hubs, or a hub and the server."""
        network, names = self._network, (f"{source}-{to}", f"{to}-{source}")
        delays = [network.latency[name] for name in names if name in network.latency]
        widths = [network.bandwidths[name] for name in names if name in network.bandwidths]
        width = widths[0] if widths else network.bandwidth
        return delays[0] if delays else network.t_comm, math.inf if width is None else width

    def _named(
        self, topology: Topology, silo: str, every: Floats, named: Mapping[str, float]
    ) -> Floats:
        """With the numbers of the clients that are named by themselves."""
        if any(key.startswith(f"{silo}/") for key in named):
            for place, client in enumerate(topology.of(silo)):
                every[place] = named.get(str(client), every[place])
        return every


def _sizes(times: Times) -> tuple[set[str], dict[str, int]]:
    return set(times.hubs), {silo: len(mine) for silo, mine in times.clients.items()}
