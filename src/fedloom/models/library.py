"""The papers' models, each a function that makes a module: pass it as a silo's block.

Task({"left": cnn(channels=1, size=(28, 14)), ...}, loss="cross-entropy")
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ..core.checked import checked
from ..core.registry import models
from ..core.settings import Count, at_least
from .block import Source

OptionalNorm = Literal["none", "batch"]


@dataclass(frozen=True)
class Maker:
    """A model by its name and settings: calling it makes the module. It can be saved as JSON."""

    name: str
    settings: tuple[tuple[str, Any], ...]
    build: Callable[..., nn.Module]

    def __call__(self) -> nn.Module:
        return self.build(**dict(self.settings))

    def describe(self) -> dict[str, Any]:
        """Name and settings, so that `models[name](**settings)` makes it again. The user's own
        modules are left out."""
        return {"name": self.name, **{k: _described(v) for k, v in self.settings}}


@dataclass(frozen=True)
class Registered:
    """Makes modules of a registered model whose factory returns a module, or a function that makes
    one, and not a Maker."""

    name: str

    def __call__(self, **settings: Any) -> nn.Module:
        made = models[self.name](**settings)
        return made if isinstance(made, nn.Module) else made()


def registered(name: str, settings: Mapping[str, Any]) -> Maker:
    """The registered model `name` with these settings."""
    made = models[name](**settings)
    return made if isinstance(made, Maker) else _maker(name, Registered(name), **settings)


def _described(value: Any) -> Any:
    if isinstance(value, Maker):
        return value.describe()
    return None if callable(value) else value


def _maker(name: str, build: Callable[..., nn.Module], **settings: Any) -> Maker:
    return Maker(name, tuple(settings.items()), build)


IN_A_ROW = "in a row"  # not registered: a task joins its middle and its head


def in_a_row(middle: Maker, last: Maker) -> Maker:
    """Two models in sequence."""
    return _maker(IN_A_ROW, both, middle=middle, last=last)


def both(middle: Source, last: Source) -> nn.Module:
    """Two modules in sequence. A module (not a function that makes one) is copied."""
    made = [copy.deepcopy(m) if isinstance(m, nn.Module) else m() for m in (middle, last)]
    return nn.Sequential(OrderedDict(zip(("middle", "last"), made, strict=True)))


@models.register("linear")
@checked()
def linear(
    inputs: Count,
    outputs: Count = 1,
    bias: Annotated[bool, "whether the silo has an intercept of its own"] = True,
    flatten: Annotated[bool, "take images or series as one long row"] = False,
    zero: Annotated[bool, "start from zero weights, not from random ones"] = False,
) -> Maker:
    """x theta: ridge and logistic regression. Give one silo the bias, or fold it into a column."""
    settings = {"inputs": inputs, "outputs": outputs, "bias": bias, "flatten": flatten}
    return _maker("linear", _linear, **settings, zero=zero)


def _linear(inputs: int, outputs: int, bias: bool, flatten: bool, zero: bool = False) -> nn.Module:
    layer = nn.Linear(inputs, outputs, bias=bias)
    if zero:
        for weight in layer.parameters():
            nn.init.zeros_(weight)
    return nn.Sequential(nn.Flatten(), layer) if flatten else layer


@models.register("mlp")
@checked()
def mlp(
    inputs: Count,
    hidden: Annotated[Sequence[int], at_least(1), "widths of the hidden layers"],
    outputs: Count,
    flatten: Annotated[bool, "take images or series as one long row"] = False,
    norm: Annotated[OptionalNorm, "BatchNorm after each hidden layer"] = "none",
) -> Maker:
    """Fully connected layers with ReLU between them."""
    settings = {"inputs": inputs, "hidden": tuple(hidden), "outputs": outputs, "flatten": flatten}
    return _maker("mlp", _mlp, **settings, norm=norm)


def _mlp(
    inputs: int, hidden: Sequence[int], outputs: int, flatten: bool, norm: str = "none"
) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()] if flatten else []
    for width in hidden:
        between = [nn.BatchNorm1d(width)] if norm == "batch" else []
        layers += [nn.Linear(inputs, width), *between, nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


@models.register("cnn")
@checked()
def cnn(
    channels: Count,
    size: Annotated[tuple[int, int], at_least(4)],
    outputs: Count = 256,
    width: Annotated[Count, "channels of the first convolution"] = 32,
    norm: Annotated[OptionalNorm, "BatchNorm after each convolution"] = "none",
) -> Maker:
    """The ICASSP MNIST model's local part: two convolutions, then a 256-wide embedding.

    The paper gives no kernel sizes; here 3 x 3 with `width` and 2 `width` channels, each followed
    by ReLU and 2 x 2 max-pooling, and ReLU on the embedding.
    """
    settings = {"channels": channels, "size": tuple(size), "outputs": outputs, "width": width}
    return _maker("cnn", _cnn, **settings, norm=norm)


def _cnn(
    channels: int, size: tuple[int, int], outputs: int, width: int, norm: str = "none"
) -> nn.Module:
    def normalised(channels: int) -> list[nn.Module]:
        return [nn.BatchNorm2d(channels)] if norm == "batch" else []

    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        *normalised(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        *normalised(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (size[0] // 4) * (size[1] // 4), outputs),
        nn.ReLU(),
    )


@models.register("resnet18")
@checked()
def resnet18(
    channels: Count = 3,
    outputs: Count = 10,
    width: Annotated[Count, "channels of the first stage"] = 64,
    norm: Annotated[
        Literal["group", "batch"],
        "GroupNorm treats rows one by one; BatchNorm, the papers', takes a client's together",
    ] = "group",
) -> Maker:
    """ResNet18 for small images: 3 x 3 stem without pooling."""
    settings = {"channels": channels, "outputs": outputs, "width": width}
    return _maker("resnet18", ResNet18, **settings, norm=norm)


def _norm(channels: int, norm: str) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    groups = min(32, channels // 2)  # never one channel a group: that would be all bias
    return nn.GroupNorm(groups if groups and channels % groups == 0 else 1, channels)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = _norm(outputs, norm)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = _norm(outputs, norm)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(outputs, norm)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, average, linear."""

    def __init__(self, channels: int, outputs: int, width: int, norm: str = "group"):
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.norm = _norm(width, norm)
        stages: list[nn.Module] = []
        inputs = width
        for stage, stride in enumerate((1, 2, 2, 2)):
            out = width * 2**stage
            stages += [ResidualBlock(inputs, out, stride, norm), ResidualBlock(out, out, 1, norm)]
            inputs = out
        self.stages = nn.Sequential(*stages)
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.norm(self.stem(x))))
        return self.linear(x.mean((-2, -1)))


@models.register("lstm")
@checked()
def lstm(
    inputs: Count, hidden: Annotated[Count, "width of the hidden state"], outputs: Count = 1
) -> Maker:
    """LSTM over [time, inputs], then a linear layer on the last hidden state (MIMIC-III)."""
    return _maker("lstm", LSTM, inputs=inputs, hidden=hidden, outputs=outputs)


class LSTM(nn.Module):
    """The LSTM and the linear layer behind it."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.linear = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        _, (last, _) = self.lstm(x)
        return self.linear(last[-1])
