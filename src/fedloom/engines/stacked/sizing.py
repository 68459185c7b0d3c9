"""How many clients are computed together.

Computing many at once saves overhead, until their data no longer fits into fast memory; and clients
are padded to the largest in the chunk. So clients are sorted by their number of rows and cut into
chunks. A chunk stays within a budget of bytes, and ends where going on would pad more than another
chunk costs. The rule depends on sizes, never on clocks, so that the same run always makes the same
chunks: last digits depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...core import tree
from ...core.rng import Ints
from ...models.task import Part
from ..limits import DEFAULT, Limits

TWO, FOUR = 2, 4  # rows: batched products of one or three rows take longer
SIXTEEN = 16


def exactly(rows: int) -> int:
    return rows


def in_fours(rows: int) -> int:
    """Two, or a multiple of four."""
    return TWO if rows <= TWO else -(-rows // FOUR) * FOUR


def rounded_up(rows: int) -> int:
    """Round up a number of rows, so that there are few different ones: a GPU's kernels are chosen
    by size. The result is even up to 63 rows, and at most a sixteenth larger from there on."""
    step = 1 << max(1, (rows // SIXTEEN).bit_length() - 1)
    return -(-rows // step) * step


@dataclass(frozen=True)
class ChunkSizing:
    """The memory that a silo's clients take, and the chunks that follow. `weights`: bytes of a
    client's model; `row`: bytes kept for one row until its gradient is taken; `most`: clients at
    once (None: by the limits); `shared`: bytes of all clients' models up to which silos share
    chunks; `even`: chunks with equal numbers of clients, so that one compiled function suits all;
    `columns`: the columns for a client's number of rows."""

    weights: int
    row: int
    most: int | None
    shared: int
    even: bool = False
    columns: Callable[[int], int] = exactly
    limits: Limits = DEFAULT

    @staticmethod
    def of(
        part: Part, most: int | None, even: bool = False, limits: Limits = DEFAULT
    ) -> ChunkSizing:
        """`even`: on a GPU, whose chunks may be as large as its memory allows."""
        on_gpu = part.device.type == "cuda"
        if on_gpu:
            # measured on an H200: vmap of a ResNet keeps three times the memory of a plain pass.
            # Code that is not compiled is bound by kernel launches: one more chunk costs most
            room = torch.cuda.get_device_properties(part.device).total_memory // 8
            limits = replace(limits, chunk=room, padding=room, piece=room)
        elif part.loop_only and most is None:
            most = 1  # clients run one by one anyway
        params = {**part.block.initial(0), **({} if part.head is None else part.head.initial(0))}
        weights, row, columns = tree.nbytes(params), kept_bytes(part), exactly
        shared = (
            limits.shared_light_models if weights <= limits.light_model else limits.shared_models
        )
        if on_gpu:
            columns, shared = rounded_up, limits.chunk
        elif most is None and row <= limits.light_row and FOUR * row <= weights:
            columns = in_fours
        return ChunkSizing(weights, row, most, shared, even and on_gpu, columns, limits)

    def __str__(self) -> str:
        if self.most is not None:
            return f"{self.most}"
        most = max(1, self.limits.chunk // max(1, self.weights + self.row))
        return f"up to {most} (weights {self.weights} B, a row {self.row} B)"

    def cut(self, places: Ints, widths: Ints | None) -> list[Ints]:
        """Cut places into chunks; `widths`: the number of rows of each of these clients."""
        if self.most is not None or widths is None:
            step = self.most or max(1, self.limits.chunk // max(1, self.weights))
            return [places[at : at + step] for at in range(0, len(places), step)]
        order = np.argsort(-widths, kind="stable")
        places, widths = places[order], np.maximum(widths[order], 1)
        if self.even and len(places):
            return np.array_split(places, self._pieces(len(places), int(widths.sum())))
        chunks = []
        while len(places):
            client_bytes = self.weights + int(widths[0]) * self.row
            end = min(len(places), max(1, self.limits.chunk // max(1, client_bytes)))
            for length in self._split(widths[:end]):
                chunks.append(places[:length])
                places, widths = places[length:], widths[length:]
        return chunks

    def _pieces(self, clients: int, rows: int) -> int:
        """The number of equal chunks; one that divides the clients, if there is one near."""
        needed = -(-(clients * self.weights + 2 * rows * self.row) // self.limits.chunk)
        most = min(
            clients,
            max(needed, min(self.limits.gpu_pieces, rows * self.row // self.limits.gpu_piece), 1),
        )
        near = (n for n in (most, most + 1, most - 1) if n >= needed and n and clients % n == 0)
        return next(near, most)

    def width(self, rows: int) -> int:
        """The columns for a client's rows; at least one."""
        return self.columns(max(1, rows))

    def models_share_chunks(self, clients: int) -> bool:
        """Whether the models of so many clients are small enough for silos to share chunks."""
        return self.most is None and self.weights * clients <= self.shared

    def pools_share_chunks(self, silos: int) -> bool:
        """Whether so many pooled silos are better computed together: not on a GPU that each of them
        keeps busy."""
        return self.weights * silos <= self.limits.shared_models

    @property
    def has_small_sum(self) -> bool:
        """Whether a sum of models in double precision is small beside a chunk."""
        return self.weights <= self.limits.shared_models

    def fits(self, rows: int) -> bool:
        """Whether a client with so many rows fits a chunk."""
        return self.most is None and self.weights + rows * self.row <= self.limits.chunk

    def is_small(self, places: Ints, widths: Ints | None) -> bool:
        """Whether values of these clients are small enough to be kept for the round."""
        rows = 0 if widths is None else len(places) * int(widths[places].max(initial=0))
        return len(places) * self.weights + rows * self.row <= self.limits.shared_models

    def _split(self, widths: Ints) -> list[int]:
        """Lengths of the parts to split a sorted chunk into, where that saves much padding."""
        saved = (len(widths) - np.arange(len(widths))) * (widths[0] - widths) * self.row
        best = int(saved.argmax())
        if saved[best] <= self.limits.padding:
            return [len(widths)]
        return self._split(widths[:best]) + self._split(widths[best:])

    def is_worth_thread(self, rows: int) -> bool:
        """Whether a chunk with so many rows is worth a thread of its own."""
        return rows * self.row > self.limits.thread_rows

    def is_worth_pooling(self, rows: int) -> bool:
        """Whether so many rows of one model are worth a computation without padding, though
        clients' steps use them again, in chunks."""
        return rows * self.row > self.limits.few_rows

    def pieces(self, rows: int, derivative: bool) -> int:
        """The number of pieces for so many rows of one model: one, or an even number, for threads.
        Embeddings without gradients do not gain from large pieces, except for recurrent layers."""
        piece = self.limits.piece if derivative or self.most is not None else self.limits.chunk
        needed = max(1, -(-rows * self.row // piece))
        return needed + (needed > 1 and needed % 2)


def kept_bytes(part: Part) -> int:
    """Bytes that autograd keeps for one row until its gradient is taken."""
    x = part.shapes.made_up(part.silo, 2)[0].to(part.device)
    params = {k: v.to(x.device).requires_grad_() for k, v in part.block.initial(0).items()}
    own = {value.data_ptr() for value in params.values()}
    saved: dict[int, int] = {}

    def keep(a: Tensor) -> Tensor:
        if a.data_ptr() not in own:
            saved[a.data_ptr()] = a.numel() * a.element_size()
        return a

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda a: a):
        counts = torch.ones(len(x), dtype=torch.bool, device=x.device)
        keys = torch.arange(len(x), device=x.device)
        typed = {k: v.to(part.shapes.dtype) for k, v in params.items()}
        part.block.in_training(typed, x, counts, keys=keys)
    return sum(saved.values()) // 2 + tree.nbytes(x) // 2
