"""A data set: a function that gives its rows; `about` stands in `fedloom list`."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

from fedloom.extend import Dataset, dataset


@dataset("rings", about="made up: points on three rings around each other, in four numbers")
def rings(rows: Annotated[int, "how many points"] = 600) -> Dataset:
    draw = np.random.default_rng(0)
    ring = draw.choice(3, rows, p=[0.5, 0.3, 0.2])
    angle, noise = draw.uniform(0, 2 * np.pi, rows), draw.normal(0, 0.35, (rows, 4))
    flat = (ring + 1)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points = np.concatenate([flat, flat @ [[0.6, -0.8], [0.8, 0.6]]], axis=1) + noise
    return Dataset(
        name="rings",
        ids=np.arange(rows),
        blocks={"features": torch.tensor(points, dtype=torch.float32)},
        y=torch.tensor(ring),
        test=np.arange(rows) % 4 == 0,
        goal="classes",
        columns={"features": ("east", "north", "ahead", "across")},
        classes=("inner", "middle", "outer"),
    )
