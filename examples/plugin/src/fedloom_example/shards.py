"""A horizontal partitioner: a function that says for each row which client of a silo holds it."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from fedloom.extend import Count, Dataset, horizontal_partitioners


@horizontal_partitioners.register("shards")
def shards(
    data: Dataset,
    clients: int,
    draw: np.random.Generator,
    per_client: Annotated[Count, "shards of a client: how many classes it sees, about"] = 2,
) -> npt.NDArray[Any]:
    """Rows in the order of their labels are cut in shards, and every client draws some (McMahan et
    al., 2017)."""
    owner = np.empty(data.size, dtype=np.int64)
    drawn = np.repeat(np.arange(clients), per_client)
    draw.shuffle(drawn)
    for rows in (np.flatnonzero(~data.test), np.flatnonzero(data.test)):
        order = rows[np.argsort(data.y[rows].numpy(), kind="stable")]
        for client, shard in zip(drawn, np.array_split(order, len(drawn)), strict=True):
            owner[shard] = client
    return owner
