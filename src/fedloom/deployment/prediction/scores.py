"""Scores of the rows that were asked for, as a CSV file of the asking party."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...core.files import write_bytes
from ..agreement.shared_facts import SharedFacts


def write_scores(
    path: Path, column: str, ids: Sequence[str], scores: Tensor, there: Tensor, facts: SharedFacts
) -> None:
    """A line for each id, in the order of the question. `there`: [rows, silos], who contributed.
    A row that no silo has keeps its line, without a score."""
    names, values = _readable(scores, facts)
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


def _readable(scores: Tensor, facts: SharedFacts) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: the scores, to the last bit, and what they say."""
    digits = 9 if scores.dtype == torch.float32 else 17
    plain = [[f"{value:.{digits}g}" for value in row] for row in scores.tolist()]
    if facts.goal == "binary":
        chances = torch.sigmoid(scores[:, 0].double()).tolist()
        cells = [[*row, f"{p:.6g}"] for row, p in zip(plain, chances, strict=True)]
        return ["score", "probability"], cells
    if facts.goal == "classes":
        classes = facts.classes or [str(k) for k in range(scores.shape[1])]
        best = [classes[k] for k in scores.argmax(1).tolist()]
        cells = [[*row, name] for row, name in zip(plain, best, strict=True)]
        return [*(f"score {name}" for name in classes), "class"], cells
    if scores.shape[1] == 1:
        return ["score"], plain
    return [f"score {k}" for k in range(scores.shape[1])], plain
