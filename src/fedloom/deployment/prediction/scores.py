"""Scores of the rows that were asked for, as a CSV file of the asking party."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...core.files import write_bytes
from ...models.losses import Loss
from ...models.threshold import HALF
from ..agreement.shared_facts import SharedFacts


def write_scores(
    path: Path,
    column: str,
    ids: Sequence[str],
    scores: Tensor,
    there: Tensor,
    facts: SharedFacts,
    loss: Loss,
    threshold: float = HALF,
) -> None:
    """A line for each id, in the order of the question. `there`: [rows, silos], who contributed.
    `threshold`: the probability above which a row is said to be of the second class. A row that no
    silo has keeps its line, without a score."""
    names, values = _readable(scores, facts, loss, threshold)
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow([column, *names, "contributed"])
    silos = facts.topology.silos
    for row_id, cells, present in zip(ids, values, there.bool().tolist(), strict=True):
        contributors = [silo for silo, is_there in zip(silos, present, strict=True) if is_there]
        table.writerow(
            [row_id, *(cells if contributors else [""] * len(cells)), "+".join(contributors)]
        )
    write_bytes(path, out.getvalue().encode())


def _readable(
    scores: Tensor, facts: SharedFacts, loss: Loss, threshold: float
) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: the scores, to the last bit, and what they say."""
    plain = _cells(scores)
    if facts.goal == "binary":
        classes = facts.classes or ("0", "1")
        chances = torch.sigmoid(scores[:, 0].double()).tolist()
        cells = [
            [*row, f"{p:.6g}", classes[p > threshold]]
            for row, p in zip(plain, chances, strict=True)
        ]
        return ["score", "probability", "class"], cells
    if facts.goal == "classes":
        classes = facts.classes or tuple(str(k) for k in range(scores.shape[1]))
        best = [classes[k] for k in scores.argmax(1).tolist()]
        cells = [[*row, name] for row, name in zip(plain, best, strict=True)]
        return [*(f"score {name}" for name in classes), "class"], cells
    several = [f" {k}" for k in range(scores.shape[1])] if scores.shape[1] > 1 else [""]
    names, values = [f"score{k}" for k in several], loss.values(scores)
    if torch.equal(values, scores):
        return names, plain
    cells = [[*row, *own] for row, own in zip(plain, _cells(values), strict=True)]
    return [*names, *(f"value{k}" for k in several)], cells


def _cells(numbers: Tensor) -> list[list[str]]:
    digits = 9 if numbers.dtype == torch.float32 else 17
    return [[f"{number:.{digits}g}" for number in row] for row in numbers.tolist()]
