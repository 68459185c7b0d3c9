"""Which clients are computed together.

Many at once save overhead, until what they hold no longer fits where it is fast to reach; and a
client with few rows is padded to the one with most. So clients are sorted by their rows and cut
into chunks: each holds no more than a budget of bytes, and ends where going on would pad more than
another chunk costs. The rule knows sizes only, no clocks: the same run makes the same cuts again,
which its last digits depend on.
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

TWO, FOUR = 2, 4  # rows: batched products of one or three of them with weights take longer
SIXTEEN = 16


def exactly(rows: int) -> int:
    return rows


def in_fours(rows: int) -> int:
    """Two, or a multiple of four."""
    return TWO if rows <= TWO else -(-rows // FOUR) * FOUR


def few_sizes(rows: int) -> int:
    """A little more than so many rows, so that there are few different numbers: a GPU's kernels are
    chosen by size. An even one up to 63 rows, from there on at most a sixteenth more."""
    step = 1 << max(1, (rows // SIXTEEN).bit_length() - 1)
    return -(-rows // step) * step


@dataclass(frozen=True)
class Cost:
    """What computing a silo's clients takes. `weights`: bytes of one client's model, `row`: bytes
    kept of one row until its gradient is taken, `most`: clients at once (None: by the limits),
    `shared`: bytes of all clients' models for which silos share chunks, `even`: chunks of equal
    numbers of clients, so that what is compiled for one suits them all, `columns`: for so many rows
    of a client."""

    weights: int
    row: int
    most: int | None
    shared: int
    even: bool = False
    columns: Callable[[int], int] = exactly
    limits: Limits = DEFAULT

    @staticmethod
    def of(part: Part, most: int | None, even: bool = False, limits: Limits = DEFAULT) -> Cost:
        """`even`: on a GPU, whose chunks may be as large as its memory allows."""
        on_gpu = part.device.type == "cuda"
        if on_gpu:
            # seen on an H200: vmap of a ResNet keeps three times what a plain pass does; what is
            # not compiled is bound by starting kernels, so that one more chunk costs most
            room = torch.cuda.get_device_properties(part.device).total_memory // 8
            limits = replace(limits, chunk=room, padding=room, piece=room)
        elif part.loop_only and most is None:
            most = 1  # they run one by one: results are passed on as they come
        params = {**part.block.initial(0), **({} if part.head is None else part.head.initial(0))}
        weights, row, columns = tree.nbytes(params), kept_bytes(part), exactly
        shared = (
            limits.shared_light_models if weights <= limits.light_model else limits.shared_models
        )
        if on_gpu:
            columns, shared = few_sizes, limits.chunk
        elif most is None and row <= limits.light_row and FOUR * row <= weights:
            columns = in_fours
        return Cost(weights, row, most, shared, even and on_gpu, columns, limits)

    def __str__(self) -> str:
        if self.most is not None:
            return f"{self.most}"
        most = max(1, self.limits.chunk // max(1, self.weights + self.row))
        return f"up to {most} (weights {self.weights} B, a row {self.row} B)"

    def cut(self, places: Ints, widths: Ints | None) -> list[Ints]:
        """Places in chunks; `widths`: how many rows each of these clients has."""
        if self.most is not None or widths is None:
            step = self.most or max(1, self.limits.chunk // max(1, self.weights))
            return [places[at : at + step] for at in range(0, len(places), step)]
        order = np.argsort(-widths, kind="stable")
        places, widths = places[order], np.maximum(widths[order], 1)
        if self.even and len(places):
            return np.array_split(places, self._pieces(len(places), int(widths.sum())))
        chunks = []
        while len(places):
            each = self.weights + int(widths[0]) * self.row
            end = min(len(places), max(1, self.limits.chunk // max(1, each)))
            for length in self._split(widths[:end]):
                chunks.append(places[:length])
                places, widths = places[length:], widths[length:]
        return chunks

    def _pieces(self, clients: int, rows: int) -> int:
        """How many equal chunks; a number without remainder, if there is one near."""
        needed = -(-(clients * self.weights + 2 * rows * self.row) // self.limits.chunk)
        most = min(
            clients,
            max(needed, min(self.limits.gpu_pieces, rows * self.row // self.limits.gpu_piece), 1),
        )
        near = (n for n in (most, most + 1, most - 1) if n >= needed and n and clients % n == 0)
        return next(near, most)

    def width(self, rows: int) -> int:
        """Columns for so many rows of a client; at least one, so that there is something."""
        return self.columns(max(1, rows))

    def small(self, clients: int) -> bool:
        """Whether the models of so many clients are so small that those of several silos are
        better computed together, each with a copy from the start."""
        return self.most is None and self.weights * clients <= self.shared

    def tiny(self, silos: int) -> bool:
        """Whether so many models, one for all of a silo's rows, are better computed together: not
        on a GPU that each of them keeps busy."""
        return self.weights * silos <= self.limits.shared_models

    @property
    def adds_little(self) -> bool:
        """Whether a sum of models, in double precision, is little beside what a chunk holds."""
        return self.weights <= self.limits.shared_models

    def fits(self, rows: int) -> bool:
        """Whether so many rows of one client stay within a chunk's budget."""
        return self.most is None and self.weights + rows * self.row <= self.limits.chunk

    def little(self, places: Ints, widths: Ints | None) -> bool:
        """Whether what these clients hold is little enough to be kept for the rest of a round."""
        rows = 0 if widths is None else len(places) * int(widths[places].max(initial=0))
        return len(places) * self.weights + rows * self.row <= self.limits.shared_models

    def _split(self, widths: Ints) -> list[int]:
        """Lengths of the parts of a sorted chunk between which much padding is saved."""
        saved = (len(widths) - np.arange(len(widths))) * (widths[0] - widths) * self.row
        best = int(saved.argmax())
        if saved[best] <= self.limits.padding:
            return [len(widths)]
        return self._split(widths[:best]) + self._split(widths[best:])

    def heavy(self, rows: int) -> bool:
        """Whether a chunk with so many rows is worth a thread of its own."""
        return rows * self.row > self.limits.thread_rows

    def many(self, rows: int) -> bool:
        """Whether so many rows of one model are worth to be taken by themselves, without padding:
        clients' steps take them again, in chunks."""
        return rows * self.row > self.limits.few_rows

    def pieces(self, rows: int, derivative: bool) -> int:
        """In how many pieces so many rows of one model are computed: an even number, for threads,
        if they do not fit in one. What is only embedded needs no large ones, but for layers that
        go from step to step."""
        piece = self.limits.piece if derivative or self.most is not None else self.limits.chunk
        needed = max(1, -(-rows * self.row // piece))
        return needed + (needed > 1 and needed % 2)


def kept_bytes(part: Part) -> int:
    """Bytes that autograd keeps of one row until its derivative is taken."""
    x = part.shapes.made_up(part.silo, 2)[0].to(part.device)
    params = {k: v.to(x.device).requires_grad_() for k, v in part.block.initial(0).items()}
    own = {value.data_ptr() for value in params.values()}
    kept: dict[int, int] = {}

    def keep(a: Tensor) -> Tensor:
        if a.data_ptr() not in own:
            kept[a.data_ptr()] = a.numel() * a.element_size()
        return a

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda a: a):
        part.block({k: v.to(part.shapes.dtype) for k, v in params.items()}, x)
    return sum(kept.values()) // 2 + tree.nbytes(x) // 2
