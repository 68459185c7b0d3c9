"""Randomness only from named streams.

`common` streams are derived from the run's seed and a name: every party derives the same numbers
without talking (minibatch ids, initial weights). `own` streams belong to one party: from its secret
in deployment, so that nobody else can recompute (and subtract) its noise; from the seed in
simulation, so that a run can be repeated. Streams from a secret are named by the run as well, so
that two runs with one secret have nothing in common, and are those of a cipher (ChaCha20): whoever
has seen some of their numbers cannot tell the others.

A stream has no memory of other streams and is named by its round, so a resumed run draws what an
uninterrupted one would have drawn. Numbers come from numpy's Philox bit stream, whose output numpy
promises to keep, and are shaped here: two parties with different numpy or torch versions draw the
same minibatch.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
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

    @property
    def mark(self) -> bytes:
        """16 bytes that tell this stream from all others, and nothing of its numbers."""
        return hashlib.blake2b(self._key, digest_size=16, person=b"fedloom mark").digest()

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


class CipherStream(Stream):
    """A stream of a party's secret: ChaCha20's. Normal numbers are made of uniform ones by the
    inverse of their distribution."""

    def __init__(self, key: bytes):
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        self._key = key
        self._cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def _raw(self, count: int) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)

    def normal(self, count: int) -> Floats:
        from scipy.special import ndtri

        inside = (self._raw(count) >> np.uint64(12)).astype(np.float64) + 0.5  # never 0, never 2^52
        return np.asarray(ndtri(inside * 2.0**-52), dtype=np.float64)


@dataclass(frozen=True)
class Secrets:
    """Of some parties, by name, in the run with this fingerprint."""

    run: str
    of: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class Streams:
    """All streams of a run. Without a party's secret, what is its own is drawn from the seed."""

    seed: int
    secrets: Secrets | None = field(default=None, repr=False, hash=False)

    def common(self, *name: Any) -> Stream:
        return Stream(_digest(str(self.seed).encode(), ("common", *name)))

    def has_secret(self, party: Any) -> bool:
        return self.secrets is not None and str(party) in self.secrets.of

    def own(self, party: Any, *name: Any) -> Stream:
        if self.secrets is not None and (secret := self.secrets.of.get(str(party))) is not None:
            return CipherStream(_digest(secret, ("own", party, self.secrets.run, *name)))
        root = hashlib.sha256(f"simulated {self.seed}".encode()).digest()
        return Stream(_digest(root, ("own", party, *name)))

    def initial(self, silo: str) -> Stream:
        """For a silo's initial block: its hub's own, where it has a secret, so that nobody outside
        the silo knows the block that the first embeddings come from."""
        if self.has_secret(silo):
            return self.own(silo, "initial")
        return self.common("initial", silo)
