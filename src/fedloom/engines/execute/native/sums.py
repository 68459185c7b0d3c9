"""Sums over clients' work, compiled: rows lie one after the other, without padding, weights are
read where they are, and what a client computes is added up at once.

Work is traced for one client with some rows. The result is what the reference engine computes, up
to the order of sums.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, fx

from ....core import tree
from ....core.rng import Ints
from ....fabric.local_work import giving_tensors, name_of
from ....models.task import SiloAsked
from ...limits import Limits
from ..described import Described, Given, Mean, Minibatch, Sums, Way
from ..executor import first_line, log
from ..workers import autocast
from .arrays import Unknown, numbers
from .emit import Emitter, better_turned
from .program import Clients, Program

HINT = 7  # rows of the client that work is traced for
REFUSED = "%s is not compiled, and runs as it is: %s"


class Entry(NamedTuple):
    """A program, the form and the signature of what it gives, why it does not hold for tensors of
    other sizes, and for which numbers of rows it does."""

    program: Program
    form: tree.Form
    signature: Any
    unmet: Callable[[Sequence[Tensor]], str | None]
    rows: dict[int, bool]


class Programs:
    """By what they compute."""

    def __init__(self, limits: Limits) -> None:
        self.known: dict[Any, Entry | None] = {}
        self._limits = limits
        self._asking: set[Any] = set()  # work that asks for its silo
        self._refused: set[Any] = set()  # work that cannot be compiled

    def sums(self, mean: Mean) -> Sums | None:
        """None if they are not to be had so. SiloAsked: each silo must be asked for by itself."""
        silos, places, of = mean.silos, mean.places, mean.of
        wanted = [value for value in (mean.weights, mean.value) if value is not None]
        leaves = _leaves(wanted)
        text = _text(wanted, leaves)
        if text in self._refused:
            return None
        minibatches = {
            id(leaf.minibatch_rows): leaf.minibatch_rows
            for leaf in leaves
            if leaf.minibatch_rows is not None
        }
        if reason := _why_not(leaves, list(minibatches.values())):
            self._refused.add(text)
            log.warning(REFUSED, _name(wanted), reason)
            return None
        named = text in self._asking
        if len(silos) > 1 and (named or not all(value.mixes(silos) for value in wanted)):
            raise SiloAsked("one by one")
        (minibatch,) = minibatches.values()
        flat = minibatch.flat(silos, places, of)
        given = [leaf.given(silos, flat, named) for leaf in leaves]
        try:
            entry = self._entry(text, wanted, leaves, given)
        except SiloAsked:
            self._asking.add(text)
            return self.sums(mean)
        if entry is None:
            self._refused.add(text)
        if entry is None or not all(_holds(entry, n) for n in flat.numbers):
            return None
        times = (
            np.ones(len(places)) if mean.times is None else mean.times[places].astype(np.float64)
        )
        rows = minibatch.rows[places]
        order = _sorted(of * (flat.numbers[-1] + 1) + rows)  # as many rows: the same loops
        clients = Clients(flat.starts[:-1][order], rows[order], of[order], times[order])
        tensors = [a for argument in given for a in tree.tensors(argument.value)]
        totals = entry.program(clients, tensors, len(silos))
        weights = np.empty_like(totals.weights)
        weights[order] = totals.weights
        total = tree.joined(entry.form, totals.results)
        return Sums(total, entry.signature, totals.parts, weights)

    def _entry(
        self,
        text: Any,
        wanted: Sequence[Described],
        leaves: Sequence[Described],
        given: Sequence[Given],
    ) -> Entry | None:
        parts: list[Any] = [text]
        for value, way in given:
            tensors, form = tree.apart(value)
            shapes = [(tuple(a.shape)[way != "same" :], a.dtype) for a in tensors]
            parts += [way, form, *shapes]
        key = tuple(parts)
        if key not in self.known:
            if len(self.known) >= (most := self._limits.programs):
                log.warning(REFUSED, _name(wanted), f"there are {most} programs already")
                return None
            self.known[key] = _made(wanted, leaves, given, self._limits)
        return self.known[key]


def _sorted(keys: Ints) -> Ints:
    """numpy sorts short numbers several times faster."""
    few = int(keys.max(initial=0)) < 2**16
    return np.argsort(keys.astype(np.uint16) if few else keys, kind="stable")


def _why_not(leaves: Sequence[Described], minibatches: Sequence[Minibatch]) -> str | None:
    """Why it cannot be done so, whatever the work is."""
    if autocast():
        return "it has fewer digits"
    if len(minibatches) != 1:
        return "it is not about one minibatch"
    if minibatches[0].several:
        return "every local step has a minibatch of its own"
    if not all(leaf.is_shared for leaf in leaves):
        return "it is given more than rows and what a hub sends to all (noise, say)"
    return None


def _name(wanted: Sequence[Described]) -> str:
    f = wanted[-1].f
    return "a mean" if f is None else name_of(f)


def _holds(entry: Entry, rows: int) -> bool:
    """Whether it is right for so many rows. What holds for some holds for one and for none: loops
    have no other way for these."""
    if rows not in entry.rows:
        sizes = [[rows if s.rows else s.each for s in g.shape] for g in entry.program.given]
        unmet = entry.unmet([torch.empty(size, device="meta") for size in sizes])
        entry.rows[rows] = rows < 2 or unmet is None
        if not entry.rows[rows]:
            log.warning("clients' work is compiled for some numbers of rows only: %s", unmet)
    return entry.rows[rows]


def _made(
    wanted: Sequence[Described],
    leaves: Sequence[Described],
    given: Sequence[Given],
    limits: Limits,
) -> Entry | None:
    """Work, traced and compiled, if it can be."""
    from ..tracing.trace import traced  # slow to import, as what it is built on
    from .decompose import decomposed

    began, weighted = time.perf_counter(), len(wanted) > 1
    tensors, form = tree.apart(tuple(_of_one(*one) for one in given))
    ways = [one.way for one in given for _ in tree.tensors(one.value)]
    each = zip(tensors, ways, strict=True)
    varies = [way == "rows" and axis == 0 for a, way in each for axis in range(a.ndim)]

    def work(*mine: Any) -> Any:
        known = dict(zip(map(id, leaves), mine, strict=True))
        return tuple(_computed(value, known) for value in wanted)

    def written(graph: fx.GraphModule, fake: Sequence[Tensor]) -> Program:
        plain = decomposed(graph, fake).graph
        emitter = Emitter(plain, better_turned(plain))
        for argument, way in zip(emitter.given, ways, strict=True):
            if way == "rows" and not argument.shape[0].rows:
                raise Unknown("it asks for the number of rows (with len, say)")
        if any(size.rows for a in emitter.results for size in a.shape):
            raise Unknown("it gives something for each row, of which there is no mean")
        size = sum(numbers(a.shape).each * a.kind.itemsize for a in emitter.results)
        if size > (most := limits.program_model):
            raise Unknown(f"a client's {size} bytes are too many for its cache (at most {most})")
        return Program(emitter, ways, weighted, limits)

    name = _name(wanted)
    try:
        program, found, unmet = traced(work, tensors, form, varies, written)
    except SiloAsked:
        raise
    except Exception as problem:  # whatever cannot be traced or compiled is done as ever
        log.warning(REFUSED, name, first_line(problem))
        return None
    log.info("%s was compiled in %.1f s", name, time.perf_counter() - began)
    made = cast(Program, program)
    gives = found[2][-1]
    return Entry(made, gives, tree.signature(tree.joined(gives, made.like)), unmet, {})


def _leaves(wanted: Sequence[Described]) -> list[Described]:
    """What work is given that is no work itself, each once."""
    leaves: dict[int, Described] = {}
    left = list(reversed(wanted))
    while left:
        value = left.pop()
        if value.f is not None:
            left += reversed(value.values)
        else:
            leaves[id(value)] = value
    return list(leaves.values())


def _text(wanted: Sequence[Described], leaves: Sequence[Described]) -> Any:
    """Which functions are applied to what: the same for all that is computed alike."""
    place = {id(leaf): at for at, leaf in enumerate(leaves)}

    def of(value: Described) -> Any:
        return place[id(value)] if value.f is None else (value.f, *map(of, value.values))

    return tuple(map(of, wanted))


def _computed(value: Described, known: Mapping[int, Any]) -> Any:
    if value.f is None:
        return known[id(value)]
    return giving_tensors(value.f)(*[_computed(a, known) for a in value.values])


def _of_one(value: Any, way: Way) -> Any:
    """One client's, with some rows: only shapes count."""
    if way == "same":
        return value
    if way == "silo":
        return tree.map_tensors(lambda a: a[0], value)
    return tree.map_tensors(lambda a: a.new_zeros(HINT, *a.shape[1:]), value)
