"""What training a pooled baseline comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...data.placement import Placement


@dataclass(frozen=True)
class Fitted:
    """`scores` of rows, as the loss takes them. `notes`: what was chosen, for the records."""

    scores: Callable[[Placement], Tensor]
    notes: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 0
    steps: int = 0
