"""A vertical partitioner: a function that gives each silo its columns, by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from fedloom.extend import Count, Dataset, vertical_partitioners


@vertical_partitioners.register("dealt")
def dealt(
    data: Dataset, silos: Sequence[str], hand: Annotated[Count, "columns dealt at a time"] = 1
) -> Mapping[str, Sequence[int]]:
    """Columns are dealt out like cards, one hand after the other."""
    width = sum(block[0].numel() for block in data.blocks.values())
    hands = [range(width)[first : first + hand] for first in range(0, width, hand)]
    return {
        silo: [column for own in hands[place :: len(silos)] for column in own]
        for place, silo in enumerate(silos)
    }
