"""How many of a silo's clients there must be, where not all are waited for."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import LostError
from ...core.topology import Client, Party, title
from ...fabric.kinds import Key, Message
from ...transports.mailbox import Mailbox
from .timeouts import Waits


class Quorum:
    """Of each hub hosted here. `asked`: clients that take part in the round, to begin with; who was
    left out as it holds none of its rows does not count."""

    def __init__(self, waits: Waits):
        self._waits = waits
        self._least: dict[str, int] = {}
        self.asked: dict[str, int] = {}

    def begin(self, hub: str, able: int) -> None:
        """A round in which so many may take part."""
        self._least[hub] = min(self._waits.quorum, able)

    def await_links(self, mailbox: Mailbox, hub: str, some: Sequence[Client], round: int) -> None:
        """Until enough of them are connected."""
        if not mailbox.await_back(some, self._least[hub], self._waits.patience):
            raise self._too_few(hub, round, "are connected")

    def answers(
        self, mailbox: Mailbox, hub: str, awaited: Sequence[Client], key: Key, seconds: float
    ) -> dict[Party, Message]:
        """What came in so many seconds; what a quorum lacks, up to patience, and then whoever is
        gone may be back with its own."""
        came = mailbox.take_each(awaited, key, seconds)
        least = 0 if self._waits.up is None else min(self._least[hub], self.asked[hub])
        lack = least - len(came)
        if seconds and lack > 0:
            silent, left = [c for c in awaited if c not in came], self._waits.patience - seconds
            more = mailbox.take_each(silent, key, max(0.0, left), lack)
            if len(more) < lack:
                raise self._too_few(hub, key.round, "answered")
            came |= more
        return came

    def _too_few(self, hub: str, round: int, what: str) -> LostError:
        return LostError(
            f"round {round}: fewer than {self._least[hub]} clients of {title(hub)}, its quorum, "
            f"{what} within {self._waits.patience:g} s"
        )
