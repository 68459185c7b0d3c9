"""One link between two parties, whatever happens to the connection under it.

Keys of the messages on a link only grow, so they number it: a party that connects says after which
key it wants to hear on, and the other sends again from there. What was sent is kept until the
receiver has it and two rounds have begun since, so that a party that lost its memory can hear its
round again. Within an attempt at the run, a key stands for one byte string for ever: an equal
duplicate is dropped, a different one is refused, and so is what comes late. A hub that is started
again is not asked for what it said before, and must come to say the same: who connects gives a
digest of what it has heard. A hub that cannot, or that wants to hear what nobody keeps any more,
comes from an earlier moment (a backup): then this attempt is over for all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated, NamedTuple

from msgspec import Meta, MsgspecError, Struct, msgpack

from ..core.errors import FrameError, NotFiniteError, OutOfStepError, RefusedError
from ..core.topology import Client, Party, title
from ..fabric.attempts import Held, Line, tag
from ..fabric.kinds import AT_THE_END, Key, Message
from ..fabric.permits import Bounds, Permits
from . import wire
from .mailbox import Mailbox
from .position import Position
from .word import SHORT, Ear, Heard, Word

CHUNK = 1 << 20
KEPT = 2  # rounds
NOTHING = Key(-2, 0)  # before every key


class Hello(Struct, tag=True, forbid_unknown_fields=True):
    """First on every connection, both ways. `wants`: messages after this key; none: those of the
    round that the other is in. `at`: the round that this party is in. `heard`: from a hub, last.
    `line`, `agreeing` and `held`: its position. Who dials sends a `challenge`; who answers, its
    certificate and a proof that it has its key."""

    run: Annotated[str, Meta(max_length=64)]
    boot: Annotated[str, Meta(max_length=64)]
    wants: tuple[int, int] | None
    at: int
    heard: Heard | None = None
    line: Line | None = Line()
    agreeing: bool = False
    held: Annotated[tuple[Held, ...], Meta(max_length=1 << 12)] = ()
    challenge: Annotated[bytes, Meta(max_length=64)] = b""
    certificate: Annotated[bytes, Meta(max_length=1 << 14)] = b""
    proof: Annotated[bytes, Meta(max_length=1 << 10)] = b""


class Part(Struct, tag=True, forbid_unknown_fields=True):
    """A piece of a frame; so many bytes of it are still to come."""

    left: int
    data: memoryview


class Beat(Struct, tag=True, forbid_unknown_fields=True):
    """Alive. `got`: the last key that came; `pulse`: the party has made a move."""

    got: tuple[int, int]
    pulse: bool


class Stop(Struct, tag=True, forbid_unknown_fields=True):
    """The run is over for everyone. `restore`: until something is restored."""

    cause: str
    restore: bool = False


class Bye(Struct, tag=True, forbid_unknown_fields=True):
    """Nothing more will come, and nothing more is wanted."""


Packet = Hello | Part | Beat | Stop | Bye
pack = msgpack.Encoder().encode
_decoder = msgpack.Decoder(Packet)


def unpack(data: bytes) -> Packet:
    """FrameError for bytes that are no packet."""
    try:
        return _decoder.decode(data)
    except (MsgspecError, RecursionError, ValueError) as problem:
        raise FrameError(f"bytes that are no packet ({problem})") from None


class Sent(NamedTuple):
    """A message, as bytes, that may have to be sent again."""

    key: Key
    frame: wire.Frame


class Link:
    """What one party keeps of its link to another. `joins`: it has no memory of its own, and begins
    with the round that the other is in."""

    def __init__(
        self,
        me: Party,
        peer: Party,
        run: str,
        mailbox: Mailbox,
        *,
        cap: int = wire.CAP,
        joins: bool = False,
        permits: Permits | None = None,
        bounds: Bounds | None = None,
        position: Position | None = None,
    ):
        self.me, self.peer, self._joins = me, peer, joins
        self.position = position or Position()
        self._permits, self._bounds = permits, bounds or Bounds()
        self._run, self._mailbox, self._cap = run, mailbox, cap
        self._lock, self._receiving = threading.Lock(), threading.Lock()
        self._outbox: list[Sent] = []
        self._dropped = NOTHING  # the last key that is no longer kept
        self._began = -1  # the round that this process began with
        self._digests: dict[Key, bytes] = {}
        self._word, self.ear = Word(), Ear()
        self.met: Hello | None = None  # the last greeting of the peer
        self._frame, self._size = bytearray(), 0  # what has come of one, and how long it will be
        self.got = NOTHING  # the last key that came
        self.acknowledged = NOTHING  # the last key that the peer has
        self.boot = ""  # of the peer's process
        self.at = -1  # the peer's round, by its own account
        self.meetings = 0  # connections so far
        self.bye = False  # the peer has said so
        self.counts: Counter[str] = Counter()  # of bytes, and of what was refused
        self.left: Counter[str] = Counter()  # bytes by kind, of what was to be sent
        self.wake: Callable[[], None] = lambda: None

    @property
    def tag(self) -> str:
        """What messages say that they are of; `-` is no attempt's name."""
        line, none = self.position.line, self.position.agreeing or self.position.line is None
        return tag(self._run, "-" if none or line is None else line.attempt)

    # Sending

    def post(self, message: Message, body: wire.Body) -> None:
        """To be sent, as soon as there is a connection; refused if it was not agreed on."""
        self._check(message)
        key, frame = message.key, wire.frame_of(message, self.tag, body)
        with self._lock:
            if self._outbox and key <= self._outbox[-1].key:
                raise FrameError(f"{key}: a second message to {title(self.peer)} in one move")
            self._outbox.append(Sent(key, frame))
            self.left[message.kind] += sum(map(len, frame))
            oldest = min(key.round - KEPT + 1, self.acknowledged.round)
            if key != AT_THE_END:
                while (
                    self._outbox[0].key.round < oldest and self._outbox[0].key < self.acknowledged
                ):
                    self._dropped = self._outbox.pop(0).key
            if not self._word.say(key, _digest_of(frame)):
                raise self._broken(key)
        self.wake()

    def _check(self, message: Message) -> None:
        """What may not pass, out or in."""
        if self._permits is not None:
            self._permits.check(message)
        self._bounds.check(message)

    def after(self, key: Key) -> Sent | None:
        """The next message to send."""
        with self._lock:
            return next((sent for sent in self._outbox if sent.key > key), None)

    @property
    def last(self) -> Key:
        """Of what was to be sent."""
        with self._lock:
            return self._outbox[-1].key if self._outbox else self._dropped

    @property
    def is_heard(self) -> bool:
        """Whether the peer has everything."""
        return self.acknowledged >= self.last

    @property
    def round(self) -> int:
        """That this party is in: of the last message sent, but for the end of the run, if no later
        one has begun."""
        with self._lock:
            keys = [sent.key for sent in self._outbox if sent.key != AT_THE_END]
            last = (keys[-1] if keys else self._dropped).round
            return max(last, self._began, self.position.round)

    def resume(
        self, round: int, sent: Iterable[Sent], dropped: Key = NOTHING, heard: Heard | None = None
    ) -> None:
        """Begin with a later round, with what was sent before it and what was heard."""
        self._began, self.got, self._outbox = round, Key(round, 0), [*sent]
        self._dropped, self.ear = dropped, Ear(heard)

    def sent_since(self, round: int) -> list[Sent]:
        with self._lock:
            return [sent for sent in self._outbox if sent.key.round >= round]

    def last_before(self, round: int) -> Key:
        """Of what was sent."""
        with self._lock:
            earlier = [sent.key for sent in self._outbox if sent.key.round < round]
            return max([self._dropped, *earlier])

    # Greeting

    def hello(self, boot: str, *proof: bytes) -> Hello:
        with self._receiving:
            wants = None if self._joins and not self.boot else self.got
            here = self.position
            where = here.line, here.agreeing, here.held
            heard = None if isinstance(self.peer, Client) else self.ear.heard
            return Hello(self._run, boot, wants, self.round, heard, *where, *proof)

    def greeted(self, hello: Hello) -> Key:
        """The key after which to send; RefusedError where the two cannot go on together,
        OutOfStepError where not as they are."""
        if hello.run != self._run:
            raise RefusedError(
                f"{title(self.me)} and {title(self.peer)} have different runs: fingerprints "
                f"{self._run[:12]} and {hello.run[:12]}"
            )
        self.met = hello
        self.position.meet(self.me, self.peer, hello)
        if hello.agreeing and self._joins:  # there is nothing yet to join
            return self._dropped
        first = Key(self.round, -1) if hello.wants is None else Key(*hello.wants)
        if first < self._dropped:
            raise (RefusedError if isinstance(self.peer, Client) else OutOfStepError)(
                f"{title(self.peer)} wants to hear on from {first}; {title(self.me)} keeps what "
                f"came after {self._dropped}"
            )
        if not isinstance(self.me, Client) and not self.position.agreeing:
            self._hold_to(hello)
        if self._joins and self.position.line is None:
            self.position.line = hello.line
        if hello.boot == self.boot and not self.bye:
            self.counts["lost"] += 1  # a connection, and no process: both are still here
        self.boot, self.at, self.acknowledged = hello.boot, hello.at, first
        self.drop()
        self.meetings += 1
        return first

    def _hold_to(self, hello: Hello) -> None:
        """What the other has heard of a hub counts, whatever became of the hub since."""
        if hello.heard is None:
            return
        if hello.heard.round > self.round:
            raise OutOfStepError(
                f"{title(self.peer)} has heard {title(self.me)} in {hello.heard.last}, which "
                f"{title(self.me)} does not remember: it is in round {self.round}"
            )
        with self._lock:
            sent = {one.key: _digest_of(one.frame) for one in self._outbox}
            broken = self._word.hold(hello.heard, sent, self._dropped, self._began)
        if broken is not None:
            raise self._broken(broken)

    def _broken(self, key: Key) -> OutOfStepError:
        return OutOfStepError(
            f"{key}: {title(self.me)} would go on from something else than it told "
            f"{title(self.peer)} before it was started again: its folder is not as it was then"
        )

    # Receiving

    def part(self, part: Part) -> bytearray | None:
        """A frame, when it is whole."""
        if part.left < 0 or not part.data:
            raise FrameError(f"{title(self.peer)} sent a piece of nothing")
        size = len(self._frame) + len(part.data) + part.left
        if size > self._cap:
            raise FrameError(f"{title(self.peer)} announced {size} bytes; refused")
        if self._frame and size != self._size:
            raise FrameError(f"{title(self.peer)} sent pieces that do not fit together")
        self._size = size
        self._frame += part.data
        if part.left:
            return None
        whole = self._frame
        self.drop()
        return whole

    def drop(self) -> None:
        """What has come of a frame: the rest will not."""
        self._frame = bytearray()

    def receive(self, frame: bytes | bytearray) -> None:
        """Into the mailbox, once; also where a broken connection's last frame is still being read
        while the next connection brings it again."""
        message = wire.decode(frame, self.tag, self.peer, self.me, self._cap)
        key, digest = message.key, wire.digest_of(frame)
        try:
            self._check(message)
        except NotFiniteError as problem:
            raise FrameError(str(problem)) from None
        with self._receiving:
            if key <= self.got:
                self._again(message, self._digests.get(key), digest)
                return
            if key != AT_THE_END and not isinstance(self.peer, Client):
                self.ear.hear(key, digest[:SHORT])
            self.got = key
            self._digests = {k: d for k, d in self._digests.items() if k.round >= key.round - KEPT}
            self._digests[key] = digest
            self.counts["received"] += len(frame)
            self._mailbox.put(message)

    def _again(self, message: Message, known: bytes | None, digest: bytes) -> None:
        """A key that came before: the first counts. A client that computes a round anew may differ
        in the last bits; a hub that does would have gone on from something else than the others."""
        if known is None or known == digest:
            self.counts["stale" if known is None else "repeated"] += 1
            return
        self.counts["conflicting"] += 1
        if not isinstance(self.peer, Client):
            raise FrameError(
                f"{message.key}: {title(self.peer)} sent {message.kind} twice, differently"
            )


def _digest_of(frame: wire.Frame) -> bytes:
    """As the other tells what it has heard."""
    return wire.digest_of(frame.head)[:SHORT]
