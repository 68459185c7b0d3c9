"""RowCounts how often each row was released with noise, and used in local steps, for privacy
budgets.

RowCounts follow from common knowledge (the rows of each minibatch), so all parties have the same
counts without a message. Rows of absent clients count as if they had been sent. In deployment, a
client also counts the noise that it drew (deployment/party/privacy_book.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

RowCounts = tuple[Tensor, Tensor]  # [rows] releases, local steps


class Releases:
    """Counts by silo and row."""

    def __init__(self, size: int):
        self._size = size
        self._counts: dict[str, RowCounts] = {}

    def of(self, silo: str) -> RowCounts:
        zeros = torch.zeros(self._size, dtype=torch.int64)
        return self._counts.get(silo, (zeros, zeros))

    def book(self, silos: Iterable[str], releases: Tensor | int, steps: Tensor | int) -> None:
        """Add to the counts of each row."""
        for silo in silos:
            sent, worked = self.of(silo)
            self._counts[silo] = (sent + releases, worked + steps)

    def to_json(self) -> dict[str, Any]:
        return {silo: [a.tolist() for a in counts] for silo, counts in self._counts.items()}

    @staticmethod
    def from_json(size: int, saved: Mapping[str, Any]) -> Releases:
        book = Releases(size)
        for silo, (sent, worked) in saved.items():
            book.book([silo], torch.tensor(sent), torch.tensor(worked))
        return book


def times(ids: Tensor, size: int) -> Tensor:
    """How often each row is in `ids`."""
    return torch.bincount(ids.flatten().cpu(), minlength=size)
