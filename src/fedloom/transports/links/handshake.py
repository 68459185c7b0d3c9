"""Admission of connections, and pauses between attempts to connect; for all transports."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping

from ...core.errors import OutOfStepError, RefusedError
from ...core.topology import Party, title
from .link import Hello, Link
from .party_state import PartyState
from .position import NotYetError

OLD = 100  # replaced processes of a peer that are remembered
SOON, LATER = 0.05, 1.0  # seconds until the next attempt: at first, and at most


class TakenError(ConnectionError):
    """Another process of the same party is connected."""


class Handshakes:
    """Admits connections of this process, which `boot` identifies: one process of each peer at a
    time, and never a process that a newer one has replaced."""

    def __init__(self, links: Mapping[Party, Link], state: PartyState):
        self.boot = secrets.token_hex(8)
        self._links, self._state = links, state
        self._replaced = {peer: deque[str](maxlen=OLD) for peer in links}

    def admit(self, peer: Party, hello: Hello) -> None:
        """Admit a process that says hello, or raise RefusedError or TakenError."""
        link, state = self._links[peer], self._state
        if hello.boot in self._replaced[peer]:
            raise RefusedError(f"{title(peer)}: a newer process has taken its place")
        if link.boot != hello.boot and peer in state.sessions:
            state.refused("it is connected already", peer)
            raise TakenError("connected already")
        if link.boot not in ("", hello.boot):
            self._replaced[peer].append(link.boot)


class Retries:
    """Pauses between attempts to dial a peer."""

    def __init__(self, link: Link, state: PartyState):
        self._link, self._state = link, state
        self._pause, self._reported, self._met = SOON, "", link.meetings

    def pause(self, problem: Exception) -> float | None:
        """Seconds to wait after a connection that ended with this problem; None: do not try
        again."""
        met, self._met = self._link.meetings > self._met, self._link.meetings
        if isinstance(problem, RefusedError):
            self._state.refused(str(problem), self._link.peer)
        if isinstance(problem, RefusedError | OutOfStepError):
            self._state.mailbox.fail(problem)
            return None
        if isinstance(problem, NotYetError):
            self._pause = SOON
            return SOON
        if str(problem) != self._reported:
            self._reported = str(problem)
            self._state.note("unreachable", peer=str(self._link.peer), why=self._reported)
        self._pause = SOON if met else min(LATER, 2 * self._pause)
        return self._pause
