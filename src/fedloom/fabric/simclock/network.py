"""The `[network]` of a run file: links, speeds, and delays of silos."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from typing import Annotated, Any, Literal

from ...core.checked import Checked
from ...core.errors import SettingError, nearest
from ...core.settings import NotNegative, Share, above, at_least
from ...core.topology import SERVER, Topology

Sleep = Literal["none", "round-robin", "random"]


@dataclass(frozen=True)
class Network(Checked):
    """The `[network]` of a run file, in any unit of time.

    `latency`, `bandwidths` and `speed` name those that differ: "bank" is hub bank with each of its
    clients (or those clients), "bank/north" one client, "bank-insurer" two hubs, "server-bank" a
    hub and the server. The settings from `pause` on are delays of a silo before a round (or before
    a visit, where the algorithm is asynchronous); see delays.py."""

    t_comm: Annotated[
        NotNegative, "between two hubs one way; between hub and client there and back"
    ] = 10.0
    t_comp: Annotated[NotNegative, "one local step at a client of speed 1"] = 1.0
    bandwidth: Annotated[
        float | None, above(0), "bytes in a unit of time, on every link; none: no limit"
    ] = None
    latency: Annotated[
        dict[str, float],
        at_least(0),
        'one way, of some links: `"bank"`, `"bank/north"`, `"bank-insurer"`',
    ] = field(default_factory=dict)
    bandwidths: Annotated[dict[str, float], above(0), "of some links"] = field(default_factory=dict)
    speed: Annotated[
        dict[str, float],
        above(0),
        'of some clients: `"bank/north" = 0.5` is half as fast, `"bank"` all',
    ] = field(default_factory=dict)
    speed_spread: Annotated[
        NotNegative, "sigma of the lognormal speeds drawn for clients from the run's seed"
    ] = 0.0
    pause: Annotated[
        dict[str, float], at_least(0), "of some silos, before each of their rounds or visits"
    ] = field(default_factory=dict)
    sleep: Annotated[
        Sleep,
        "silos sleep: `round-robin`, one at a time, the next when it wakes; `random`, each before "
        "any of its rounds or visits",
    ] = "none"
    sleep_for: Annotated[NotNegative, "how long a silo sleeps"] = 5.0
    sleep_chance: Annotated[Share, "of a random sleep"] = 0.25
    rate: Annotated[
        float | None,
        above(0),
        "visits of a silo that is ready in a unit of time (Poisson); none: it comes at once",
    ] = None
    rates: Annotated[dict[str, float], above(0), "of some silos"] = field(default_factory=dict)
    crash: Annotated[
        dict[str, tuple[int, int]], "`bank = [10, 20]`: silo bank is down from round 10, back in 20"
    ] = field(default_factory=dict)
    outage: Annotated[
        NotNegative, "how long those who cannot go on without a silo that is down wait"
    ] = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sleep == "round-robin" and not self.sleep_for:
            raise SettingError("Network: sleep_for must be above 0 where silos sleep in turn")
        for silo, (down, back) in self.crash.items():
            if not 0 <= down < back:
                raise SettingError(
                    f"Network: crash of {silo!r} must be [round, later round], the second that in "
                    f"which it is back, not [{down}, {back}]"
                )

    def check(self, topology: Topology) -> None:
        """Refuse names of silos, clients and links that do not exist."""
        for setting in ("latency", "bandwidths", "speed"):
            seen: dict[Any, str] = {}
            for name in getattr(self, setting):
                meant = _meant(setting, name, topology)
                if seen.setdefault(meant, name) != name:
                    raise SettingError(
                        f"network: {setting}: {seen[meant]!r} and {name!r} are the same link"
                    )
        for setting in ("pause", "rates", "crash"):
            for silo in getattr(self, setting):
                if silo not in topology.silos:
                    known = nearest(str(silo), topology.silos)
                    raise SettingError(f"network: {setting}: no silo {silo!r}{known}")


def _meant(setting: str, name: str, topology: Topology) -> Any:
    """The link, silo or client of this name."""
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
