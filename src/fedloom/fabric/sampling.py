"""Minibatches, from common streams: every party draws the same rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.rng import Streams

ROUNDS = 32  # rounds drawn at once, which is three times as fast for small minibatches
NUMBERS = 2**15  # at most so many rows are drawn at once


class Sampler:
    """Draws minibatches of `size` rows; caches those of this round and some later ones."""

    def __init__(self, streams: Streams, size: int):
        self._streams, self._size = streams, size
        self._minibatches: dict[tuple[int, int, int], Tensor] = {}

    def sample(self, rows: int, minibatches: int, round: int) -> Tensor:
        """The rows of a round's minibatches: [minibatches, rows]."""
        if (rows, minibatches, round) not in self._minibatches:
            self._minibatches.clear()
            for later in range(round, round + max(1, min(ROUNDS, NUMBERS // (minibatches * rows)))):
                streams = (self._streams.common("minibatch", later, q) for q in range(minibatches))
                drawn_rows = np.stack([stream.sample(self._size, rows) for stream in streams])
                self._minibatches[rows, minibatches, later] = torch.from_numpy(drawn_rows)
        return self._minibatches[rows, minibatches, round]
