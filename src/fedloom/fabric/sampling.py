"""Minibatches, which every party draws alike from common streams."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.rng import Streams

ROUNDS = 32  # that are drawn at once: small draws one after the other take three times as long,
NUMBERS = 2**15  # if they have no more rows than these


class Sampler:
    """Of so many rows. What was drawn last is kept, for this round and some more."""

    def __init__(self, streams: Streams, size: int):
        self._streams, self._size = streams, size
        self._drawn: dict[tuple[int, int, int], Tensor] = {}

    def sample(self, rows: int, minibatches: int, round: int) -> Tensor:
        """The rows of a round's minibatches, one a line."""
        if (rows, minibatches, round) not in self._drawn:
            self._drawn.clear()
            for later in range(round, round + max(1, min(ROUNDS, NUMBERS // (minibatches * rows)))):
                streams = (self._streams.common("minibatch", later, q) for q in range(minibatches))
                drawn = np.stack([stream.sample(self._size, rows) for stream in streams])
                self._drawn[rows, minibatches, later] = torch.from_numpy(drawn)
        return self._drawn[rows, minibatches, round]
