"""A client's noise, from its own streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.placed import AtClients, Noise
from ..core.rng import Stream


class Once(NamedTuple):
    """A row gets the same noise each time, as long as the value at its client that it is released
    from stays the same."""

    released_from: AtClients[Any]


def of_rows(streams: Sequence[Stream], count: int, sizes: tuple[int, int]) -> Noise:
    """Standard normal numbers, and uniform ones in [-1, 1), for `count` rows: from one stream for
    all rows, or one for each."""
    normal, uniform = sizes
    rows_each = 1 if len(streams) == count else count
    numbers = [
        (stream.normal(rows_each * normal), stream.uniform(rows_each * uniform))
        for stream in streams
    ]
    nothing = [torch.zeros(0, dtype=torch.float64)]
    gaussian = [torch.from_numpy(a) for a, _ in numbers] or nothing
    flat = [torch.from_numpy(b) for _, b in numbers] or nothing
    return Noise(
        torch.cat(gaussian).reshape(count, normal),
        2 * torch.cat(flat).reshape(count, uniform) - 1,
    )


def of_shape(stream: Stream, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers."""
    return torch.from_numpy(stream.normal(math.prod(shape))).reshape(shape)


def among_padding(noise: Noise, real: Tensor) -> Noise:
    """Noise of real rows at their positions among padding, which gets zeros."""

    def spread(a: Tensor) -> Tensor:
        out = a.new_zeros(*real.shape, a.shape[-1])
        out[real] = a
        return out

    return Noise(spread(noise.normal), spread(noise.uniform))
