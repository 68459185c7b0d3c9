"""What a model said of the test rows, beside what is true: predictions.safetensors.

The file is private to its owner. It has no ids, but its rows are in the order of the test rows'
ids: who knows these knows everybody's label and score. The report and comparisons are made from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core import seal
from ..core.errors import DamagedError
from ..core.files import PRIVATE
from ..core.registry import metrics as registered
from ..data.dataset import Goal
from ..models.threshold import HALF
from .bootstrap import Interval, Resampled, intervals, mean, resampled
from .metrics import NAMES, Scored

NAME = "predictions.safetensors"
WITHOUT = "without-"  # begins the name of a part that was trained without a silo
CURE = "make the run again, or delete the file: the report then leaves out what needs it"


@dataclass(frozen=True)
class Predictions:
    """Scores of the test rows: of classes as the loss takes them, numbers in their own unit.

    `by_hub`: one entry where all hubs predict the same, else every silo's own. `without`: the joint
    model's, with a silo's embedding replaced by its mean over the training rows. `rows` is equal
    for equal rows; `more`: metrics besides the usual. `thresholds`: by hub, the probability above
    which a row is said to be of class 1, unless it is a half."""

    goal: Goal
    labels: Tensor
    by_hub: Mapping[str, Tensor]
    rows: str
    more: tuple[str, ...] = ()
    without: Mapping[str, Tensor] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        """Whether silos predict each by itself."""
        return len(self.by_hub) > 1

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that are measured on them."""
        outputs = next(iter(self.by_hub.values())).shape[-1]
        names = dict.fromkeys((*NAMES[self.goal], *self.more))
        known = set(registered)  # one of a package that is not installed here is left out
        return tuple(n for n in names if n in known and outputs >= registered[n].outputs)

    def scored(self, scores: Tensor, hub: str = "") -> Scored:
        return Scored.of(self.goal, scores, self.labels, self.thresholds.get(hub, HALF))

    def of_hubs(self, names: Collection[str] | None = None) -> dict[str, dict[str, Resampled]]:
        """Metrics on resamples, at every hub that predicts."""
        wanted = self.metrics if names is None else names
        return {hub: resampled(self.scored(z, hub), wanted) for hub, z in self.by_hub.items()}

    def resampled(self, names: Collection[str] | None = None) -> dict[str, Resampled]:
        """Metrics on resamples; means over silos that predict each by itself."""
        return mean(list(self.of_hubs(names).values()))

    def intervals(self) -> dict[str, Interval]:
        """95 % bootstrap intervals of the metrics that have one: how much they would vary with
        other rows of the same kind."""
        return intervals(self.resampled())

    def save(self, folder: Path) -> None:
        tensors = {"labels": self.labels}
        tensors |= {f"scores/{hub}": z for hub, z in self.by_hub.items()}
        tensors |= {f"without/{silo}": z for silo, z in self.without.items()}
        order = {"hubs": list(self.by_hub), "without": list(self.without)}
        usual = {"goal": self.goal, "rows": self.rows, "more": list(self.more), **order}
        facts = {**usual, "thresholds": dict(self.thresholds)}
        seal.write_tensors(folder / NAME, tensors, facts, PRIVATE)

    @staticmethod
    def read(folder: Path) -> Predictions | None:
        """Those in a folder; None where there are none."""
        path = folder / NAME
        if not path.is_file():
            return None
        tensors, facts = seal.read_tensors(path, CURE)
        try:
            return Predictions(
                facts["goal"],
                tensors["labels"],
                {hub: tensors[f"scores/{hub}"] for hub in facts["hubs"]},
                facts["rows"],
                tuple(facts["more"]),
                {silo: tensors[f"without/{silo}"] for silo in facts["without"]},
                facts["thresholds"],
            )
        except KeyError as problem:
            raise DamagedError(f"{path} has no {problem}; {CURE}") from None


def digest_of(ids: npt.NDArray[Any], labels: Tensor) -> str:
    """Equal for the same rows with the same labels: their models can be compared row by row."""
    digest = hashlib.sha256(np.ascontiguousarray(ids).astype("U").tobytes())
    digest.update(labels.to(torch.float64).numpy().tobytes())
    return digest.hexdigest()[:32]
