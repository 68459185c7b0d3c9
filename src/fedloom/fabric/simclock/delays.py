"""Delays of silos: pauses, sleep, Poisson activation, crashes.

In a synchronous algorithm, delays happen at the start of a round, and everyone waits for the
slowest silo. In an asynchronous one they happen before each visit of a silo, and the others
continue. No process sleeps here: delays are virtual time, drawn from named streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core.rng import Streams
from .network import Network


@dataclass(frozen=True)
class Delays:
    """The delays of a network's silos."""

    network: Network
    silos: tuple[str, ...]
    streams: Streams

    def before_round(self, silo: str, round: int) -> float:
        """The delay of a silo before a round of a synchronous algorithm. With round-robin sleep,
        one silo sleeps in each round."""
        network = self.network
        wait = network.pause.get(silo, 0.0) + self._random_sleep(silo, round)
        if network.sleep == "round-robin" and self.silos[round % len(self.silos)] == silo:
            wait += network.sleep_for
        return wait + (network.outage if self.is_down(silo, round) else 0.0)

    def sets_out(self, silo: str, ready: float, visit: int) -> float:
        """The time at which a silo that is ready sets out for its visit of this number."""
        wait = self.network.pause.get(silo, 0.0) + self._random_sleep(silo, visit)
        rate = self.network.rates.get(silo, self.network.rate)
        if rate is not None:
            uniform = float(self.streams.common("activation", silo, visit).uniform(1)[0])
            wait += -math.log1p(-uniform) / rate
        return self.awake(silo, ready + wait)

    def awake(self, silo: str, time: float) -> float:
        """The first time from `time` on at which the silo is not asleep."""
        network, count = self.network, len(self.silos)
        if network.sleep != "round-robin" or count == 1:
            return time
        turn = math.floor(time / network.sleep_for)
        asleep = self.silos[turn % count] == silo
        return (turn + 1) * network.sleep_for if asleep else time

    def is_down(self, silo: str, round: int) -> bool:
        first, back = self.network.crash.get(silo, (0, 0))
        return first <= round < back

    def _random_sleep(self, silo: str, number: int) -> float:
        if self.network.sleep != "random":
            return 0.0
        uniform = float(self.streams.common("sleep", silo, number).uniform(1)[0])
        return self.network.sleep_for if uniform < self.network.sleep_chance else 0.0
