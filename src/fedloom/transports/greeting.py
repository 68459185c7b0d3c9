"""Who may be connected with whom, and when to try again: the same for everything that carries."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping

from ..core.errors import OutOfStepError, RefusedError
from ..core.topology import Party, title
from .link import Hello, Link
from .position import NotYetError
from .standing import Standing

OLD = 100  # processes of a peer, known by their boots, that newer ones took the place of
SOON, LATER = 0.05, 1.0  # seconds until the next try: at first, and at most


class TakenError(ConnectionError):
    """Another process of the same party is connected."""


class Greetings:
    """Of one process, known by its `boot`: one process of each peer at a time, and never an older
    one again."""

    def __init__(self, links: Mapping[Party, Link], standing: Standing):
        self.boot = secrets.token_hex(8)
        self._links, self._standing = links, standing
        self._replaced = {peer: deque[str](maxlen=OLD) for peer in links}

    def admit(self, peer: Party, hello: Hello) -> None:
        """A process greets; RefusedError or TakenError where it may not."""
        link, standing = self._links[peer], self._standing
        if hello.boot in self._replaced[peer]:
            raise RefusedError(f"{title(peer)}: a newer process has taken its place")
        if link.boot != hello.boot and peer in standing.talks:
            standing.refused("it is connected already", peer)
            raise TakenError("connected already")
        if link.boot not in ("", hello.boot):
            self._replaced[peer].append(link.boot)


class Retries:
    """Of who dials a peer."""

    def __init__(self, link: Link, standing: Standing):
        self._link, self._standing = link, standing
        self._pause, self._told, self._met = SOON, "", link.meetings

    def pause(self, problem: Exception) -> float | None:
        """How long to wait after a connection that ended so; None: for ever."""
        met, self._met = self._link.meetings > self._met, self._link.meetings
        if isinstance(problem, RefusedError):
            self._standing.refused(str(problem), self._link.peer)
        if isinstance(problem, RefusedError | OutOfStepError):
            self._standing.mailbox.fail(problem)
            return None
        if isinstance(problem, NotYetError):
            self._pause = SOON
            return SOON
        if str(problem) != self._told:
            self._told = str(problem)
            self._standing.note("unreachable", peer=str(self._link.peer), why=self._told)
        self._pause = SOON if met else min(LATER, 2 * self._pause)
        return self._pause
