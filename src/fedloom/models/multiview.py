"""A multi-view model: an extractor for each view, and a perceptron over their embeddings.

A row is [views, ...]. A missing view is all zeros, and its embedding is zero, so the model predicts
from any subset of views. A client with some views has their extractors and the matching columns of
the first layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.checked import checked
from ..core.errors import ModelError, SettingError
from ..core.registry import models
from ..core.rng import Ints
from ..core.settings import Count, at_least
from .block import Params, Source
from .library import Maker
from .matching import Perceptron
from .sizing import sized


class ViewNet(nn.Module):
    """One extractor for each view, with outputs [rows, embedding]. Fully connected layers with ReLU
    follow."""

    def __init__(
        self, extractors: Sequence[nn.Module], embedding: int, hidden: Sequence[int], outputs: int
    ):
        super().__init__()
        for width in (embedding, outputs, *hidden):
            if not isinstance(width, int) or width < 1:
                raise SettingError(f"widths must be whole numbers of at least 1, not {width!r}")
        if not extractors or not hidden:
            raise SettingError("a model of views needs at least one view and one hidden layer")
        self.extractors = nn.ModuleList(extractors)
        sizes = [embedding * len(extractors), *hidden, outputs]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: Tensor, views: Sequence[int] | None = None) -> Tensor:
        """Scores from these views (None: all)."""
        if x.ndim < 3 or x.shape[1] != len(self.extractors):
            raise ModelError(f"rows of [{len(self.extractors)} views, ...] are expected")
        present = range(len(self.extractors)) if views is None else views
        h = torch.cat([self._embedding(view, x[:, view]) for view in present], 1)
        for layer in self.layers[:-1]:
            h = F.relu(layer(h))
        return self.layers[-1](h)

    def _embedding(self, view: int, x: Tensor) -> Tensor:
        seen = (x != 0).flatten(1).any(1)
        return torch.where(seen[:, None], self.extractors[view](x), 0.0)


@models.register("multiview")
@checked("extractor")
def multiview(
    views: Annotated[Count, "how many views a row has"],
    shape: Annotated[Sequence[int], at_least(1), "of one view"],
    outputs: Count,
    extractor: Annotated[
        str | Mapping[str, Any], 'a registered model, or {name = "cnn", width = 8}'
    ] = "linear",
    view_width: Annotated[Count, "of a view's embedding, which its extractor gives"] = 32,
    hidden: Annotated[Sequence[int], at_least(1), "widths of the perceptron's hidden layers"] = (
        64,
    ),
) -> Maker:
    """An extractor for each view and a perceptron over their embeddings (HyFEM)."""
    description = {"name": extractor} if isinstance(extractor, str) else dict(extractor)
    settings = {
        "views": views,
        "shape": tuple(shape),
        "outputs": outputs,
        "extractor": tuple((key, _frozen(value)) for key, value in sorted(description.items())),
        "view_width": view_width,
        "hidden": tuple(hidden),
    }
    return Maker("multiview", tuple(settings.items()), _multiview)


def _frozen(value: Any) -> Any:
    """Lists as tuples, so that makers can be compared."""
    return tuple(value) if isinstance(value, list) else value


def _multiview(
    views: int,
    shape: Sequence[int],
    outputs: Count,
    extractor: Sequence[tuple[str, Any]],
    view_width: int,
    hidden: Sequence[int],
) -> nn.Module:
    settings = dict(extractor)
    name = settings.pop("name")
    make: Source = sized(name, tuple(shape), view_width, settings, "a view")
    assert isinstance(make, Maker)
    return ViewNet([make() for _ in range(views)], view_width, hidden, outputs)


# Access to its parameters


def view_of(name: str) -> int | None:
    """The view of a parameter's extractor; None for parameters of the perceptron."""
    part, number, *_ = name.split(".")
    return int(number) if part == "extractors" else None


def views_of(block: Params) -> tuple[int, ...]:
    """The views whose extractors are in the block."""
    return tuple(sorted({view for name in block if (view := view_of(name)) is not None}))


def columns(block: Params, views: Sequence[int]) -> Ints:
    """The inputs of the perceptron that come from these views, in the full model."""
    embedding = block["layers.0.weight"].shape[1] // len(views_of(block))
    return (np.array(views)[:, None] * embedding + np.arange(embedding)).reshape(-1)


def hidden_widths(block: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Widths of the perceptron's hidden layers."""
    return tuple(len(block[f"layers.{layer}.bias"]) for layer in range(_layers(block) - 1))


def perceptron(block: Params, inputs: Ints) -> Perceptron:
    """The perceptron of a block, in double precision."""
    arrays = [
        tuple(block[f"layers.{i}.{what}"].detach().double().cpu().numpy() for what in PARTS)
        for i in range(_layers(block))
    ]
    weights, biases = zip(*arrays, strict=True)
    return Perceptron(weights, biases, inputs)


def layers(net: Perceptron, like: Tensor) -> Params:
    """A perceptron as parameters of a block."""
    return {
        f"layers.{layer}.{what}": torch.from_numpy(array).to(like)
        for layer, arrays in enumerate(zip(net.weights, net.biases, strict=True))
        for what, array in zip(PARTS, arrays, strict=True)
    }


PARTS = ("weight", "bias")


def _layers(block: Mapping[str, Tensor]) -> int:
    return sum(name.startswith("layers.") and name.endswith(".bias") for name in block)
