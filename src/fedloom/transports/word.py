"""A hub keeps its word: what others have heard of it, it must have said, or come to say again.

Whoever connects to a hub tells what it has heard last: of one round, message by message, as
digests. A hub that remembers it has it among what it sent; one that was started again comes to say
it once more. Where it says something else, its memory is not what it was when others heard it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta

from ..fabric.kinds import Key

MANY = 1 << 15  # messages of a round, on one link
SHORT = 16  # bytes of a digest
Digest = Annotated[bytes, Meta(max_length=SHORT)]


class Heard(NamedTuple):
    """Of one round: moves and digests, in their order."""

    round: int
    said: Annotated[tuple[tuple[int, Digest], ...], Meta(min_length=1, max_length=MANY)]

    @property
    def last(self) -> Key:
        return Key(self.round, self.said[-1][0])


class Ear:
    """What was heard last."""

    def __init__(self, heard: Heard | None = None) -> None:
        self._round = -1 if heard is None else heard.round
        self._said = [] if heard is None else [*heard.said]

    def hear(self, key: Key, digest: bytes) -> None:
        if key.round != self._round:
            self._round, self._said = key.round, []
        self._said.append((key.move, digest))
        del self._said[:-MANY]

    @property
    def heard(self) -> Heard | None:
        return Heard(self._round, tuple(self._said)) if self._said else None


class Word:
    """What a hub is held to, by one who has heard it."""

    def __init__(self) -> None:
        self._due: deque[tuple[Key, bytes]] = deque()

    def hold(self, heard: Heard, sent: Mapping[Key, bytes], dropped: Key, first: int) -> Key | None:
        """The first key at which something else was heard than what was `sent`, as far as it is
        still kept: after `dropped`. What is to come is held against it, too. `first`: the round
        that this process began with; of what the one before said, not all may be there."""
        latest = max(sent, default=dropped)
        told = {Key(heard.round, move): digest for move, digest in heard.said}
        self._due = deque((k, d) for k, d in told.items() if k > latest and k.round >= first)
        for key, digest in told.items():
            is_there = key in sent or first <= key.round
            if dropped < key <= latest and is_there and sent.get(key) != digest:
                return key
        between = (key for key in sent if min(told) <= key <= max(told) and key not in told)
        return min(between, default=None)

    def say(self, key: Key, digest: bytes) -> bool:
        """Whether this is what was heard, if it was."""
        return not self._due or self._due.popleft() == (key, digest)
