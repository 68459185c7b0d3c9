"""Traces local work that is called often, and replays the trace.

A local function is pure, so its effect is a list of torch's operations on its tensors. After some
calls, it is traced into that list, with gradients and vmap resolved; duplicates and unused results
are dropped. From then on, the list is run. The same operations on the same numbers give the same
bits; what is saved is Python's work (torch.func's levels, trees, module calls). Axes whose size was
seen to vary stay symbolic. Sizes that the trace is not valid for, and functions that cannot be
traced, are called as usual.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ....core import tree
from ..executor import first_line, log

TensorSizes = tuple[tuple[int, ...], ...]
SLOW = 0.1  # seconds of a call from which its overhead does not matter,
AHEAD = 1.0  # or, in a worker thread, where others wait for it
VARIANTS = 3  # traces of a function, for different sizes
MAX_FUNCTIONS = 64  # functions remembered,
MAX_SIZES = 4096  # and sizes of their tensors

# Operations bypass autograd, which they do not need. Private in torch, so with a fallback.
WITHOUT_AUTOGRAD = getattr(torch._C, "_AutoDispatchBelowADInplaceOrView", torch.no_grad)


@dataclass
class TracedFunction:
    """The state of one function with arguments of one form."""

    calls: int = 0
    seconds: float = 0.0  # of these calls
    tries: int = 2
    seen: list[set[int]] | None = None  # the sizes seen of every axis
    replay: Callable[..., Any] | None = None
    form: tree.Form | None = None  # of the result
    unmet: Callable[[Sequence[Tensor]], str | None] | None = None  # why the trace is not valid
    known: dict[TensorSizes, bool] = field(default_factory=dict)
    warned: bool = False  # that some sizes are not traced


Compile = Callable[..., Callable[..., Any]]  # a graph and fake tensors to a function of tensors


class Replayer:
    """Calls functions, and replays those that are called often. A function is traced after `after`
    calls that took `worth` seconds on average, so that tracing at most doubles the time. `compile`:
    makes a function of the graph; then the time of calls does not matter."""

    def __init__(self, after: int, compile: Compile | None = None, worth: float = 0.0):
        self._after, self._compile, self._worth = after, compile, worth
        self._plainly = torch.no_grad if compile else WITHOUT_AUTOGRAD  # the context of a replay
        self.entries: OrderedDict[Hashable, TracedFunction] = OrderedDict()
        self._quick: dict[Hashable, TracedFunction] = {}  # by sizes that they are valid for
        self._due: dict[
            int, tuple[TracedFunction, Callable[..., Any], Sequence[Tensor], tree.Form]
        ] = {}

    def __call__(self, key: Hashable, f: Callable[..., Any], args: Sequence[Any]) -> Any:
        """f(*args), a function of the tensors in args; `key`: what else it depends on."""
        tensors, form = tree.apart(tuple(args))
        sizes = tuple([a.shape for a in tensors])
        kinds = tuple([a.dtype for a in tensors])
        entry = self._quick.get((key, form, kinds, sizes))
        if entry is None:
            # torch specialises on axes of size 1
            single = tuple(tuple(n == 1 for n in shape) for shape in sizes)
            entry = self._suitable((key, form, kinds, single), f, tensors, sizes)
            if entry.known.get(sizes):
                if len(self._quick) >= MAX_SIZES:
                    self._quick.clear()
                self._quick[key, form, kinds, sizes] = entry
        if entry.replay is not None and entry.known.get(sizes):
            try:
                with self._plainly():
                    return tree.joined(entry.form, entry.replay(*tensors))
            except (RuntimeError, AssertionError) as problem:
                # the plain call shows whether the data is at fault
                self._log("%s is not replayed any more: %s", f, problem)
                entry.replay, entry.tries = None, 0
        began = time.perf_counter()
        result = f(*args)
        if entry.tries:
            took = time.perf_counter() - began
            main = threading.current_thread() is threading.main_thread()
            if took < (SLOW if main else AHEAD) or self._compile:
                entry.calls, entry.seconds = entry.calls + 1, entry.seconds + took
            _note_sizes(entry, sizes)
            long_enough = self._compile is not None or entry.seconds > self._after * self._worth
            if entry.calls > self._after and long_enough:
                if main:
                    self._trace(entry, f, tensors, form)
                else:
                    self._due.setdefault(id(entry), (entry, f, tensors, form))
        return result

    def _suitable(
        self,
        key: tuple[Hashable, ...],
        f: Callable[..., Any],
        tensors: Sequence[Tensor],
        sizes: TensorSizes,
    ) -> TracedFunction:
        """The trace for such sizes, made or to be made. A function may depend on sizes, so it has
        several."""
        variants = VARIANTS if self._compile is None else 1
        for variant in range(variants):
            entry = self._entry((*key, variant))
            last = variant == variants - 1
            if entry.replay is None or self._holds(entry, f, tensors, sizes, last) or entry.tries:
                break
        return entry

    def _holds(
        self,
        entry: TracedFunction,
        f: Callable[..., Any],
        tensors: Sequence[Tensor],
        sizes: TensorSizes,
        last: bool,
    ) -> bool:
        """Whether the trace is valid for these sizes. `last`: there is no further variant."""
        if sizes not in entry.known:
            assert entry.unmet is not None
            unmet = entry.unmet(tensors)
            entry.known[sizes] = unmet is None
            if unmet is not None and not entry.tries and last and not entry.warned:
                entry.warned = True
                self._log("%s runs as it is for some sizes: %s", f, ValueError(unmet))
        return entry.known[sizes]

    def trace_due(self) -> None:
        """Trace functions that were called often in worker threads: only the main thread traces,
        while no other works."""
        while self._due:
            self._trace(*self._due.popitem()[1])

    def _entry(self, key: Hashable) -> TracedFunction:
        if key in self.entries:
            self.entries.move_to_end(key)
            return self.entries[key]
        while len(self.entries) >= MAX_FUNCTIONS:
            self.entries.popitem(last=False)
        return self.entries.setdefault(key, TracedFunction())

    def _trace(
        self,
        entry: TracedFunction,
        f: Callable[..., Any],
        tensors: Sequence[Tensor],
        form: tree.Form,
    ) -> None:
        """Trace a function as called with these tensors, if torch can."""
        entry.tries, entry.calls, entry.seconds, entry.replay = entry.tries - 1, 0, 0.0, None
        entry.known.clear()
        self._quick.clear()
        assert entry.seen is not None
        varies = [len(sizes) > 1 for sizes in entry.seen]
        try:
            # Imported late: it takes a second, and uses private parts of torch.
            from .trace import traced

            entry.replay, entry.form, entry.unmet = traced(f, tensors, form, varies, self._compile)
        except Exception as problem:  # what torch cannot trace is called as before
            self._log("%s runs as it is: %s", f, problem)
            entry.tries = 0

    def _log(self, text: str, f: Callable[..., Any], problem: Exception) -> None:
        """Warn if compilation was asked for, else log quietly."""
        level = logging.INFO if self._compile is None else logging.WARNING
        log.log(level, text, getattr(f, "__qualname__", f), first_line(problem))


def _note_sizes(entry: TracedFunction, sizes: TensorSizes) -> None:
    flat = [size for shape in sizes for size in shape]
    entry.seen = entry.seen or [set() for _ in flat]
    for sizes_of_axis, size in zip(entry.seen, flat, strict=True):
        sizes_of_axis.add(size)
