"""The server table of an asynchronous algorithm's master: the last embedding of every silo and row,
when it came, the labels, and the master's own model theta_0.

It has a row for each row of the data, and a visit changes few of them. So embeddings are written in
place: into the copy that a round of visits makes (see Fabric.visits), never into the state before
the round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core import tree
from ...core.gradients import grad
from ...core.placed import Rows
from ...core.rng import Streams
from ...models.block import Params
from ...models.task import Part, Shapes, Theta

NEVER, BEFORE = -2, -1  # turns of rows that never came, and of those that came before training
BINS = 1024  # of the histogram of delays; the last is open

Parts = Mapping[str, Part]


class ServerTable(NamedTuple):
    """`phi`: every silo's embeddings side by side, in hub order. `turn`: in which of the master's
    turns they came. `delays`: how often an embedding of another silo was so many turns old when it
    was used; `calls`: how often the master called for fresh ones."""

    head: Params
    phi: Tensor  # [size, all widths]
    turn: Tensor  # [size, silos]
    y: Tensor
    labelled: Tensor  # [size]
    delays: Tensor  # [BINS]
    calls: Tensor


def empty(parts: Parts, streams: Streams, size: int) -> ServerTable:
    """Nothing came yet; theta_0 as it starts."""
    part = next(iter(parts.values()))
    shapes, device = part.shapes, part.device
    label, label_type = shapes.label
    return ServerTable(
        part.initial(streams).head,
        torch.zeros(size, sum(shapes.width.values()), dtype=shapes.dtype, device=device),
        torch.full((size, len(shapes.width)), NEVER, device=device),
        torch.zeros(size, *label, dtype=label_type, device=device),
        torch.zeros(size, dtype=torch.bool, device=device),
        torch.zeros(BINS, dtype=torch.int64, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
    )


def put(table: ServerTable, shapes: Shapes, silo: str, ids: Tensor, rows: Rows, turn: int) -> None:
    """Newer embeddings of some rows."""
    at, widths = list(shapes.width).index(silo), list(shapes.width.values())
    ids, value = _real(ids, rows)
    table.phi.narrow(1, sum(widths[:at]), widths[at])[ids] = value
    table.turn.select(1, at)[ids] = turn


def put_labels(table: ServerTable, ids: Tensor, rows: Rows) -> None:
    ids, value = _real(ids, rows)
    table.y[ids], table.labelled[ids] = value, True


def filled(
    parts: Parts, table: ServerTable, ids: Tensor, phis: Mapping[str, Rows], ys: Mapping[str, Rows]
) -> ServerTable:
    """The table with what came before training (in place)."""
    for silo, rows in phis.items():
        put(table, parts[silo].shapes, silo, ids, rows, BEFORE)
    put_labels(table, ids, next(iter(ys.values())))
    return table


def _real(ids: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """The rows that came."""
    return (ids, rows.value) if bool(rows.mask.all()) else (ids[rows.mask], rows.value[rows.mask])


def fresh(table: ServerTable, ids: Tensor, turn: int, max_delay: int | None) -> Tensor:
    """Whether each silo's embedding of these rows is there, and at most `max_delay` turns old."""
    since = BEFORE if max_delay is None else max(BEFORE, turn - max_delay)
    return table.turn[ids] >= since


class Gradients(NamedTuple):
    """Of the loss: by theta_0 (the mean over the rows), and row by row by one silo's embeddings.
    `rows`: how many rows counted."""

    head: Params
    phi: Rows
    rows: int


def gradients(part: Part, table: ServerTable, ids: Tensor, mask: Tensor) -> Gradients:
    """Both gradients of the loss of some rows, with the embeddings in the table. Rows that do not
    count are replaced by one that does: the loss may have no gradient at zeros."""
    count = int(mask.sum())
    if count < len(ids):
        ids = torch.where(mask, ids, ids[mask.to(torch.int8).argmax()])
    joint = table.phi[ids]
    if part.combine == "sum":
        joint = joint.unflatten(1, (-1, part.shapes.joint)).sum(1)
    if part.head is None:
        by_head, by_joint = {}, part.loss.gradients(joint, table.y[ids])
    else:
        by_head, by_joint = grad(total_loss, (0, 1))(table.head, joint, part, table.y[ids], mask)
    if count < len(ids):
        by_joint = torch.where(mask[:, None], by_joint, 0.0)
    head = tree.map_tensors(lambda g: g / count if count else torch.zeros_like(g), by_head)
    return Gradients(head, Rows(part.share(by_joint, part.silo), mask), count)


def total_loss(head: Params, joint: Tensor, part: Part, y: Tensor, mask: Tensor) -> Tensor:
    rows = part.loss.rows(part.scores(Theta({}, head), joint), y)
    return torch.where(mask, rows, 0.0).sum()


def count_delays(table: ServerTable, ids: Tensor, turn: int) -> None:
    """The delays tau of the other silos' embeddings of these rows, added to the histogram."""
    old = (turn - table.turn[ids]).clamp(0, BINS - 1)
    table.delays.add_(torch.bincount(old.flatten(), minlength=BINS))
    table.delays[0] -= len(ids)  # the visitor's own, which came in this turn


def summary(table: ServerTable) -> dict[str, Any]:
    """The delays in a few numbers, and how many there were of each; of the last, open bin only its
    beginning is known."""
    counts = table.delays.double().cpu()
    total = float(counts.sum())
    if total == 0:
        return {"recalls": float(table.calls)}
    share = counts.cumsum(0) / total
    return {
        "delay_mean": float((counts * torch.arange(BINS)).sum() / total),
        "delay_median": float((share < 0.5).sum()),
        "delay_95": float((share < 0.95).sum()),
        "delay_max": float(counts.nonzero().max()),
        "recalls": float(table.calls),
        "delays": counts[: int(counts.nonzero().max()) + 1].long().tolist(),
    }
