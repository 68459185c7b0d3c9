"""The mailbox that every transport delivers into. All waiting for messages happens here.

Messages of a link arrive in the order of their keys. The mailbox and the engine, not the transport,
decide how long to wait and what a timeout means.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping

from ..core.errors import AbortedError, FedLoomError, LostError
from ..core.topology import Party, title
from ..fabric.kinds import AT_THE_END, Key, Message

SLICE = 1.0  # seconds of a wait; a process that wakes much later was suspended


class Mailbox:
    """Received messages of one party, and ways to wait for more."""

    def __init__(self, owner: Party):
        self.owner = owner
        self._changed = threading.Condition()
        self._queues: dict[Party, deque[Message]] = defaultdict(deque)
        self._heard: dict[Party, float] = {}
        self._arrival: dict[Party, int] = {}  # arrival number of the last message of a source
        self._count = 0  # messages so far
        self._fresh: set[Party] = set()  # sources with news since the last check
        self._gone: set[Party] = set()
        self._keeps, self.kept = False, list[Message]()  # messages taken by take_each
        self.awaited: frozenset[Party] = frozenset()  # whom this party is waiting for
        self._problem: FedLoomError | None = None

    def put(self, message: Message) -> None:
        with self._changed:
            self._queues[message.source].append(message)
            self._heard[message.source] = time.monotonic()
            self._count += 1
            self._arrival[message.source] = self._count
            self._fresh.add(message.source)
            self._changed.notify_all()

    def heard(self, party: Party) -> None:
        """A sign of life: waits for this party continue."""
        with self._changed:
            self._heard[party] = time.monotonic()

    def last(self, party: Party) -> float:
        """The time of the last sign of life of this party, by this process's clock."""
        with self._changed:
            return self._heard.get(party, 0.0)

    def gone(self, party: Party) -> None:
        """The link to this party is down: no more messages will come."""
        with self._changed:
            self._gone.add(party)
            self._fresh.add(party)
            self._changed.notify_all()

    def back(self, party: Party) -> None:
        """The link is up again."""
        with self._changed:
            self._gone.discard(party)
            self._changed.notify_all()

    def is_gone(self, party: Party) -> bool:
        with self._changed:
            return party in self._gone

    def abort(self, cause: str) -> None:
        self.fail(AbortedError(cause))

    def fail(self, problem: FedLoomError) -> None:
        """All waits, current and later ones, raise this error; the first one counts."""
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the error that a wait would raise."""
        with self._changed:
            if self._problem is not None:
                raise self._problem

    def keep(self) -> None:
        """Keep messages that take_each takes, until `forget`."""
        self._keeps = True

    def forget(self) -> None:
        self.kept = []

    def take(self, source: Party, key: Key, what: str, seconds: float) -> Message | None:
        """The message with this key; None where a later message shows that it will not come. A
        LostError after so many seconds of silence."""
        message: Message | None = None

        def ready() -> bool:
            nonlocal message
            message = self._head(source, key)
            if message is not None and message.key == key:
                self._queues[source].popleft()
            return message is not None or source in self._gone

        begun = time.monotonic()
        if not self._wait(ready, lambda: max(begun, self._heard.get(source, 0)) + seconds, source):
            raise LostError(
                f"{key}: {title(self.owner)} waited for {what} from {title(source)}, of which "
                f"nothing was heard for {seconds:g} s"
            )
        if message is None:
            raise LostError(
                f"{key}: {title(self.owner)} lost its link to {title(source)} while it waited for "
                f"{what}"
            )
        return message if message.key == key else None

    def is_at_its_end(self, source: Party) -> bool:
        """Whether the source's next message is its last one."""
        with self._changed:
            queue = self._queues[source]
            return bool(queue) and queue[0].key == AT_THE_END

    def waiting(self, source: Party) -> int:
        """How many messages of this source wait to be taken."""
        with self._changed:
            return len(self._queues[source])

    def await_back(self, parties: Iterable[Party], enough: int, seconds: float) -> bool:
        """Whether links to `enough` of them come up within so many seconds."""
        awaited = set(parties)
        until = time.monotonic() + seconds
        return self._wait(lambda: len(awaited - self._gone) >= enough, lambda: until)

    def take_each(
        self, sources: Iterable[Party], key: Key, seconds: float, enough: int | None = None
    ) -> dict[Party, Message]:
        """Messages with this key, from all sources whose message comes in time. A source whose link
        is down, or that has sent a later message, is not waited for. `enough`: wait until so many
        have come, also for sources whose link is down."""
        came: dict[Party, Message] = {}
        awaited: set[Party] = set(sources)
        with self._changed:
            self._fresh |= awaited

        def ready() -> bool:
            for source in self._fresh & awaited:
                head = self._head(source, key)
                if head is not None and head.key == key:
                    came[source] = self._queues[source].popleft()
                    if self._keeps:
                        self.kept.append(came[source])
                if head is not None or (source in self._gone and enough is None):
                    awaited.discard(source)
            self._fresh.clear()
            return not awaited or (enough is not None and len(came) >= enough)

        until = time.monotonic() + seconds
        self._wait(ready, lambda: until, *awaited)
        return came

    def take_first(self, keys: Mapping[Party, Key], enough: int, seconds: float) -> list[Party]:
        """Wait for messages with these keys from `enough` sources, and take all that have come.
        Returns their sources in order of arrival. A LostError after so many seconds of silence of
        the others."""
        sources: list[Party] = []

        def ready() -> bool:
            heads = {source: self._head(source, key) for source, key in keys.items()}
            came = [source for source, head in heads.items() if head is not None]
            sources[:] = sorted(came, key=self._arrival.__getitem__)
            if len(sources) < enough:
                return False
            for source in sources:
                self._queues[source].popleft()
            return True

        begun = time.monotonic()

        def until() -> float:
            left = [max(begun, self._heard.get(s, 0)) for s in keys if s not in sources]
            return sorted(left, reverse=True)[enough - len(sources) - 1] + seconds

        if not self._wait(ready, until, *keys):
            silent = min(set(keys) - {*sources}, key=lambda source: self._heard.get(source, 0))
            raise LostError(
                f"{keys[silent]}: {title(self.owner)} waited for a visit of {title(silent)}, of "
                f"which nothing was heard for {seconds:g} s"
            )
        return sources

    def _head(self, source: Party, key: Key) -> Message | None:
        """The first message from the source that is not older than the key; older ones are
        dropped."""
        queue = self._queues[source]
        while queue and queue[0].key < key:
            queue.popleft()
        return queue[0] if queue else None

    def _wait(self, ready: Callable[[], bool], until: Callable[[], float], *awaited: Party) -> bool:
        """Wait until `ready`, or the deadline. Time in which this process was suspended does not
        count."""
        lost = 0.0
        self.awaited = frozenset(awaited)
        try:
            with self._changed:
                while True:
                    if self._problem is not None:
                        raise self._problem
                    if ready():
                        return True
                    asked = time.monotonic()
                    left = until() + lost - asked
                    if left <= 0:
                        return False
                    self._changed.wait(min(left, SLICE))
                    lost += max(0.0, time.monotonic() - asked - 2 * SLICE)
        finally:
            self.awaited = frozenset()
