"""What each silo adds to a joint model: without its embedding, and trained without it.

At prediction, a silo's embedding is replaced by its mean over the training rows: every row is then
an average person, as far as this silo knows. What the others cannot make up for is what it adds.
That is not the same as to train without it: the others could then have learned in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ..config.runfile import RunFile
from ..core.errors import SettingError
from ..data.federated import Federated
from ..data.placement import Placement
from ..engines.multiprocess.ranks import Ranks
from ..models.joint import JointModel
from ..records.predictions import WITHOUT
from .build import build_run, build_task, labelled_silos, of_part
from .run import Run

AT_ONCE = 4096  # rows predicted at a time


def why_not(run: Run) -> str | None:
    """Why there are no contributions of silos to this run's model; None where there are."""
    if not run.algorithm.joint:
        return "its silos have no joint model"
    if run.algorithm.one_silo or len(run.placement.topology.silos) < 2:
        return "there is one silo only"
    if run.task.loss.goal is None:
        return "a loss of your own has no metrics"
    return "there are no test rows" if run.test is None else None


def check(file: RunFile, run: Run) -> None:
    """Refuse contributions that are asked for and cannot be had, before any training."""
    asked = file.evaluation.contributions
    if asked in ("replaced", "retrained") and (why := why_not(run)) is not None:
        name = file.values["algorithm"]["name"]
        raise SettingError(
            f'evaluation.contributions = "{asked}": not with {name}, {why}; leave the key out'
        )


def wanted(file: RunFile, run: Run) -> bool:
    """Whether embeddings are to be replaced at prediction."""
    return file.evaluation.contributions != "off" and why_not(run) is None


class Embeddings:
    """A run's joint model in its parts: each silo's embedding, placed where they meet."""

    def __init__(self, run: Run):
        self._model: JointModel = run.model().eval()
        self._silos = list(run.fed.parts.value)
        self._parts, self._dtype = run.fed.parts.value, run.shapes.dtype

    def placed(self, rows: Placement, at: Tensor) -> dict[str, Tensor]:
        placed = {}
        for silo, block in zip(self._silos, self._model.blocks, strict=True):
            part, x = self._parts[silo], rows.x[silo][at]
            x = x.to(part.device, self._dtype if x.is_floating_point() else x.dtype)
            placed[silo] = part.place(block(x))
        return placed

    def means(self, rows: Placement) -> dict[str, Tensor]:
        """Over all rows, in double precision."""
        sums: dict[str, Tensor] = {}
        for at in torch.arange(rows.size).split(AT_ONCE):
            for silo, phi in self.placed(rows, at).items():
                sums[silo] = sums.get(silo, 0) + phi.double().sum(0)
        return {silo: total / rows.size for silo, total in sums.items()}

    def scores(self, joint: Tensor) -> Tensor:
        head = self._model.head
        return joint if head is None else head(joint)


@torch.no_grad()
def replaced(run: Run) -> dict[str, Tensor]:
    """Of the test rows with one silo's embedding replaced by its mean, for each silo."""
    assert run.test is not None
    embeddings = Embeddings(run)
    means = embeddings.means(run.placement)
    pieces: dict[str, list[Tensor]] = {silo: [] for silo in means}
    for at in torch.arange(run.test.size).split(AT_ONCE):
        placed = embeddings.placed(run.test, at)
        for silo, mean in means.items():
            rest = [phi for j, phi in placed.items() if j != silo]
            joint = torch.stack(rest).sum(0) + mean.to(rest[0].dtype)
            pieces[silo].append(embeddings.scores(joint).cpu())
    loss = run.task.loss
    return {silo: loss.values(torch.cat(parts)) for silo, parts in pieces.items()}


def build_without(
    file: RunFile, data: Federated, main: Run, ranks: Ranks | None = None
) -> dict[str, Run]:
    """The same run without one silo, for each that can be left out: it is not the only one with
    labels, and no setting of the algorithm names it."""
    if file.evaluation.contributions != "retrained":
        return {}
    silos, labelled = main.placement.topology.silos, labelled_silos(data)
    named = {getattr(main.algorithm, field.name) for field in _texts(main.algorithm)}
    parts = {}
    for silo in silos:
        if labelled == [silo] or silo in named:
            continue
        rest = [other for other in silos if other != silo]
        with of_part("without silo", silo):
            rows = data.only(rest)
            task = build_task(_without(file, silo), rows)
            parts[WITHOUT + silo] = build_run(file, rows, task, ranks=ranks)
    if not parts:
        raise SettingError(
            'evaluation.contributions = "retrained": no silo can be left out (labels, or what the '
            'settings name): choose "replaced"'
        )
    return parts


def _without(file: RunFile, silo: str) -> RunFile:
    """The file without what it says of one silo's model."""
    others: Mapping[str, Any] = file.values["model"]["silos"]
    return file.replaced("model", silos={j: own for j, own in others.items() if j != silo})


def _texts(settings: Any) -> list[Any]:
    return [f for f in fields(settings) if isinstance(getattr(settings, f.name), str)]
