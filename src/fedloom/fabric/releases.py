"""How often each row was released, with noise, and worked on: the book of a privacy budget.

It is kept from what everyone knows (which rows a minibatch has), so all parties have the same book
without a message. Rows of clients who were absent are counted as if they had been sent. A real
client keeps, besides, a book of what it drew noise for itself (parties/book.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

Counts = tuple[Tensor, Tensor]  # [rows] releases, local steps


class Releases:
    """Counts by silo and row."""

    def __init__(self, size: int):
        self._size = size
        self._counts: dict[str, Counts] = {}

    def of(self, silo: str) -> Counts:
        zeros = torch.zeros(self._size, dtype=torch.int64)
        return self._counts.get(silo, (zeros, zeros))

    def book(self, silos: Iterable[str], releases: Tensor | int, steps: Tensor | int) -> None:
        """So much more for each row."""
        for silo in silos:
            sent, worked = self.of(silo)
            self._counts[silo] = (sent + releases, worked + steps)

    def to_json(self) -> dict[str, Any]:
        return {silo: [a.tolist() for a in counts] for silo, counts in self._counts.items()}

    @staticmethod
    def from_json(size: int, told: Mapping[str, Any]) -> Releases:
        book = Releases(size)
        for silo, (sent, worked) in told.items():
            book.book([silo], torch.tensor(sent), torch.tensor(worked))
        return book


def times(ids: Tensor, size: int) -> Tensor:
    """How often each row is among some."""
    return torch.bincount(ids.flatten().cpu(), minlength=size)
