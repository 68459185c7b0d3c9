"""The quorum: the least number of a silo's clients, where a hub does not wait for all."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import LostError
from ...core.topology import Client, Party, title
from ...fabric.kinds import Key, Message
from ...transports.mailbox import Mailbox
from .timeouts import Waits


class Quorum:
    """The quorums of the hubs hosted here. `asked`: how many clients take part in the round at
    first; clients without rows in it do not count."""

    def __init__(self, waits: Waits):
        self._waits = waits
        self._least: dict[str, int] = {}
        self.asked: dict[str, int] = {}

    def begin(self, hub: str, able: int) -> None:
        """Begin a round in which at most `able` clients take part."""
        self._least[hub] = min(self._waits.quorum, able)

    def await_links(
        self, mailbox: Mailbox, hub: str, clients: Sequence[Client], round: int
    ) -> None:
        """Wait until enough of these clients are connected."""
        if not mailbox.await_back(clients, self._least[hub], self._waits.patience):
            raise self._too_few(hub, round, "are connected")

    def answers(
        self, mailbox: Mailbox, hub: str, awaited: Sequence[Client], key: Key, seconds: float
    ) -> dict[Party, Message]:
        """The answers that came within `seconds`. If there are fewer than the quorum, wait for the
        missing ones up to `patience`; lost clients may reconnect meanwhile."""
        messages = mailbox.take_each(awaited, key, seconds)
        least = 0 if self._waits.up is None else min(self._least[hub], self.asked[hub])
        missing = least - len(messages)
        if seconds and missing > 0:
            silent, seconds_left = (
                [c for c in awaited if c not in messages],
                self._waits.patience - seconds,
            )
            more = mailbox.take_each(silent, key, max(0.0, seconds_left), missing)
            if len(more) < missing:
                raise self._too_few(hub, key.round, "answered")
            messages |= more
        return messages

    def _too_few(self, hub: str, round: int, what: str) -> LostError:
        return LostError(
            f"round {round}: fewer than {self._least[hub]} clients of {title(hub)}, its quorum, "
            f"{what} within {self._waits.patience:g} s"
        )
