"""What was written down for one client, compiled, and run for many.

Clients run one after the other, in blocks: each block adds up what its clients give, so that sums
do not depend on how many threads take the blocks. What compiles C is looked for: `CC`, or cc, gcc
or clang.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....core.rng import Floats, Ints
from ...limits import Limits
from ..described import Way
from .arrays import Array, Unknown, numbers, order_of
from .emit import LINE, Emitter, Given
from .expressions import TYPES

FLAGS = ["-O3", "-march=native", "-funroll-loops", "-std=gnu11", "-w", "-shared", "-fPIC"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"]
OPENMP = "-fopenmp"  # left out where a compiler does not have it
LONG = 120  # seconds after which a compiler is given up
BLOCK = 32  # clients that are added up together, or more
ROWS = 16  # rows are counted in these, so that arrays begin where lines do
FEW = (1, 2, 3, 4)  # rows of clients that have loops of their own, without counting
TYPE = """typedef void Client(const I, const I, const I, const I, double, void *const *, double *,
    double *, char *);"""
CLIENT = """static void client{few}(const I n, const I rows, const I start, const I silo, double w,
    void *const *in, double *into, double *weight, char *room) {{"""
# counts: of blocks, of those that are taken, of threads, of the most rows, of bytes of a room
RUN = """static void run_blocks(void *const *t) {
    I *const counts = t[0];
    const I *const edges = t[1], *const starts = t[2], *const counted = t[3], *const silo = t[4];
    const double *const times = t[5];
    const I thread = __atomic_fetch_add(counts + 2, 1, __ATOMIC_RELAXED);
    char *const room = (char *)t[9] + thread * counts[4];
    for (;;) {
        const I b = __atomic_fetch_add(counts + 1, 1, __ATOMIC_RELAXED);
        if (b >= counts[0]) return;
        double *const into = (double *)t[6] + b * TOTAL;
        for (I e = 0; e < TOTAL; e++) into[e] = 0;
        for (I k = edges[b]; k < edges[b + 1]; k++) {
            const I n = counted[k];
            Client *const client = n >= 1 && n <= FEW ? few[n] : few[0];
            double *const weight = (double *)t[7] + k;
            client(n, counts[3], starts[k], silo[k], times[k], t[8], into, weight, room);
        }
    }
}
void run(void *const *t, int threads) {
    #pragma omp parallel num_threads(threads)
    run_blocks(t);
}
"""


class Clients(NamedTuple):
    """Those who are computed, silo by silo. `starts`: where the rows of each begin; `rows`: how
    many there are; `silo`: which each is in; `times`: how many each stands for."""

    starts: Ints
    rows: Ints
    silo: Ints
    times: Floats


class Totals(NamedTuple):
    """By silo: of each result, [silos, ...], and of the weights; and each client's weight."""

    results: list[Tensor]
    parts: Tensor
    weights: Floats


class Program:
    """`ways`: where a client's own part of each argument is; `weighted`: the first result is the
    client's weight in sums of the others."""

    def __init__(self, written: Emitter, ways: Sequence[Way], weighted: bool, limits: Limits):
        self._limits = limits
        self.given: list[Given] = written.given
        self._work, self._results = written.work, written.results[weighted:]
        self._sizes = [numbers(a.shape).each for a in self._results]
        self._fixed = sum(size.each for size in written.slots if not size.rows)
        self._varying = sum(size.each for size in written.slots if size.rows)
        self.source = source_of(written, ways, weighted)
        self._run = _compiled(self.source)

    @property
    def like(self) -> list[Tensor]:
        """The shapes of a client's results."""
        shapes = [[size.each for size in a.shape] for a in self._results]
        each = zip(shapes, self._results, strict=True)
        return [torch.empty(shape, dtype=a.kind, device="meta") for shape, a in each]

    def __call__(self, clients: Clients, tensors: Sequence[Tensor], silos: int) -> Totals:
        """Of arguments that are as they were described: by silo, or rows after rows."""
        each = zip(tensors, self.given, strict=True)
        given = [(a.mT if g.turned else a).contiguous() for a, g in each]
        most = max(1, self._limits.program_sums // (8 * sum(self._sizes) * silos))
        edges, blocks = _blocks(np.bincount(clients.silo, minlength=silos).tolist(), most)
        rows = -(-int(clients.rows.max(initial=0)) // ROWS) * ROWS
        work = int(clients.rows.sum()) * self._work[0] + len(clients.silo) * self._work[1]
        threads = torch.get_num_threads() if work > self._limits.thread_operations else 1
        if threading.current_thread() is not threading.main_thread():
            threads = 1  # others are at work beside it
        room = -(-(self._fixed + self._varying * rows) // LINE) * LINE
        rooms = np.empty(threads * room + LINE, dtype=np.uint8)
        sums, weights = np.empty((len(edges) - 1, sum(self._sizes))), np.empty(len(clients.silo))
        counts = np.array([len(sums), 0, 0, rows, room])
        pointers = np.array([a.data_ptr() for a in given])
        arrays = counts, np.array(edges), *clients, sums, weights, pointers
        at = [*(a.ctypes.data for a in arrays), -(-rooms.ctypes.data // LINE) * LINE]
        self._run((ctypes.c_void_p * len(at))(*at), threads)
        totals = torch.from_numpy(np.stack([sums[a:b].sum(0) for a, b in blocks]))
        parts = torch.from_numpy(np.bincount(clients.silo, weights, minlength=silos))
        split = zip(totals.split(self._sizes, dim=1), self._results, strict=True)
        return Totals([_shaped(a, like) for a, like in split], parts, weights)


def _blocks(clients: Sequence[int], most: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Where blocks of clients begin and end, and which blocks are a silo's: at most so many."""
    edges, blocks = [0], []
    for count in clients:
        start, pieces = edges[-1], min(-(-count // BLOCK), most)
        edges += [start + count * i // pieces for i in range(1, pieces + 1)]
        blocks.append((len(edges) - 1 - pieces, len(edges) - 1))
    return edges, blocks


def _shaped(a: Tensor, like: Array) -> Tensor:
    """Numbers as they lie in memory, with the axes of an array."""
    order = order_of(like)
    lying = a.reshape(-1, *[like.shape[d].each for d in order])
    return lying.permute(0, *[1 + order.index(d) for d in range(len(order))])


def source_of(w: Emitter, ways: Sequence[Way], weighted: bool) -> str:
    """A program in C. Its loops are no parts of the client's function: the Q steps of a round call
    the same ones, which stay near."""
    lines = ["#include <math.h>", "#include <stdint.h>", "typedef int64_t I;", TYPE]
    total = sum(numbers(array.shape).each for array in w.results[weighted:])
    for few in (0, *FEW):
        lines += _client(w, ways, weighted, few)
    each = ", ".join(f"client{n}" for n in (0, *FEW))
    lines.append(f"static Client *const few[] = {{ {each} }};")
    return "\n".join([*lines, RUN.replace("TOTAL", str(total)).replace("FEW", str(FEW[-1]))])


def _client(w: Emitter, ways: Sequence[Way], weighted: bool, few: int) -> list[str]:
    """One client's function, for so many rows, or for any number of them."""
    lines = []
    for text, name in w.functions.items():
        if few:
            text = text.replace("const I n", "const I rows", 1)
            text = text.replace("{", f"{{ enum {{ n = {few} }};", 1)
        lines.append(f"static __attribute__((noinline)) void {name}_{few}{text}")
    lines.append(CLIENT.format(few=few))
    for i, (given, way) in enumerate(zip(w.given, ways, strict=True)):
        kind, each = TYPES[given.kind], numbers(given.shape).each
        skip = {"same": "", "silo": f" + silo * {each}", "rows": f" + start * {each}"}[way]
        lines.append(f"const {kind} *const a{i} = (const {kind} *)in[{i}]{skip};")
    fixed = varying = total = 0
    for i, size in enumerate(w.slots):
        lines.append(f"char *const s{i} = room + {fixed} + {varying} * rows;")
        fixed += 0 if size.rows else size.each
        varying += size.each if size.rows else 0
    lines += [call.replace("(n", f"_{few}(n", 1) for call in w.calls]
    if weighted:
        lines.append(f"w *= (double)*({w.results[0].at});")
    lines.append("*weight = w;")
    for array in w.results[weighted:]:
        count = numbers(array.shape).each
        sum_ = f"into[{total} + e] += w * (double)({array.at})[e];"
        lines.append(f"for (I e = 0; e < {count}; e++) {sum_}")
        total += count
    return [*lines, "}"]


def compiler() -> list[str]:
    """The command of a C compiler."""
    if command := shlex.split(os.environ.get("CC", "")):
        return command
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    raise Unknown("there is no C compiler (cc, gcc or clang)")


def _compiled(source: str) -> Any:
    """Its function `run`. Threads are OpenMP's: those of the library that torch has loaded. A
    compiler without OpenMP makes a program of one thread."""
    with TemporaryDirectory(prefix="fedloom") as folder:
        text, made = Path(folder) / "clients.c", Path(folder) / "clients.so"
        text.write_text(source, encoding="utf-8")
        command = [*compiler(), *FLAGS, str(text), "-o", str(made), "-lm"]
        if _refused([*command, OPENMP]) and (why := _refused(command)):
            raise Unknown(f"{command[0]}: {why}")
        try:
            run = ctypes.CDLL(str(made)).run
        except OSError as problem:  # a folder that nothing may be run from
            raise Unknown(str(problem)) from None
    run.restype = None
    return run


def _refused(command: Sequence[str]) -> str | None:
    """Why a compiler did nothing; None if it did."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    return (ran.stderr.strip().splitlines() or ["it failed"])[0] if ran.returncode else None
