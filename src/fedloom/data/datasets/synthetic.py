"""Synthetic sets of any size: a random linear model with noise."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import torch

from ...core.errors import SettingError
from ...core.rng import Streams
from ..catalog import dataset
from ..dataset import Dataset, Goal
from .common import split


@dataset("synthetic", about="made up: any number of rows and features, any goal, from a seed")
def synthetic(
    rows: Annotated[int, "how many rows"] = 1000,
    features: Annotated[int, "how many columns"] = 20,
    goal: Annotated[Goal, "what the labels are"] = "binary",
    classes: Annotated[int, "how many classes, where there are classes"] = 3,
    noise: Annotated[float, "sigma of the noise on the scores"] = 0.1,
    seed: Annotated[int, "of all of it"] = 0,
) -> Dataset:
    """Normal features; scores are a random linear map of them, plus noise."""
    if rows < 4 or features < 1 or classes < 2 or noise < 0:
        raise SettingError("synthetic: rows >= 4, features >= 1, classes >= 2, noise >= 0")
    draw = torch.Generator().manual_seed(Streams(seed).common("synthetic").seed())
    x = torch.randn(rows, features, generator=draw)
    outputs = classes if goal == "classes" else 1
    scores = x @ torch.randn(features, outputs, generator=draw) / math.sqrt(features)
    scores = scores + noise * torch.randn(rows, outputs, generator=draw)
    labels = {
        "classes": scores.argmax(1),
        "binary": (scores[:, 0] > 0).long(),
        "number": scores[:, 0],
    }[goal]
    return Dataset(
        name="synthetic",
        ids=np.arange(rows),
        blocks={"features": x},
        y=labels,
        test=split(rows, 0.25, "synthetic"),
        goal=goal,
        columns={"features": tuple(f"x{i}" for i in range(features))},
        classes=tuple(map(str, range(classes))) if goal == "classes" else (),
    )
