"""How long parties wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import SettingError


@dataclass(frozen=True)
class Waits:
    """Deadlines in seconds.

    `up`: a client that has not answered its hub by then is absent from the rest of the round; None:
    the hub waits for all clients. `patience`: how long a hub waits for a client in that case.
    `quorum`: with `up`, the least number of answers; a hub with fewer waits on, up to `patience`.
    Hubs wait twice as long for each other, and clients four times as long for their hub, so that a
    silent party is named by the party next to it. No wait is longer.
    """

    up: float | None = None
    patience: float = 60.0
    quorum: int = 0

    def __post_init__(self) -> None:
        if not self.patience > 0 or (self.up is not None and not 0 < self.up <= self.patience):
            raise SettingError(
                f"waits: 0 < up <= patience is needed, not up {self.up}, patience {self.patience}"
            )
        if self.quorum < 0:
            raise SettingError(f"waits: quorum must be a number of clients, not {self.quorum}")

    @property
    def for_client(self) -> float:
        return self.patience if self.up is None else self.up

    @property
    def for_hub(self) -> float:
        return 2 * self.patience

    @property
    def for_own_hub(self) -> float:
        return 4 * self.patience
