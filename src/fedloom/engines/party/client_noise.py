"""How real clients draw noise: never the same for two different releases.

Noise that is used twice can be subtracted. So a stream of a client's secret is named by all that
its release depends on: the run, the round and the draw, the client's own rows, and a digest of what
the client was sent. A round that happens again with the same messages gets the same noise and gives
the same bytes; with other messages (another model for a restarted client, another run) it gets
other noise. Where a row is to be released once and for all, the stream is named by the row and by
what it is released from.

In a simulation noise protects nobody. There it is named by round and draw alone, so that engines,
whose messages differ in their last digits, draw the same.
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
from .values import Held, Holdings


class Book(Protocol):
    """Where a client notes what it draws noise for, before anything is sent."""

    def draw(self, mark: bytes, rows: Tensor, releases: int, steps: int) -> None:
        """Noise of the stream `mark` is for so many releases of these rows and so many local steps
        on them, for each time that a row is among them. The same stream again is nothing new."""


class ClientNoise:
    """Of the clients hosted here that have a secret."""

    def __init__(self, streams: Streams, rows: Holdings, book: Book | None):
        self._streams, self._rows, self._book = streams, rows, book
        self._received: dict[Client, list[Any]] = {}

    def begin(self) -> None:
        """A new round: nothing was sent to anybody yet."""
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
        assert isinstance(once.released_from, Held)
        of = digest(once.released_from.raw(client, "noise"))
        streams = []
        for row in rows:
            features = digest(self._rows.features(client, row))
            streams.append(self._streams.own(client, "release", int(row), features, of))
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
        """A client that was sent nothing in this round sends nothing."""
        if self._book is not None and len(rows) and client in self._received:
            self._book.draw(stream.mark, rows, releases, steps)


def digest(value: Any) -> str:
    """Of a tree of tensors and constants, to the bit."""
    found = hashlib.blake2b(digest_size=32)
    tensors, _ = tree.apart(value)
    constants = [leaf for leaf in tree.leaves(value) if not isinstance(leaf, Tensor)]
    found.update(repr((constants, [(a.shape, a.dtype) for a in tensors])).encode())
    for a in tensors:
        plain = a.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found.update(plain.numpy().data)
    return found.hexdigest()
