"""A block that clips its rows, and can add noise to them, before they leave a client.

VAFL, section 4: uniform noise after each earlier layer with weights, Gaussian noise after the last
one, before its activation. Clipping is part of the model: predictions are clipped, and it is saved.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..core.errors import ModelError
from ..core.placed import Noise
from .block import Source
from .library import Maker

GUARDED = "guarded"  # not registered: a task wraps its blocks


class Guarded(nn.Module):
    """The layers up to the last one with weights, clipping, noise, and the layers after it."""

    def __init__(self, block: nn.Module, clip: float | None):
        super().__init__()
        layers = list(block) if isinstance(block, nn.Sequential) else [block]
        weighty = [at for at, layer in enumerate(layers) if any(True for _ in layer.parameters())]
        last = weighty[-1] if weighty else len(layers) - 1
        self.body = nn.Sequential(*layers[: last + 1])
        self.after = nn.Sequential(*layers[last + 1 :])
        self.earlier = tuple(weighty[:-1])
        self.clip = clip

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        used = 0
        for at, layer in enumerate(self.body):
            x = layer(x)
            if noise is not None and at in self.earlier and noise.uniform.shape[-1]:
                own_noise = noise.uniform[:, used : used + x[0].numel()]
                x, used = x + own_noise.reshape(x.shape), used + x[0].numel()
        if self.clip is not None:
            norm = torch.linalg.vector_norm(x.flatten(1), dim=1).clamp(min=self.clip)
            x = x * (self.clip / norm).reshape(-1, *[1] * (x.ndim - 1))
        if noise is not None:
            x = x + noise.normal.reshape(x.shape)
        return self.after(x)

    def sizes(self, row: Tensor, uniform: bool) -> tuple[int, int]:
        """How many normal and uniform random numbers a row needs."""
        if uniform and not self.earlier:
            raise ModelError(
                "privacy: uniform noise goes into earlier layers, and this block has none that can "
                "be seen: make it an nn.Sequential of several layers, or set uniform = 0"
            )
        x, between = row[:1], 0
        with torch.no_grad():
            for at, layer in enumerate(self.body):
                x = layer(x)
                between += x[0].numel() if uniform and at in self.earlier else 0
        return x[0].numel(), between


def guarded(source: Source, clip: float | None) -> Maker:
    """The block with clipping."""
    return Maker(GUARDED, (("block", source), ("clip", clip)), _guard)


def _guard(block: Source, clip: float | None) -> nn.Module:
    return Guarded(copy.deepcopy(block) if isinstance(block, nn.Module) else block(), clip)
