"""The order of visits among real parties: first come, first served.

A hub tells the master that its silo is free, at the start of a round and after each of its visits.
A round begins when all silos are free. These notices are no messages of the algorithm, and are in
no ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ...core.topology import Party
from ...fabric.kinds import Key, Message
from ...fabric.visits import FREE
from ...transports.base import Transport


class Arrivals:
    """The arrivals in one round of visits, at the parties hosted here."""

    def __init__(self, transport: Transport, hosted: Collection[Party], at: str):
        self._transport, self._hosted, self._at = transport, hosted, at
        self._free: list[str] = []  # at the master: free silos, in the order of their notices
        self._awaited: dict[Party, Key] = {}  # other silos, and the keys of their notices

    def free(self, silos: Iterable[str], key: Key) -> None:
        """These silos are free to visit."""
        for silo in silos:
            self._awaited[silo] = key
            if silo in self._hosted:
                self._transport.send(Message(key, FREE.name, silo, self._at, None))

    def next(
        self, group: int, seconds: float, everyone: bool, before: tuple[str, ...] | None
    ) -> tuple[str, ...]:
        """The next group of visitors, at the master. `everyone`: wait until all silos are free.
        `before`: the group, if the master had decided before a restart."""
        if before is not None:
            return self._take(before)
        enough = len(self._awaited) if everyone else max(0, group - len(self._free))
        arrived = self._transport.mailbox(self._at).take_first(self._awaited, enough, seconds)
        self._free += [str(silo) for silo in arrived]
        return self._take(self._free[:group])

    def _take(self, visitors: Iterable[str]) -> tuple[str, ...]:
        """Mark these silos as visiting."""
        visitors = tuple(visitors)
        self._free = [silo for silo in self._free if silo not in visitors]
        self._awaited = {
            silo: key
            for silo, key in self._awaited.items()
            if silo not in visitors and silo not in self._free
        }
        return visitors
