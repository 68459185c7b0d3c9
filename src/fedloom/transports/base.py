"""What an engine asks of a transport, and the mailbox that every transport delivers into.

A transport takes a message to a party's mailbox; messages of one link arrive in the order of their
keys. How long to wait, and what a wait that ends means, is decided here and in the engine, not in
the transport.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Protocol

from ..errors import AbortedError, LostError
from ..federation.messages import Key, Message
from ..federation.topology import Party, title


class Transport(Protocol):
    """Takes messages from party to party."""

    def send(self, message: Message) -> None:
        """Deliver; never blocks on the receiver."""
        ...

    def mailbox(self, party: Party) -> Mailbox: ...

    def abort(self, cause: str) -> None:
        """Stop everyone, with one cause."""
        ...


class Mailbox:
    """Messages that have come for one party, and the ways to wait for more."""

    def __init__(self, owner: Party):
        self.owner = owner
        self._changed = threading.Condition()
        self._queues: dict[Party, deque[Message]] = defaultdict(deque)
        self._gone: set[Party] = set()
        self._cause: str | None = None

    def put(self, message: Message) -> None:
        with self._changed:
            self._queues[message.source].append(message)
            self._changed.notify_all()

    def gone(self, party: Party) -> None:
        """The link to this party is down: nothing more will come from it."""
        with self._changed:
            self._gone.add(party)
            self._changed.notify_all()

    def is_gone(self, party: Party) -> bool:
        with self._changed:
            return party in self._gone

    def abort(self, cause: str) -> None:
        with self._changed:
            self._cause = self._cause or cause
            self._changed.notify_all()

    def take(self, source: Party, key: Key, what: str, seconds: float) -> Message | None:
        """The message with this key; None when a later one proves that it will not come. Never
        returns otherwise: silence past the deadline is an error."""
        found: Message | None = None

        def ready() -> bool:
            nonlocal found
            found = self._head(source, key)
            if found is not None and found.key == key:
                self._queues[source].popleft()
            return found is not None or source in self._gone

        if not self._wait(ready, seconds):
            raise LostError(
                f"round {key.round}: {title(self.owner)} waited {seconds:g} s for {what} from "
                f"{title(source)}"
            )
        if found is None:
            raise LostError(
                f"round {key.round}: {title(self.owner)} lost its link to {title(source)} while "
                f"it waited for {what}"
            )
        return found if found.key == key else None

    def take_each(
        self, sources: Iterable[Party], key: Key, seconds: float
    ) -> tuple[dict[Party, Message], set[Party]]:
        """Messages with this key from as many of the sources as come in time, and those of whom
        none came and none can be excluded to come yet (they are late)."""
        came: dict[Party, Message] = {}
        open_: set[Party] = set(sources)

        def ready() -> bool:
            for source in list(open_):
                head = self._head(source, key)
                if head is not None and head.key == key:
                    came[source] = self._queues[source].popleft()
                if head is not None or source in self._gone:
                    open_.discard(source)
            return not open_

        self._wait(ready, seconds)
        return came, open_

    def _head(self, source: Party, key: Key) -> Message | None:
        """The first message from the source that is not older than the key; older ones came too
        late and are dropped."""
        queue = self._queues[source]
        while queue and queue[0].key < key:
            queue.popleft()
        return queue[0] if queue else None

    def _wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        until = time.monotonic() + seconds
        with self._changed:
            while True:
                if self._cause is not None:
                    raise AbortedError(self._cause)
                if ready():
                    return True
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
