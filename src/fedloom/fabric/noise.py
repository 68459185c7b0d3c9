"""Noise of a client, from its own streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.placed import AtClients, Noise
from ..core.rng import Stream


class Once(NamedTuple):
    """Says of noise that a row gets the same each time, as long as what it is released from stays
    the same: the value at its client."""

    released_from: AtClients[Any]


def of_rows(streams: Sequence[Stream], count: int, sizes: tuple[int, int]) -> Noise:
    """Standard normal numbers, and uniform ones in [-1, 1), for so many rows: all from one stream,
    or each from its own."""
    normal, uniform = sizes
    each = 1 if len(streams) == count else count
    drawn = [(one.normal(each * normal), one.uniform(each * uniform)) for one in streams]
    nothing = [torch.zeros(0, dtype=torch.float64)]
    gaussian = [torch.from_numpy(a) for a, _ in drawn] or nothing
    flat = [torch.from_numpy(b) for _, b in drawn] or nothing
    return Noise(
        torch.cat(gaussian).reshape(count, normal),
        2 * torch.cat(flat).reshape(count, uniform) - 1,
    )


def of_shape(stream: Stream, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers."""
    return torch.from_numpy(stream.normal(math.prod(shape))).reshape(shape)


def among_padding(noise: Noise, real: Tensor) -> Noise:
    """Noise of real rows where they lie among padding, which gets none."""

    def spread(a: Tensor) -> Tensor:
        out = a.new_zeros(*real.shape, a.shape[-1])
        out[real] = a
        return out

    return Noise(spread(noise.normal), spread(noise.uniform))
