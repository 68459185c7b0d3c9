"""A trained model put together: the parts of a head, and the whole model in one module."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from .block import Params
from .task import Part, Theta


def split_head(head: Params) -> tuple[Params, Params]:
    """The parameters of a head: of its middle, and of the rest."""
    parts: dict[str, Params] = {"middle": {}, "last": {}}
    for name, value in head.items():
        part, own = name.split(".", 1)
        parts[part][own] = value
    return parts["middle"], parts["last"]


def join_head(middle: Params, last: Params) -> Params:
    """The inverse of `split_head`."""
    named = (("middle", middle), ("last", last))
    return {f"{part}.{name}": v for part, params in named for name, v in params.items()}


class JointModel(nn.Module):
    """The whole model in one module, from the hubs' exports (Remark 1)."""

    def __init__(self, parts: Mapping[str, Part], thetas: Mapping[str, Theta]):
        super().__init__()
        self._parts = list(parts.values())
        self.blocks = nn.ModuleList(
            part.block.with_params(thetas[silo].block) for silo, part in parts.items()
        )
        first = self._parts[0]
        self.head = None if first.head is None else first.head.with_params(thetas[first.silo].head)

    def forward(self, x: Mapping[str, Tensor]) -> Tensor:
        joint = sum(
            part.place(block(x[part.silo]))
            for part, block in zip(self._parts, self.blocks, strict=True)
        )
        assert isinstance(joint, Tensor)
        return joint if self.head is None else self.head(joint)
