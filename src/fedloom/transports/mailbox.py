"""The mailbox that every transport delivers into: all waiting is here.

Messages of one link arrive in the order of their keys. How long to wait, and what a wait that ends
means, is decided here and in the engine, not in the transport.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping

from ..core.errors import AbortedError, FedLoomError, LostError
from ..core.topology import Party, title
from ..fabric.kinds import AT_THE_END, Key, Message

SLICE = 1.0  # seconds: who sleeps so long and wakes up much later was stopped


class Mailbox:
    """Messages that have come for one party, and the ways to wait for more."""

    def __init__(self, owner: Party):
        self.owner = owner
        self._changed = threading.Condition()
        self._queues: dict[Party, deque[Message]] = defaultdict(deque)
        self._heard: dict[Party, float] = {}
        self._when: dict[Party, int] = {}  # which of all messages was the last of a source
        self._came = 0  # messages so far
        self._fresh: set[Party] = set()  # sources with news since the last look
        self._gone: set[Party] = set()
        self._keeps, self.kept = False, list[Message]()  # what was taken from many, if wanted
        self.awaited: frozenset[Party] = frozenset()  # for whoever wants to know, now
        self._problem: FedLoomError | None = None

    def put(self, message: Message) -> None:
        with self._changed:
            self._queues[message.source].append(message)
            self._heard[message.source] = time.monotonic()
            self._came += 1
            self._when[message.source] = self._came
            self._fresh.add(message.source)
            self._changed.notify_all()

    def heard(self, party: Party) -> None:
        """A sign of life: whoever waits for this party waits on."""
        with self._changed:
            self._heard[party] = time.monotonic()

    def last(self, party: Party) -> float:
        """When something was heard of this party, by this process's own clock."""
        with self._changed:
            return self._heard.get(party, 0.0)

    def gone(self, party: Party) -> None:
        """The link to this party is down: nothing more will come from it."""
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
        """Whoever waits here, now or later, gets this error; the first one counts."""
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the error that waiting here would."""
        with self._changed:
            if self._problem is not None:
                raise self._problem

    def keep(self) -> None:
        """What is taken from many is kept from now on, until it is forgotten."""
        self._keeps = True

    def forget(self) -> None:
        self.kept = []

    def take(self, source: Party, key: Key, what: str, seconds: float) -> Message | None:
        """The message with this key; None when a later one proves that it will not come. Never
        returns otherwise: so many seconds of silence are an error."""
        found: Message | None = None

        def ready() -> bool:
            nonlocal found
            found = self._head(source, key)
            if found is not None and found.key == key:
                self._queues[source].popleft()
            return found is not None or source in self._gone

        begun = time.monotonic()
        if not self._wait(ready, lambda: max(begun, self._heard.get(source, 0)) + seconds, source):
            raise LostError(
                f"{key}: {title(self.owner)} waited for {what} from {title(source)}, of which "
                f"nothing was heard for {seconds:g} s"
            )
        if found is None:
            raise LostError(
                f"{key}: {title(self.owner)} lost its link to {title(source)} while it waited for "
                f"{what}"
            )
        return found if found.key == key else None

    def is_at_its_end(self, source: Party) -> bool:
        """Whether this source's next message is its last."""
        with self._changed:
            queue = self._queues[source]
            return bool(queue) and queue[0].key == AT_THE_END

    def held(self, source: Party) -> int:
        """Messages of this source that wait to be taken."""
        with self._changed:
            return len(self._queues[source])

    def await_back(self, parties: Iterable[Party], enough: int, seconds: float) -> bool:
        """Whether links to so many of them are up, within so many seconds."""
        awaited = set(parties)
        until = time.monotonic() + seconds
        return self._wait(lambda: len(awaited - self._gone) >= enough, lambda: until)

    def take_each(
        self, sources: Iterable[Party], key: Key, seconds: float, enough: int | None = None
    ) -> dict[Party, Message]:
        """Messages with this key from as many of the sources as come in time. One that is gone or
        has sent a later message is not waited for. `enough`: until so many have come, also from
        those that are gone and may be back."""
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
        """Who has sent the message with its key, and nothing since: all of them, in the order in
        which these came, and as many as are enough. Silence of those that are lacking is an
        error after so many seconds."""
        found: list[Party] = []

        def ready() -> bool:
            heads = {source: self._head(source, key) for source, key in keys.items()}
            came = [source for source, head in heads.items() if head is not None]
            found[:] = sorted(came, key=self._when.__getitem__)
            if len(found) < enough:
                return False
            for source in found:
                self._queues[source].popleft()
            return True

        begun = time.monotonic()

        def until() -> float:
            left = [max(begun, self._heard.get(s, 0)) for s in keys if s not in found]
            return sorted(left, reverse=True)[enough - len(found) - 1] + seconds

        if not self._wait(ready, until, *keys):
            silent = min(set(keys) - {*found}, key=lambda source: self._heard.get(source, 0))
            raise LostError(
                f"{keys[silent]}: {title(self.owner)} waited for a visit of {title(silent)}, of "
                f"which nothing was heard for {seconds:g} s"
            )
        return found

    def _head(self, source: Party, key: Key) -> Message | None:
        """The first message from the source that is not older than the key; older ones came too
        late and are dropped."""
        queue = self._queues[source]
        while queue and queue[0].key < key:
            queue.popleft()
        return queue[0] if queue else None

    def _wait(self, ready: Callable[[], bool], until: Callable[[], float], *awaited: Party) -> bool:
        """Deadlines are of time that was lived: that in which this process stood still is nobody
        else's silence."""
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
