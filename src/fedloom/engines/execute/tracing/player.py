"""Local work recorded once and played again.

A local function is pure, so what it does to its tensors can be written down: after it was called a
few times, it is traced into the flat list of torch's operations that it amounts to (derivatives and
vmap resolved), what is computed twice or for nothing is dropped, and from then on the list is run.
The same operations on the same numbers give the same bits; only the work of finding them out again
(torch.func's levels, trees, module calls) is saved. Axes whose size was seen to vary stay variable;
sizes that the list does not hold for, and functions that cannot be traced, are called as ever.
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

Sizes = tuple[tuple[int, ...], ...]
SLOW = 0.1  # seconds of a call in which the overhead no longer counts,
AHEAD = 1.0  # or, of one in a thread of its own, where others wait for it
VARIANTS = 3  # of a function, for different sizes
KEPT = 64  # functions remembered,
QUICK = 4096  # and sizes of their tensors

# Operations go past autograd, which has nothing to do with them: a part of torch that may go.
BARE = getattr(torch._C, "_AutoDispatchBelowADInplaceOrView", torch.no_grad)


@dataclass
class Entry:
    """One function, with arguments of one form."""

    calls: int = 0
    seconds: float = 0.0  # that these took
    tries: int = 2
    seen: list[set[int]] | None = None  # of every axis, the sizes seen so far
    play: Callable[..., Any] | None = None
    form: tree.Form | None = None  # of the result
    unmet: Callable[[Sequence[Tensor]], str | None] | None = None  # why it does not hold
    known: dict[Sizes, bool] = field(default_factory=dict)
    told: bool = False  # that it does not hold for all that came


Compile = Callable[..., Callable[..., Any]]  # a graph and fake tensors to a function of tensors


class Player:
    """Calls functions, and plays those that are called often. `after`: so many calls, which took
    `worth` seconds in the mean, so that at worst tracing doubles the time. `compile`: what else to
    do with what was traced; it is then done after these calls, whatever time they took."""

    def __init__(self, after: int, compile: Compile | None = None, worth: float = 0.0):
        self._after, self._compile, self._worth = after, compile, worth
        self._plainly = torch.no_grad if compile else BARE  # how to play
        self.entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._quick: dict[Hashable, Entry] = {}  # by sizes that they hold for
        self._due: dict[int, tuple[Entry, Callable[..., Any], Sequence[Tensor], tree.Form]] = {}

    def __call__(self, key: Hashable, f: Callable[..., Any], args: Sequence[Any]) -> Any:
        """f(*args), which is a function of the tensors in args; `key`: what else it depends on."""
        tensors, form = tree.apart(tuple(args))
        sizes = tuple([a.shape for a in tensors])
        kinds = tuple([a.dtype for a in tensors])
        entry = self._quick.get((key, form, kinds, sizes))
        if entry is None:
            single = tuple(tuple(n == 1 for n in shape) for shape in sizes)  # torch traces it apart
            entry = self._suitable((key, form, kinds, single), f, tensors, sizes)
            if entry.known.get(sizes):
                if len(self._quick) >= QUICK:
                    self._quick.clear()
                self._quick[key, form, kinds, sizes] = entry
        if entry.play is not None and entry.known.get(sizes):
            try:
                with self._plainly():
                    return tree.joined(entry.form, entry.play(*tensors))
            except (RuntimeError, AssertionError) as problem:
                # the plain call says whether it is the data's
                self._tell("%s is not played again: %s", f, problem)
                entry.play, entry.tries = None, 0
        began = time.perf_counter()
        result = f(*args)
        if entry.tries:
            took = time.perf_counter() - began
            main = threading.current_thread() is threading.main_thread()
            if took < (SLOW if main else AHEAD) or self._compile:
                entry.calls, entry.seconds = entry.calls + 1, entry.seconds + took
            _note(entry, sizes)
            long_enough = self._compile is not None or entry.seconds > self._after * self._worth
            if entry.calls > self._after and long_enough:
                if main:
                    self._try(entry, f, tensors, form)
                else:
                    self._due.setdefault(id(entry), (entry, f, tensors, form))
        return result

    def _suitable(
        self,
        key: tuple[Hashable, ...],
        f: Callable[..., Any],
        tensors: Sequence[Tensor],
        sizes: Sizes,
    ) -> Entry:
        """What was written down for such sizes, or will be: a function may do other things with
        other sizes, so that what does not hold for some of them stays beside what does."""
        variants = VARIANTS if self._compile is None else 1
        for variant in range(variants):
            entry = self._entry((*key, variant))
            last = variant == variants - 1
            if entry.play is None or self._holds(entry, f, tensors, sizes, last) or entry.tries:
                break
        return entry

    def _holds(
        self,
        entry: Entry,
        f: Callable[..., Any],
        tensors: Sequence[Tensor],
        sizes: Sizes,
        last: bool,
    ) -> bool:
        """Whether what was written down is right for these sizes. `last`: else nothing will be."""
        if sizes not in entry.known:
            assert entry.unmet is not None
            unmet = entry.unmet(tensors)
            entry.known[sizes] = unmet is None
            if unmet is not None and not entry.tries and last and not entry.told:
                entry.told = True
                self._tell("%s runs as it is for some sizes: %s", f, ValueError(unmet))
        return entry.known[sizes]

    def catch_up(self) -> None:
        """Trace what was called often in other threads, now that none is at work: tracing is for
        the main one."""
        while self._due:
            self._try(*self._due.popitem()[1])

    def _entry(self, key: Hashable) -> Entry:
        if key in self.entries:
            self.entries.move_to_end(key)
            return self.entries[key]
        while len(self.entries) >= KEPT:
            self.entries.popitem(last=False)
        return self.entries.setdefault(key, Entry())

    def _try(
        self, entry: Entry, f: Callable[..., Any], tensors: Sequence[Tensor], form: tree.Form
    ) -> None:
        """Write a function down, as it is called with these tensors, if torch can."""
        entry.tries, entry.calls, entry.seconds, entry.play = entry.tries - 1, 0, 0.0, None
        entry.known.clear()
        self._quick.clear()
        assert entry.seen is not None
        varies = [len(sizes) > 1 for sizes in entry.seen]
        try:
            # It takes a second to import, which short runs save, and uses parts of torch that may
            # go.
            from .trace import traced

            entry.play, entry.form, entry.unmet = traced(f, tensors, form, varies, self._compile)
        except Exception as problem:  # whatever torch cannot trace is called as before
            self._tell("%s runs as it is: %s", f, problem)
            entry.tries = 0

    def _tell(self, text: str, f: Callable[..., Any], problem: Exception) -> None:
        """Quietly, unless it was asked for."""
        level = logging.INFO if self._compile is None else logging.WARNING
        log.log(level, text, getattr(f, "__qualname__", f), first_line(problem))


def _note(entry: Entry, sizes: Sizes) -> None:
    flat = [size for shape in sizes for size in shape]
    entry.seen = entry.seen or [set() for _ in flat]
    for sizes_of_axis, size in zip(entry.seen, flat, strict=True):
        sizes_of_axis.add(size)
