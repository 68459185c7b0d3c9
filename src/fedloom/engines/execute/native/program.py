"""Compiles the C program of one client's work and runs it for many clients.

Clients run one after the other, in blocks. Each block adds up its clients' results, so that sums do
not depend on the number of threads. The C compiler is `CC`, or cc, gcc or clang.
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
from ..described import Layout
from .arrays import Array, Unsupported, numel, order_of
from .emit import LINE, Emitter, Parameter
from .expressions import TYPES

FLAGS = ["-O3", "-march=native", "-funroll-loops", "-std=gnu11", "-w", "-shared", "-fPIC"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"]
OPENMP = "-fopenmp"  # left out where a compiler does not have it
LONG = 120  # seconds after which compilation is aborted
BLOCK = 32  # least number of clients that are added up together
ROWS = 16  # array sizes are multiples of so many rows, so that arrays begin at cache lines
FEW = (1, 2, 3, 4)  # row counts with specialised functions
TYPE = """typedef void Client(const I, const I, const I, const I, double, void *const *, double *,
    double *, char *);"""
CLIENT = """static void client{few}(const I n, const I rows, const I start, const I silo, double w,
    void *const *in, double *into, double *weight, char *room) {{"""
# counts: blocks, blocks taken, threads, most rows of a client, bytes of a thread's memory
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


class ClientRows(NamedTuple):
    """The rows of the clients to compute, silo by silo. `starts`: where those of each client begin;
    `rows`: how many it has; `silo`: the index of its silo; `times`: how many clients it stands for.
    """

    starts: Ints
    rows: Ints
    silo: Ints
    times: Floats


class Totals(NamedTuple):
    """Sums by silo: of each result, [silos, ...], and of the weights; and each client's weight."""

    results: list[Tensor]
    parts: Tensor
    weights: Floats


class Program:
    """A compiled program. `layouts`: how a client's part of each argument is found; `weighted`: the
    first result is the client's weight in sums of the others."""

    def __init__(self, written: Emitter, layouts: Sequence[Layout], weighted: bool, limits: Limits):
        self._limits = limits
        self.parameters: list[Parameter] = written.parameters
        self._work, self._results = written.work, written.results[weighted:]
        self._sizes = [numel(a.shape).each for a in self._results]
        self._fixed = sum(size.each for size in written.slots if not size.rows)
        self._varying = sum(size.each for size in written.slots if size.rows)
        self.source = source_of(written, layouts, weighted)
        self._run = _compiled(self.source)

    @property
    def like(self) -> list[Tensor]:
        """The shapes of a client's results."""
        shapes = [[size.each for size in a.shape] for a in self._results]
        results = zip(shapes, self._results, strict=True)
        return [torch.empty(shape, dtype=a.kind, device="meta") for shape, a in results]

    def __call__(self, clients: ClientRows, tensors: Sequence[Tensor], silos: int) -> Totals:
        """The sums for these arguments."""
        given = zip(tensors, self.parameters, strict=True)
        parameters = [(a.mT if g.turned else a).contiguous() for a, g in given]
        most = max(1, self._limits.program_sums // (8 * sum(self._sizes) * silos))
        edges, blocks = _blocks(np.bincount(clients.silo, minlength=silos).tolist(), most)
        rows = -(-int(clients.rows.max(initial=0)) // ROWS) * ROWS
        work = int(clients.rows.sum()) * self._work[0] + len(clients.silo) * self._work[1]
        threads = torch.get_num_threads() if work > self._limits.thread_operations else 1
        if threading.current_thread() is not threading.main_thread():
            threads = 1  # other threads are working
        room = -(-(self._fixed + self._varying * rows) // LINE) * LINE
        rooms = np.empty(threads * room + LINE, dtype=np.uint8)
        sums, weights = np.empty((len(edges) - 1, sum(self._sizes))), np.empty(len(clients.silo))
        counts = np.array([len(sums), 0, 0, rows, room])
        pointers = np.array([a.data_ptr() for a in parameters])
        arrays = counts, np.array(edges), *clients, sums, weights, pointers
        at = [*(a.ctypes.data for a in arrays), -(-rooms.ctypes.data // LINE) * LINE]
        self._run((ctypes.c_void_p * len(at))(*at), threads)
        totals = torch.from_numpy(np.stack([sums[a:b].sum(0) for a, b in blocks]))
        parts = torch.from_numpy(np.bincount(clients.silo, weights, minlength=silos))
        split = zip(totals.split(self._sizes, dim=1), self._results, strict=True)
        return Totals([_shaped(a, like) for a, like in split], parts, weights)


def _blocks(clients: Sequence[int], most: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The edges of blocks of clients, and the range of blocks of each silo: at most `most`."""
    edges, blocks = [0], []
    for count in clients:
        start, pieces = edges[-1], min(-(-count // BLOCK), most)
        edges += [start + count * i // pieces for i in range(1, pieces + 1)]
        blocks.append((len(edges) - 1 - pieces, len(edges) - 1))
    return edges, blocks


def _shaped(a: Tensor, like: Array) -> Tensor:
    """Reshape numbers in memory order to the axes of an array."""
    order = order_of(like)
    lying = a.reshape(-1, *[like.shape[d].each for d in order])
    return lying.permute(0, *[1 + order.index(d) for d in range(len(order))])


def source_of(w: Emitter, layouts: Sequence[Layout], weighted: bool) -> str:
    """The C source. Loops are functions of their own: the Q steps of a round call the same ones,
    which stay in the instruction cache."""
    lines = ["#include <math.h>", "#include <stdint.h>", "typedef int64_t I;", TYPE, *w.stored]
    total = sum(numel(array.shape).each for array in w.results[weighted:])
    for few in (0, *FEW):
        lines += _client(w, layouts, weighted, few)
    functions = ", ".join(f"client{n}" for n in (0, *FEW))
    lines.append(f"static Client *const few[] = {{ {functions} }};")
    return "\n".join([*lines, RUN.replace("TOTAL", str(total)).replace("FEW", str(FEW[-1]))])


def _client(w: Emitter, layouts: Sequence[Layout], weighted: bool, few: int) -> list[str]:
    """The function of one client, for a fixed or any number of rows."""
    lines = []
    for text, name in w.functions.items():
        if few:
            text = text.replace("const I n", "const I rows", 1)
            text = text.replace("{", f"{{ enum {{ n = {few} }};", 1)
        lines.append(f"static __attribute__((noinline)) void {name}_{few}{text}")
    lines.append(CLIENT.format(few=few))
    for i, (parameters, layout) in enumerate(zip(w.parameters, layouts, strict=True)):
        kind, length = TYPES[parameters.kind], numel(parameters.shape).each
        skip = {"same": "", "silo": f" + silo * {length}", "rows": f" + start * {length}"}[layout]
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
        count = numel(array.shape).each
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
    raise Unsupported("there is no C compiler (cc, gcc or clang)")


def _compiled(source: str) -> Any:
    """Compile the source and return its function `run`. Threads are those of the OpenMP library
    that torch has loaded. Without OpenMP, the program has one thread."""
    with TemporaryDirectory(prefix="fedloom") as folder:
        text, library = Path(folder) / "clients.c", Path(folder) / "clients.so"
        text.write_text(source, encoding="utf-8")
        command = [*compiler(), *FLAGS, str(text), "-o", str(library), "-lm"]
        if _refused([*command, OPENMP]) and (why := _refused(command)):
            raise Unsupported(f"{command[0]}: {why}")
        try:
            run = ctypes.CDLL(str(library)).run
        except OSError as problem:  # a folder mounted noexec, say
            raise Unsupported(str(problem)) from None
    run.restype = None
    return run


def _refused(command: Sequence[str]) -> str | None:
    """The error of a compiler; None if it succeeded."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    return (ran.stderr.strip().splitlines() or ["it failed"])[0] if ran.returncode else None
