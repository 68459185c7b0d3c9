"""Checks of received messages: they must fit their kind, and their numbers must be finite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from ..core import tree
from ..core.errors import NotFiniteError, ProtocolError
from ..core.placed import RowMap, Rows
from ..core.topology import Party, title
from ..models.task import Shapes
from .kinds import Kind


class Checks(ABC):
    """Checks whose errors name the round, the kind and the sender."""

    shapes: Shapes

    @property
    @abstractmethod
    def round(self) -> int: ...

    def _spec(self, kind: Kind, silo: str) -> tuple[tuple[int, ...], torch.dtype]:
        if kind.row is None:
            raise ProtocolError(f"{kind} carries rows, but does not declare them")
        return self.shapes.row(kind.row, silo)

    def _check_size(self, kind: Kind, rows: Any, where: RowMap, source: Party) -> None:
        if not isinstance(rows, Rows) or len(rows.mask) != where.size:
            got = len(rows.mask) if isinstance(rows, Rows) else type(rows).__name__
            raise ProtocolError(
                f"round {self.round}: {kind} at {title(source)}: scatter needs the {where.size} "
                f"rows of the minibatch, got {got}"
            )

    def _check_mean(self, kind: Kind, source: Party, form: Any, weight: float, like: Any) -> None:
        """`form`: the signature of the received value."""
        if form != tree.signature(like):
            raise ProtocolError(
                f"round {self.round}: {kind} from {title(source)} does not have the shape of the "
                "hub's own value"
            )
        if weight < 0:
            raise ProtocolError(
                f"round {self.round}: {kind} from {title(source)}: weight {weight:g}"
            )
        if not all(a.is_floating_point() for a in tree.tensors(like)):
            raise ProtocolError(f"round {self.round}: {kind}: only real numbers have a mean")

    def _check_rows(self, kind: Kind, source: Party, value: Any, silo: str) -> None:
        shape, dtype = self._spec(kind, silo)
        if not isinstance(value, Tensor) or value.shape[1:] != shape or value.dtype != dtype:
            got = type(value).__name__
            if isinstance(value, Tensor):
                got = f"of shape {tuple(value.shape[1:])}, {value.dtype}"
            raise ProtocolError(
                f"round {self.round}: {kind} from {title(source)} has rows {got}; agreed was "
                f"{shape}, {dtype}"
            )

    def _check_finite(self, kind: Kind, source: Party, payload: Any) -> None:
        if not tree.is_finite(payload):
            raise NotFiniteError(
                f"round {self.round}: NaN or infinity in {kind} from {title(source)}; a smaller "
                "step size is the usual cure"
            )
