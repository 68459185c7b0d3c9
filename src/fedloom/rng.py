"""Randomness only from named streams.

`common` streams are derived from the run's seed and a name: every party derives the same numbers
without talking (minibatch ids, initial weights). `own` streams belong to one party: from its secret
in deployment, so that nobody else can recompute (and subtract) its noise; from the seed in
simulation, so that a run can be repeated.

A stream has no memory of other streams and is named by its round, so a resumed run draws what an
uninterrupted one would have drawn. Numbers come from numpy's Philox bit stream, whose output numpy
promises to keep, and are shaped here: two parties with different numpy or torch versions draw the
same minibatch.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

MANY = 64  # times as many numbers as are drawn: those drawn are sorted, not laid out among them
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def _digest(secret: bytes, name: tuple[Any, ...]) -> bytes:
    return hmac.digest(secret, json.dumps([str(part) for part in name]).encode(), "sha256")


@lru_cache(maxsize=64)
def _numbers(names: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    """A fixed 64-bit number for each name."""
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.uint64)


def _is_first(drawn: Ints, size: int) -> npt.NDArray[np.bool_]:
    """Of numbers below `size`, whether each comes for the first time."""
    number = np.arange(len(drawn))
    if size > MANY * len(drawn):
        order = np.argsort(drawn, kind="stable")
        first = np.ones(len(drawn), dtype=bool)
        first[order[1:]] = np.diff(drawn[order]) != 0
        return first
    place = np.empty(size, dtype=np.int64)  # of each number among them: the last one written stays
    place[drawn[::-1]] = number[::-1]
    return place[drawn] == number


class Stream:
    """One named stream of random numbers."""

    def __init__(self, key: bytes):
        self._key = key
        self._bits = np.random.Philox(key=int.from_bytes(key[:16], "big"))

    def _raw(self, count: int) -> npt.NDArray[np.uint64]:
        return self._bits.random_raw(count)

    def seed(self) -> int:
        """A 63-bit seed for a library that wants one (torch's initialisers)."""
        return int.from_bytes(self._key[16:24], "big") >> 1

    def uniform(self, count: int) -> Floats:
        """Doubles in [0, 1)."""
        return (self._raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def uniform_for(self, names: tuple[str, ...]) -> Floats:
        """A double in [0, 1) for each name, the same whoever else is asked about."""
        mixed = _numbers(names) ^ self._raw(1)[0]
        with np.errstate(over="ignore"):  # splitmix64's finaliser
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, count: int) -> Floats:
        """Standard normal doubles; for own streams only: numpy may change how it makes them."""
        return np.random.Generator(self._bits).standard_normal(count)

    def permutation(self, size: int) -> Ints:
        return np.argsort(self._raw(size), kind="stable").astype(np.int64)

    def sample(self, size: int, count: int) -> Ints:
        """`count` different numbers below `size` in random order, all such lists equally likely."""
        if 2 * count > size:
            return self.permutation(size)[:count]
        drawn = np.empty(0, dtype=np.int64)
        if not count:
            return drawn
        while True:  # the first `count` different values of an endless uniform sequence
            more = self._raw(count - len(drawn) + 16) % np.uint64(size)
            drawn = np.concatenate([drawn, more.astype(np.int64)])
            drawn = drawn[_is_first(drawn, size)]
            if len(drawn) >= count:
                return drawn[:count]


@dataclass(frozen=True)
class Streams:
    """All streams of a run. `secret` is a party's own; without one, `own` is seeded."""

    seed: int
    secret: bytes | None = field(default=None, repr=False)

    def common(self, *name: Any) -> Stream:
        return Stream(_digest(str(self.seed).encode(), ("common", *name)))

    def own(self, party: Any, *name: Any) -> Stream:
        root = self.secret
        if root is None:
            root = hashlib.sha256(f"simulated {self.seed}".encode()).digest()
        return Stream(_digest(root, ("own", party, *name)))
