"""The `[network]` of a run file: links, speeds, and what delays the silos."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Annotated, Any, Literal

from ..errors import SettingError, nearest
from .topology import SERVER, Topology

Sleep = Literal["none", "round-robin", "random"]


@dataclass(frozen=True)
class Network:
    """The `[network]` of a run file, in any unit of time.

    `latency`, `bandwidths` and `speed` name those that differ: "bank" is hub bank with each of its
    clients (or those clients), "bank/north" one client, "bank-insurer" two hubs, "server-bank" a
    hub and the server. What delays a silo before a round (or before a visit, where the algorithm is
    asynchronous) is said from `pause` on; see delays.py.
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
    pause: Annotated[dict[str, float], "of some silos, before each of their rounds or visits"] = (
        field(default_factory=dict)
    )
    sleep: Annotated[
        Sleep,
        "silos sleep: `round-robin`, one at a time, the next when it wakes; `random`, each before "
        "any of its rounds or visits",
    ] = "none"
    sleep_for: Annotated[float, "how long a silo sleeps"] = 5.0
    sleep_chance: Annotated[float, "of a random sleep"] = 0.25
    rate: Annotated[
        float | None,
        "visits of a silo that is ready in a unit of time (Poisson); none: it comes at once",
    ] = None
    rates: Annotated[dict[str, float], "of some silos"] = field(default_factory=dict)
    crash: Annotated[
        dict[str, tuple[int, int]], "`bank = [10, 20]`: silo bank is down from round 10, back in 20"
    ] = field(default_factory=dict)
    outage: Annotated[float, "how long those who cannot go on without a silo that is down wait"] = (
        100.0
    )

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
        self._check_delays(topology)

    def _check_delays(self, topology: Topology) -> None:
        for name in ("sleep_for", "sleep_chance", "outage"):
            _check_number(name, getattr(self, name), zero=True)
        if self.rate is not None:
            _check_number("rate", self.rate, zero=False)
        if self.sleep not in ("none", "round-robin", "random"):
            known = nearest(str(self.sleep), ("none", "round-robin", "random"))
            raise SettingError(f"network: sleep: {self.sleep!r}{known}")
        if self.sleep_chance > 1:
            raise SettingError(f"network: sleep_chance is at most 1, not {self.sleep_chance!r}")
        if self.sleep == "round-robin":
            _check_number("sleep_for", self.sleep_for, zero=False)
        for setting in ("pause", "rates", "crash"):
            named = getattr(self, setting)
            if not isinstance(named, Mapping):
                raise SettingError(f"network: {setting} must be a table of silos, not {named!r}")
            for silo, value in named.items():
                if silo not in topology.silos:
                    known = nearest(str(silo), topology.silos)
                    raise SettingError(f"network: {setting}: no silo {silo!r}{known}")
                if setting != "crash":
                    _check_number(f"{setting} of {silo!r}", value, zero=setting == "pause")
        for silo, stretch in self.crash.items():
            good = isinstance(stretch, list | tuple) and [type(r) for r in stretch] == [int, int]
            if not good or not 0 <= stretch[0] < stretch[1]:
                raise SettingError(
                    f"network: crash of {silo!r} must be [round, later round], the second that in "
                    f"which it is back, not {stretch!r}"
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
    pairs = {} if setting == "speed" else {pair: "-".join(pair) for pair in pairs_of(topology)}
    meant = {frozenset(pair) for pair, called in pairs.items() if called == name}
    meant |= {frozenset([silo]) for silo in topology.silos if silo == name}
    if len(meant) > 1:
        raise SettingError(f"network: {setting}: {name!r} can mean two links; rename a silo")
    if not meant:
        known = [*topology.silos, *pairs.values()][:200]
        what = "silo or client" if setting == "speed" else "link"
        raise SettingError(f"network: {setting}: no {what} {name!r}{nearest(name, known)}")
    return meant.pop()


def hubs_of(topology: Topology) -> tuple[str, ...]:
    return (*topology.silos, SERVER) if topology.server else topology.silos


def pairs_of(topology: Topology) -> list[tuple[str, str]]:
    """Every two hubs, and the server with every hub, in both directions."""
    return list(permutations(hubs_of(topology), 2))
