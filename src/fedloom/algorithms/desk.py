"""The desk of the master of an asynchronous algorithm: the last embedding of every silo and row,
when it came, the labels, and the master's own model theta_0. Pure functions of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import tree
from ..federation.placed import Rows
from ..models.block import Params
from ..models.task import Part, Theta
from ..rng import Streams
from ..slope import grad

NEVER, BEFORE = -2, -1  # turns of rows that never came, and of those that came before training
BINS = 1024  # of the histogram of delays; the last is open

Parts = Mapping[str, Part]


class Desk(NamedTuple):
    """`turn`: in which of the master's turns each row of `phi` came. `delays`: how often an
    embedding of another silo was so many turns old when it was used; `calls`: how often the master
    called for fresh ones."""

    head: Params
    phi: dict[str, Tensor]  # silo -> [size, width]
    turn: dict[str, Tensor]  # silo -> [size]
    y: Tensor
    labelled: Tensor  # [size]
    delays: Tensor  # [BINS]
    calls: Tensor


def empty(parts: Parts, streams: Streams, size: int) -> Desk:
    """Nothing came yet; theta_0 as it starts."""
    part = next(iter(parts.values()))
    shapes, device = part.shapes, part.device
    label, label_type = shapes.label
    return Desk(
        part.initial(streams).head,
        {
            silo: torch.zeros(size, width, dtype=shapes.dtype, device=device)
            for silo, width in shapes.width.items()
        },
        {silo: torch.full((size,), NEVER, device=device) for silo in shapes.width},
        torch.zeros(size, *label, dtype=label_type, device=device),
        torch.zeros(size, dtype=torch.bool, device=device),
        torch.zeros(BINS, dtype=torch.int64, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
    )


def put(desk: Desk, silo: str, ids: Tensor, rows: Rows, turn: int) -> Desk:
    """Newer embeddings of some rows."""
    phi, when = desk.phi[silo].clone(), desk.turn[silo].clone()
    phi[ids[rows.mask]], when[ids[rows.mask]] = rows.value[rows.mask], turn
    return desk._replace(phi={**desk.phi, silo: phi}, turn={**desk.turn, silo: when})


def put_labels(desk: Desk, ids: Tensor, rows: Rows) -> Desk:
    y, labelled = desk.y.clone(), desk.labelled.clone()
    y[ids[rows.mask]], labelled[ids[rows.mask]] = rows.value[rows.mask], True
    return desk._replace(y=y, labelled=labelled)


def too_old(desk: Desk, silo: str, ids: Tensor, turn: int, oldest: int | None) -> Tensor:
    """Which of these rows of a silo are not here, or came more than `oldest` turns ago."""
    when = desk.turn[silo][ids]
    return when == NEVER if oldest is None else (when == NEVER) | (turn - when > oldest)


def usable(desk: Desk, ids: Tensor, turn: int, oldest: int | None) -> Tensor:
    """Which rows can be worked on: every silo's embedding is here, and so is the label."""
    mask = desk.labelled[ids]
    for silo in desk.phi:
        mask = mask & ~too_old(desk, silo, ids, turn, oldest)
    return mask


def counted(desk: Desk, silo: str, ids: Tensor, turn: int) -> Desk:
    """The delays tau of the other silos' embeddings of these rows, added to the histogram."""
    delays = desk.delays
    for other, when in desk.turn.items():
        if other != silo:
            old = (turn - when[ids]).clamp(0, BINS - 1)
            delays = delays + torch.bincount(old, minlength=BINS)
    return desk._replace(delays=delays)


class Slopes(NamedTuple):
    """Derivatives of the loss: by theta_0 (the mean over the rows), and row by row by one silo's
    embeddings. `works`: whether there was a row at all."""

    head: Params
    phi: Rows
    works: Tensor


def slopes(parts: Parts, desk: Desk, silo: str, ids: Tensor, mask: Tensor) -> Slopes:
    """Both derivatives of the loss of some rows, with the embeddings as they lie here. Rows that
    do not count are replaced by one that does: zeros may have no derivative."""
    safe = torch.where(mask, ids, ids[mask.to(torch.int8).argmax()])
    part, works = parts[silo], mask.any()
    own, rest = desk.phi[silo][safe], desk.phi[silo].new_zeros(len(ids), part.shapes.joint)
    for other, phi in desk.phi.items():
        if other != silo:
            rest = rest + part.place(phi[safe], other)
    both = grad(total_loss, (0, 1))(desk.head, own, part, rest, desk.y[safe], mask)
    head = tree.map_tensors(lambda g: torch.where(works, g / mask.sum().clamp(min=1), 0.0), both[0])
    return Slopes(head, Rows(torch.where(mask[:, None], both[1], 0.0), mask), works)


def total_loss(
    head: Params, own: Tensor, part: Part, rest: Tensor, y: Tensor, mask: Tensor
) -> Tensor:
    scores = part.scores(Theta({}, head), part.place(own) + rest)
    return torch.where(mask, part.loss.rows(scores, y), 0.0).sum()


def summary(desk: Desk) -> dict[str, Any]:
    """The delays in a few numbers, and how many there were of each; of the last, open bin only its
    beginning is known."""
    counts = desk.delays.double().cpu()
    total = float(counts.sum())
    if total == 0:
        return {"recalls": float(desk.calls)}
    share = counts.cumsum(0) / total
    return {
        "delay_mean": float((counts * torch.arange(BINS)).sum() / total),
        "delay_median": float((share < 0.5).sum()),
        "delay_95": float((share < 0.95).sum()),
        "delay_max": float(counts.nonzero().max()),
        "recalls": float(desk.calls),
        "delays": counts[: int(counts.nonzero().max()) + 1].long().tolist(),
    }
