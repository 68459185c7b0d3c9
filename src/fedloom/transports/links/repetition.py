"""Checks that a restarted hub sends the same messages again.

Whoever connects to a hub sends digests of the messages of the last round that it has received from
the hub. They must be equal to the digests of what the hub has sent, or will send again after a
restart. A difference means that the hub's state is not the state that sent those messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta

from ...fabric.kinds import Key

MANY = 1 << 15  # messages of a round, on one link
SHORT = 16  # bytes of a digest
Digest = Annotated[bytes, Meta(max_length=SHORT)]


class RoundDigests(NamedTuple):
    """The move and the digest of each message of a round, in order."""

    round: int
    digests: Annotated[tuple[tuple[int, Digest], ...], Meta(min_length=1, max_length=MANY)]

    @property
    def last(self) -> Key:
        return Key(self.round, self.digests[-1][0])


class DigestLog:
    """Digests of the messages received in the last round."""

    def __init__(self, latest: RoundDigests | None = None) -> None:
        self._round = -1 if latest is None else latest.round
        self._digests = [] if latest is None else [*latest.digests]

    def add(self, key: Key, digest: bytes) -> None:
        if key.round != self._round:
            self._round, self._digests = key.round, []
        self._digests.append((key.move, digest))
        del self._digests[:-MANY]

    @property
    def latest(self) -> RoundDigests | None:
        return RoundDigests(self._round, tuple(self._digests)) if self._digests else None


class RepetitionCheck:
    """Compares a hub's messages with what one peer has received from it."""

    def __init__(self) -> None:
        self._due: deque[tuple[Key, bytes]] = deque()

    def compare(
        self, heard: RoundDigests, sent: Mapping[Key, bytes], dropped: Key, first: int
    ) -> Key | None:
        """The first key at which the peer has received something else than was `sent`; None if
        there is none. Messages up to `dropped` are no longer kept. Messages to come will be
        compared, too. `first`: the round that this process began with; of earlier rounds, not all
        messages may be kept."""
        latest = max(sent, default=dropped)
        digests = {Key(heard.round, move): digest for move, digest in heard.digests}
        self._due = deque((k, d) for k, d in digests.items() if k > latest and k.round >= first)
        for key, digest in digests.items():
            is_there = key in sent or first <= key.round
            if dropped < key <= latest and is_there and sent.get(key) != digest:
                return key
        between = (
            key for key in sent if min(digests) <= key <= max(digests) and key not in digests
        )
        return min(between, default=None)

    def matches(self, key: Key, digest: bytes) -> bool:
        """Whether a message to be sent is the one that the peer has received, if it has."""
        return not self._due or self._due.popleft() == (key, digest)
