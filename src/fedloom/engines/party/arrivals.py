"""Who visits the master next, among real parties: whoever is free first.

A hub tells the master that its silo is free, at the start of a round and after each of its visits.
A round begins when all are. No message of the algorithm, and in no ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ...core.topology import Party
from ...fabric.kinds import Key, Message
from ...fabric.visits import FREE
from ...transports.base import Transport


class Arrivals:
    """Of a round of visits, at the parties hosted here."""

    def __init__(self, transport: Transport, hosted: Collection[Party], at: str):
        self._transport, self._hosted, self._at = transport, hosted, at
        self._here: list[str] = []  # at the master: who is free, in the order they said so
        self._away: dict[Party, Key] = {}  # and who will say so, by which key

    def free(self, silos: Iterable[str], key: Key) -> None:
        """These have nothing to do but to visit."""
        for silo in silos:
            self._away[silo] = key
            if silo in self._hosted:
                self._transport.send(Message(key, FREE.name, silo, self._at, None))

    def next(
        self, group: int, seconds: float, everyone: bool, before: tuple[str, ...] | None
    ) -> tuple[str, ...]:
        """The group that came first, at the master; `everyone`: once all are there. `before`: who
        it was, where the master has been so far already."""
        if before is not None:
            return self._take(before)
        enough = len(self._away) if everyone else max(0, group - len(self._here))
        came = self._transport.mailbox(self._at).take_first(self._away, enough, seconds)
        self._here += [str(silo) for silo in came]
        return self._take(self._here[:group])

    def _take(self, who: Iterable[str]) -> tuple[str, ...]:
        """These are visiting."""
        who = tuple(who)
        self._here = [silo for silo in self._here if silo not in who]
        self._away = {
            silo: key
            for silo, key in self._away.items()
            if silo not in who and silo not in self._here
        }
        return who
