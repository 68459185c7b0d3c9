"""A model: a function of settings that gives what makes a module."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from fedloom.extend import models


class Bumps(nn.Module):
    """Radial bumps around learned centres, and a linear layer on how high a row stands on each."""

    def __init__(self, inputs: int, centres: int, outputs: int):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(centres, inputs))
        self.linear = nn.Linear(centres, outputs)

    def forward(self, x: Tensor) -> Tensor:
        far = (x.unsqueeze(-2) - self.centres).square().mean(-1)
        return self.linear(torch.exp(-far))


@models.register("bumps")
def bumps(
    inputs: int, outputs: int, centres: Annotated[int, "how many bumps"] = 8
) -> partial[Bumps]:
    """Radial bumps around learned centres. `inputs` and `outputs` follow from the data."""
    return partial(Bumps, inputs, centres, outputs)
