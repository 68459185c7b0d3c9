"""A link between two parties, which outlives its connections.

Keys of the messages on a link only grow, so they number the messages. A party that connects names
the last key that it has received, and the peer sends again from there. A sent message is kept until
the receiver has it and two rounds have begun since, so that a restarted party can receive its round
again.

Within an attempt at the run, a key always stands for the same bytes. An equal duplicate is dropped;
a different one is refused, and so is a late message. A restarted hub is not asked for earlier
messages again, but it must send the same ones: whoever connects sends digests of what it has
received. A hub whose messages differ, or that needs messages that are no longer kept, was restored
from a backup. Then this attempt is over for all parties.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated, NamedTuple

from msgspec import Meta, MsgspecError, Struct, msgpack

from ...core.errors import FrameError, NotFiniteError, OutOfStepError, RefusedError
from ...core.topology import Client, Party, title
from ...fabric.attempts import AttemptHistory, ResumePoint, tag
from ...fabric.kinds import AT_THE_END, Key, Message
from ...fabric.permits import Bounds, Permits
from .. import wire
from ..mailbox import Mailbox
from .position import Position
from .repetition import SHORT, DigestLog, RepetitionCheck, RoundDigests

CHUNK = 1 << 20
KEPT_ROUNDS = 2
NOTHING = Key(-2, 0)  # before every key


class Hello(Struct, tag=True, forbid_unknown_fields=True):
    """The first packet on every connection, from both sides. `wants`: send messages after this key;
    none: those of the round that the peer is in. `at`: the round that this party is in. `heard`:
    digests of the last messages from a hub. `line`, `agreeing` and `held`: the position. The
    dialling side sends a `challenge`; the other side its certificate and a proof that it has its
    key."""

    run: Annotated[str, Meta(max_length=64)]
    boot: Annotated[str, Meta(max_length=64)]
    wants: tuple[int, int] | None
    at: int
    heard: RoundDigests | None = None
    line: AttemptHistory | None = AttemptHistory()
    agreeing: bool = False
    held: Annotated[tuple[ResumePoint, ...], Meta(max_length=1 << 12)] = ()
    challenge: Annotated[bytes, Meta(max_length=64)] = b""
    certificate: Annotated[bytes, Meta(max_length=1 << 14)] = b""
    proof: Annotated[bytes, Meta(max_length=1 << 10)] = b""


class FramePart(Struct, tag="Part", forbid_unknown_fields=True):
    """A piece of a frame. `left`: how many bytes of the frame are still to come."""

    left: int
    data: memoryview


class Beat(Struct, tag=True, forbid_unknown_fields=True):
    """A heartbeat. `got`: the last key received; `pulse`: the party has made a move since."""

    got: tuple[int, int]
    pulse: bool


class Stop(Struct, tag=True, forbid_unknown_fields=True):
    """The run is over for all parties. `restore`: until a backup is restored."""

    cause: str
    restore: bool = False


class Bye(Struct, tag=True, forbid_unknown_fields=True):
    """The end: nothing more will be sent, and nothing more is expected."""


Packet = Hello | FramePart | Beat | Stop | Bye
pack = msgpack.Encoder().encode
_decoder = msgpack.Decoder(Packet)


def unpack(data: bytes) -> Packet:
    """FrameError for bytes that are no packet."""
    try:
        return _decoder.decode(data)
    except (MsgspecError, RecursionError, ValueError) as problem:
        raise FrameError(f"invalid packet ({problem})") from None


class SentFrame(NamedTuple):
    """A sent message as bytes, kept in case it must be sent again."""

    key: Key
    frame: wire.Frame


class Link:
    """One party's end of a link. `joins`: the party has no state of its own, and begins with the
    round that the peer is in."""

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
        self._outbox: list[SentFrame] = []
        self._dropped = NOTHING  # the last key whose message is no longer kept
        self._began = -1  # the round that this process began with
        self._digests: dict[Key, bytes] = {}
        self._repetition, self.received = RepetitionCheck(), DigestLog()
        self.met: Hello | None = None  # the last Hello of the peer
        self._frame, self._size = bytearray(), 0  # an incomplete frame, and its full size
        self.got = NOTHING  # the last key received
        self.acknowledged = NOTHING  # the last key that the peer has
        self.boot = ""  # identifies the peer's process
        self.at = -1  # the peer's round, from its Hello
        self.meetings = 0  # number of connections so far
        self.bye = False  # the peer has sent Bye
        self.counts: Counter[str] = Counter()  # of bytes and of refused packets
        self.left: Counter[str] = Counter()  # bytes posted, by kind of message
        self.wake: Callable[[], None] = lambda: None

    @property
    def tag(self) -> str:
        """The run and attempt in messages; `-` where the party is in no attempt."""
        line, none = self.position.line, self.position.agreeing or self.position.line is None
        return tag(self._run, "-" if none or line is None else line.attempt)

    # Sending

    def post(self, message: Message, body: wire.Body) -> None:
        """Queue a message for sending. FrameError if it was not agreed on."""
        self._check(message)
        key, frame = message.key, wire.frame_of(message, self.tag, body)
        with self._lock:
            if self._outbox and key <= self._outbox[-1].key:
                raise FrameError(f"{key}: a second message to {title(self.peer)} in one move")
            self._outbox.append(SentFrame(key, frame))
            self.left[message.kind] += sum(map(len, frame))
            oldest = min(key.round - KEPT_ROUNDS + 1, self.acknowledged.round)
            if key != AT_THE_END:
                while (
                    self._outbox[0].key.round < oldest and self._outbox[0].key < self.acknowledged
                ):
                    self._dropped = self._outbox.pop(0).key
            if not self._repetition.matches(key, _digest_of(frame)):
                raise self._broken(key)
        self.wake()

    def _check(self, message: Message) -> None:
        """Refuse a message that is not permitted, in either direction."""
        if self._permits is not None:
            self._permits.check(message)
        self._bounds.check(message)

    def after(self, key: Key) -> SentFrame | None:
        """The next message to send after this key."""
        with self._lock:
            return next((sent for sent in self._outbox if sent.key > key), None)

    @property
    def last(self) -> Key:
        """The key of the last message to be sent."""
        with self._lock:
            return self._outbox[-1].key if self._outbox else self._dropped

    @property
    def is_heard(self) -> bool:
        """Whether the peer has received everything."""
        return self.acknowledged >= self.last

    @property
    def round(self) -> int:
        """The round that this party is in: that of its last message (except the end of the run), or
        a later one that has begun."""
        with self._lock:
            keys = [sent.key for sent in self._outbox if sent.key != AT_THE_END]
            last = (keys[-1] if keys else self._dropped).round
            return max(last, self._began, self.position.round)

    def resume(
        self,
        round: int,
        sent: Iterable[SentFrame],
        dropped: Key = NOTHING,
        heard: RoundDigests | None = None,
    ) -> None:
        """Begin with a later round, given what was sent and received before it."""
        self._began, self.got, self._outbox = round, Key(round, 0), [*sent]
        self._dropped, self.received = dropped, DigestLog(heard)

    def sent_since(self, round: int) -> list[SentFrame]:
        with self._lock:
            return [sent for sent in self._outbox if sent.key.round >= round]

    def last_before(self, round: int) -> Key:
        """The key of the last message sent before a round."""
        with self._lock:
            earlier = [sent.key for sent in self._outbox if sent.key.round < round]
            return max([self._dropped, *earlier])

    # Greeting

    def hello(self, boot: str, *proof: bytes) -> Hello:
        with self._receiving:
            wants = None if self._joins and not self.boot else self.got
            position = self.position
            where = position.line, position.agreeing, position.held
            heard = None if isinstance(self.peer, Client) else self.received.latest
            return Hello(self._run, boot, wants, self.round, heard, *where, *proof)

    def greeted(self, hello: Hello) -> Key:
        """Accept the peer's Hello. Returns the key after which to send. RefusedError where the
        parties can never continue together, OutOfStepError where they have to roll back first."""
        if hello.run != self._run:
            raise RefusedError(
                f"{title(self.me)} and {title(self.peer)} have different runs: fingerprints "
                f"{self._run[:12]} and {hello.run[:12]}"
            )
        self.met = hello
        self.position.meet(self.me, self.peer, hello)
        if hello.agreeing and self._joins:  # the hub is in no attempt yet
            return self._dropped
        first = Key(self.round, -1) if hello.wants is None else Key(*hello.wants)
        if first < self._dropped:
            raise (RefusedError if isinstance(self.peer, Client) else OutOfStepError)(
                f"{title(self.peer)} needs the messages after {first}; {title(self.me)} only has "
                f"those after {self._dropped}"
            )
        if not isinstance(self.me, Client) and not self.position.agreeing:
            self._hold_to(hello)
        if self._joins and self.position.line is None:
            self.position.line = hello.line
        if hello.boot == self.boot and not self.bye:
            self.counts["lost"] += 1  # the connection broke, but both processes are alive
        self.boot, self.at, self.acknowledged = hello.boot, hello.at, first
        self.drop()
        self.meetings += 1
        return first

    def _hold_to(self, hello: Hello) -> None:
        """OutOfStepError where the peer has received other messages than this hub sent or
        remembers."""
        if hello.heard is None:
            return
        if hello.heard.round > self.round:
            raise OutOfStepError(
                f"{title(self.peer)} has heard {title(self.me)} in {hello.heard.last}, which "
                f"{title(self.me)} does not remember: it is in round {self.round}"
            )
        with self._lock:
            sent = {message.key: _digest_of(message.frame) for message in self._outbox}
            broken = self._repetition.compare(hello.heard, sent, self._dropped, self._began)
        if broken is not None:
            raise self._broken(broken)

    def _broken(self, key: Key) -> OutOfStepError:
        return OutOfStepError(
            f"{key}: {title(self.me)} would go on from something else than it told "
            f"{title(self.peer)} before it was started again: its folder is not as it was then"
        )

    # Receiving

    def part(self, part: FramePart) -> bytearray | None:
        """Add a piece. Returns the frame when it is complete."""
        if part.left < 0 or not part.data:
            raise FrameError(f"{title(self.peer)} sent an empty piece")
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
        """Drop an incomplete frame."""
        self._frame = bytearray()

    def receive(self, frame: bytes | bytearray) -> None:
        """Put the message of a frame into the mailbox, once, even if two connections deliver it at
        the same time."""
        message = wire.decode(frame, self.tag, self.peer, self.me, self._cap)
        key, digest = message.key, wire.digest_of(frame)
        try:
            self._check(message)
        except NotFiniteError as problem:
            raise FrameError(str(problem)) from None
        with self._receiving:
            if key <= self.got:
                self._repeated(message, self._digests.get(key), digest)
                return
            if key != AT_THE_END and not isinstance(self.peer, Client):
                self.received.add(key, digest[:SHORT])
            self.got = key
            self._digests = {
                k: d for k, d in self._digests.items() if k.round >= key.round - KEPT_ROUNDS
            }
            self._digests[key] = digest
            self.counts["received"] += len(frame)
            self._mailbox.put(message)

    def _repeated(self, message: Message, known: bytes | None, digest: bytes) -> None:
        """A second message with the same key: the first one counts. A client that repeats a round
        may differ in the last bits. A hub may not: it would continue from another state than its
        peers."""
        if known is None or known == digest:
            self.counts["stale" if known is None else "repeated"] += 1
            return
        self.counts["conflicting"] += 1
        if not isinstance(self.peer, Client):
            raise FrameError(
                f"{message.key}: {title(self.peer)} sent {message.kind} twice, differently"
            )


def _digest_of(frame: wire.Frame) -> bytes:
    """The short digest that peers compare."""
    return wire.digest_of(frame.head)[:SHORT]
