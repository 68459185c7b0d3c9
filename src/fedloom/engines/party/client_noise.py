"""The noise of real clients: two different releases never share noise.

Noise that is used twice can be subtracted. So a noise stream is named by all that the release
depends on: the client's secret, the run, the round and the draw, the client's rows, and a digest of
what the client received. A round that is repeated with the same messages gets the same noise and
the same bytes. With other messages (another model for a restarted client, another run) it gets
other noise. Where a row is released once and for all, the stream is named by the row and by what it
is released from.

In a simulation noise protects nobody. There, streams are named by round and draw alone, so that
engines, whose messages differ in their last digits, draw the same noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ...core import tree
from ...core.rng import Stream, Streams
from ...core.topology import Client
from ...fabric.noise import Once
from .values import ClientData, HostedValues


class NoiseBook(Protocol):
    """A client's record of the noise that it draws, written before anything is sent."""

    def draw(self, mark: bytes, rows: Tensor, releases: int, steps: int) -> None:
        """Record that the stream `mark` is used for `releases` releases of these rows and for
        `steps` local steps on them (counted for each time that a row occurs). Drawing the same
        stream again counts nothing."""


class ClientNoise:
    """Noise streams of the clients hosted here that have a secret."""

    def __init__(self, streams: Streams, rows: ClientData, book: NoiseBook | None):
        self._streams, self._rows, self._book = streams, rows, book
        self._received: dict[Client, list[Any]] = {}

    def begin(self) -> None:
        """Begin a round: no client has received anything."""
        self._received.clear()

    def receive(self, client: Client, kind: str, payload: Any) -> None:
        if self._streams.has_secret(client):
            self._received.setdefault(client, []).append((kind, payload))

    def row_streams(
        self, client: Client, name: tuple[int, ...], rows: Tensor, once: Once | None
    ) -> Sequence[Stream]:
        if once is None:
            stream = self._streams.own(client, "noise", *name, *self._context(client))
            self._note(client, stream, rows, 1, 0)
            return [stream]
        assert isinstance(once.released_from, HostedValues)
        source_digest = digest(once.released_from.raw(client, "noise"))
        streams = []
        for row in rows:
            features = digest(self._rows.features(client, row))
            streams.append(self._streams.own(client, "release", int(row), features, source_digest))
            self._note(client, streams[-1], row[None], 1, 0)
        return streams

    def step_stream(self, client: Client, name: tuple[int, ...], ids: Tensor, steps: int) -> Stream:
        stream = self._streams.own(client, "noise", *name, *self._context(client))
        self._note(client, stream, self._rows.among(client, ids), 0, steps)
        return stream

    def _context(self, client: Client) -> tuple[str, str]:
        return digest(self._rows.data(client)), digest(self._received.get(client, []))

    def _note(
        self, client: Client, stream: Stream, rows: Tensor, releases: int, steps: int
    ) -> None:
        """Record the use of a stream. A client that received nothing sends nothing."""
        if self._book is not None and len(rows) and client in self._received:
            self._book.draw(stream.mark, rows, releases, steps)


def digest(value: Any) -> str:
    """A digest of a tree of tensors and constants, exact to the bit."""
    hash_ = hashlib.blake2b(digest_size=32)
    tensors, _ = tree.apart(value)
    constants = [leaf for leaf in tree.leaves(value) if not isinstance(leaf, Tensor)]
    hash_.update(repr((constants, [(a.shape, a.dtype) for a in tensors])).encode())
    for a in tensors:
        plain = a.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        hash_.update(plain.numpy().data)
    return hash_.hexdigest()
