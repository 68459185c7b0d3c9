"""How often each row was released, with noise, and worked on: the book of a privacy budget.

It is kept from what everyone knows (which rows a minibatch has), so all parties have the same book
without a message. Rows of clients who were absent are counted as if they had been sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..rng import Streams
from .placed import Noise
from .topology import Client

Counts = tuple[Tensor, Tensor]  # [rows] releases, local steps


class Releases:
    """Counts by silo and row."""

    def __init__(self, size: int):
        self._size = size
        self._counts: dict[str, Counts] = {}

    def of(self, silo: str) -> Counts:
        zeros = torch.zeros(self._size, dtype=torch.int64)
        return self._counts.get(silo, (zeros, zeros))

    def book(self, silos: Iterable[str], releases: Tensor | int, steps: Tensor | int) -> None:
        """So much more for each row."""
        for silo in silos:
            sent, worked = self.of(silo)
            self._counts[silo] = (sent + releases, worked + steps)

    def to_json(self) -> dict[str, Any]:
        return {silo: [a.tolist() for a in counts] for silo, counts in self._counts.items()}

    @staticmethod
    def from_json(size: int, told: Mapping[str, Any]) -> Releases:
        book = Releases(size)
        for silo, (sent, worked) in told.items():
            book.book([silo], torch.tensor(sent), torch.tensor(worked))
        return book


def times(ids: Tensor, size: int) -> Tensor:
    """How often each row is among some."""
    return torch.bincount(ids.flatten().cpu(), minlength=size)


def row_noise(
    streams: Streams, client: Client, name: tuple[Any, ...], rows: Tensor, sizes: tuple[int, int]
) -> Noise:
    """Standard normal numbers, and uniform ones in [-1, 1), for some rows of a client, from its own
    stream. Without a `name` they are the same each time a row is asked for."""
    normal, uniform = sizes
    if name:
        stream, count = streams.own(client, "noise", *name), len(rows)
        found = [(stream.normal(count * normal), stream.uniform(count * uniform))]
    else:
        each = (streams.own(client, "release", row) for row in rows.tolist())
        found = [(stream.normal(normal), stream.uniform(uniform)) for stream in each]
    gaussian = [torch.from_numpy(a) for a, _ in found] or [torch.zeros(0, dtype=torch.float64)]
    flat = [torch.from_numpy(b) for _, b in found] or [torch.zeros(0, dtype=torch.float64)]
    return Noise(
        torch.cat(gaussian).reshape(len(rows), normal),
        2 * torch.cat(flat).reshape(len(rows), uniform) - 1,
    )


def among_padding(noise: Noise, real: Tensor) -> Noise:
    """Noise of real rows where they lie among padding, which gets none."""

    def spread(a: Tensor) -> Tensor:
        out = a.new_zeros(*real.shape, a.shape[-1])
        out[real] = a
        return out

    return Noise(spread(noise.normal), spread(noise.uniform))


def own_noise(
    streams: Streams, client: Client, name: tuple[Any, ...], shape: tuple[int, ...]
) -> Tensor:
    """Standard normal numbers from a client's own stream."""
    drawn = streams.own(client, "noise", *name).normal(math.prod(shape))
    return torch.from_numpy(drawn).reshape(shape)
