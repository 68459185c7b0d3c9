"""What a run has learned, as a model of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..models.library import Maker
from ..models.threshold import HALF
from .export import How, Model

if TYPE_CHECKING:
    from .run import Run


def model_of(run: Run) -> Model:
    """Out of the run: it predicts, is saved and loaded."""
    algorithm, data, head = run.algorithm, run.data, run.task.head
    thetas, parts = algorithm.blocks(run.fed, run.trained_state), run.fed.parts.value
    how: How = "joint" if algorithm.joint else "combined"
    heads = {
        j: None if part.head is None else part.head.with_params(thetas[j].head)
        for j, part in parts.items()
    }
    return Model(
        how="alone" if algorithm.predicts_alone else how,
        blocks={j: part.block.with_params(thetas[j].block) for j, part in parts.items()},
        heads=heads,
        combine=run.task.combine,
        widths=run.shapes.width,
        loss=run.task.loss,
        makers={j: _maker(block.source) for j, block in run.task.blocks.items()},
        head_maker=None if head is None else _maker(head.source),
        classes=() if data is None else data.classes,
        columns={} if data is None else data.columns,
        preparation=None if data is None else data.preparation,
        facts={"algorithm": type(algorithm).__name__, "rounds": run.model_round},
        threshold=run.model_threshold if run.task.loss.goal == "binary" else HALF,
    )


def _maker(source: Any) -> Maker | None:
    return source if isinstance(source, Maker) else None
