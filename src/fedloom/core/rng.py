"""Random numbers, from named streams only.

`common` streams are derived from the run's seed and a name. Every party derives the same numbers
without a message (minibatch ids, initial weights).

`own` streams belong to one party. In deployment they are derived from its secret, so that nobody
else can recompute its noise and subtract it; in simulation from the seed, so that a run can be
repeated. A stream of a secret is also named by the run: two runs with one secret share no numbers.
It is a cipher's (ChaCha20): some of its numbers do not tell the others.

Streams are independent and named by the round, so a resumed run draws the same numbers as an
uninterrupted one. Bits come from numpy's Philox, whose output numpy promises to keep, and are
turned into numbers here: parties with different versions of numpy and torch draw the same
minibatch.
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

SPARSE = 64  # from this ratio of range to sample on, duplicates are found by sorting
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def _digest(secret: bytes, name: tuple[Any, ...]) -> bytes:
    return hmac.digest(secret, json.dumps([str(part) for part in name]).encode(), "sha256")


@lru_cache(maxsize=64)
def _numbers(names: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    """A fixed 64-bit number for each name."""
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.uint64)


def _is_first(values: Ints, size: int) -> npt.NDArray[np.bool_]:
    """Whether each of these numbers below `size` is its first occurrence."""
    positions = np.arange(len(values))
    if size > SPARSE * len(values):
        order = np.argsort(values, kind="stable")
        first = np.ones(len(values), dtype=bool)
        first[order[1:]] = np.diff(values[order]) != 0
        return first
    position_of = np.empty(size, dtype=np.int64)  # written backwards, so the first one stays
    position_of[values[::-1]] = positions[::-1]
    return position_of[values] == positions


class Stream:
    """One named stream of random numbers."""

    def __init__(self, key: bytes):
        self._key = key
        self._bits = np.random.Philox(key=int.from_bytes(key[:16], "big"))

    def _raw(self, count: int) -> npt.NDArray[np.uint64]:
        return self._bits.random_raw(count)

    @property
    def mark(self) -> bytes:
        """16 bytes that identify this stream, and say nothing about its numbers."""
        return hashlib.blake2b(self._key, digest_size=16, person=b"fedloom mark").digest()

    def seed(self) -> int:
        """A 63-bit seed for a library that needs one (torch's initialisers)."""
        return int.from_bytes(self._key[16:24], "big") >> 1

    def uniform(self, count: int) -> Floats:
        """Doubles in [0, 1)."""
        return (self._raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def uniform_for(self, names: tuple[str, ...]) -> Floats:
        """A double in [0, 1) for each name, whatever other names are given."""
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
        values = np.empty(0, dtype=np.int64)
        if not count:
            return values
        while True:  # the first `count` different values of an endless uniform sequence
            more = self._raw(count - len(values) + 16) % np.uint64(size)
            values = np.concatenate([values, more.astype(np.int64)])
            values = values[_is_first(values, size)]
            if len(values) >= count:
                return values[:count]


class CipherStream(Stream):
    """A stream of a party's secret: ChaCha20's output. Normal numbers are uniform ones put through
    the inverse of the normal distribution function."""

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
    """Secrets of some parties, by name, for the run with this fingerprint."""

    run: str
    of: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class Streams:
    """All streams of a run. The own streams of a party without a secret come from the seed."""

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
        """The stream of a silo's initial block. It is the hub's own where the hub has a secret, so
        that nobody outside the silo knows the weights behind the first embeddings."""
        if self.has_secret(silo):
            return self.own(silo, "initial")
        return self.common("initial", silo)
