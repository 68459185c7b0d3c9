"""The papers' models, each a function that makes a module: pass it as a silo's block.

Task({"left": cnn(channels=1, size=(28, 14)), ...}, loss="cross-entropy")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SettingError
from ..registry import models

Maker = Callable[[], nn.Module]


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise SettingError(f"{name} must be at least 1, not {size}")


@models.register("linear")
def linear(inputs: int, outputs: int = 1, bias: bool = True) -> Maker:
    """x theta: ridge and logistic regression. Give one silo the bias, or fold it into a column."""
    _positive(inputs=inputs, outputs=outputs)
    return partial(nn.Linear, inputs, outputs, bias=bias)


@models.register("mlp")
def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> Maker:
    """Fully connected layers with ReLU between them."""
    _positive(inputs=inputs, outputs=outputs, hidden=min(hidden, default=1))
    return partial(_mlp, inputs, tuple(hidden), outputs)


def _mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


@models.register("cnn")
def cnn(channels: int, size: tuple[int, int], outputs: int = 256, width: int = 32) -> Maker:
    """The ICASSP MNIST model's local part: two convolutions, then a 256-wide embedding.

    The paper gives no kernel sizes; here 3 x 3 with `width` and 2 `width` channels, each followed
    by ReLU and 2 x 2 max-pooling, and ReLU on the embedding.
    """
    _positive(channels=channels, outputs=outputs, width=width, size=min(size) // 4)
    return partial(_cnn, channels, size, outputs, width)


def _cnn(channels: int, size: tuple[int, int], outputs: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (size[0] // 4) * (size[1] // 4), outputs),
        nn.ReLU(),
    )


@models.register("resnet18")
def resnet18(channels: int = 3, outputs: int = 10, width: int = 64) -> Maker:
    """ResNet18 for small images: 3 x 3 stem without pooling, GroupNorm in place of BatchNorm
    (averaging BatchNorm's statistics over clients is undefined in the paper)."""
    _positive(channels=channels, outputs=outputs, width=width)
    return partial(ResNet18, channels, outputs, width)


def _norm(channels: int) -> nn.GroupNorm:
    groups = min(32, channels // 2)  # never one channel a group: that would be all bias
    return nn.GroupNorm(groups if groups and channels % groups == 0 else 1, channels)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = _norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = _norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, average, linear."""

    def __init__(self, channels: int, outputs: int, width: int):
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.norm = _norm(width)
        stages: list[nn.Module] = []
        inputs = width
        for stage, stride in enumerate((1, 2, 2, 2)):
            out = width * 2**stage
            stages += [ResidualBlock(inputs, out, stride), ResidualBlock(out, out, 1)]
            inputs = out
        self.stages = nn.Sequential(*stages)
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.norm(self.stem(x))))
        return self.linear(x.mean((-2, -1)))


@models.register("lstm")
def lstm(inputs: int, hidden: int, outputs: int = 1) -> Maker:
    """LSTM over [time, inputs], then a linear layer on the last hidden state (MIMIC-III)."""
    _positive(inputs=inputs, hidden=hidden, outputs=outputs)
    return partial(LSTM, inputs, hidden, outputs)


class LSTM(nn.Module):
    """The LSTM and the linear layer behind it."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.linear = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        _, (last, _) = self.lstm(x)
        return self.linear(last[-1])
