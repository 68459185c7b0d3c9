"""Sums over clients' work by compiled programs.

Rows are concatenated without padding, weights are read where they are, and a client's result is
added up at once. Work is traced for one client with some rows. The result is that of the reference
engine, up to the order of sums.
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
from ..described import Argument, Described, Layout, MeanRequest, Minibatch, Sums
from ..executor import first_line, log
from ..workers import autocast
from .arrays import Unsupported, numel
from .emit import Emitter, better_turned
from .program import ClientRows, Program

TRACED_ROWS = 7  # rows of the client that work is traced for
REFUSED = "%s is not compiled, and runs as it is: %s"


class CompiledMean(NamedTuple):
    """A program; the form and the signature of its result; a check of other sizes; and the numbers
    of rows for which it is known to be valid or not."""

    program: Program
    form: tree.Form
    signature: Any
    unmet: Callable[[Sequence[Tensor]], str | None]
    rows: dict[int, bool]


class Programs:
    """Compiled programs by the work that they compute."""

    def __init__(self, limits: Limits) -> None:
        self.known: dict[Any, CompiledMean | None] = {}
        self._limits = limits
        self._needs_name: set[Any] = set()  # work that asks for its silo's name
        self._refused: set[Any] = set()  # work that cannot be compiled

    def sums(self, mean: MeanRequest) -> Sums | None:
        """The sums, or None to decline. SiloAsked: each silo must be computed alone."""
        silos, places, of = mean.silos, mean.places, mean.of
        outputs = [value for value in (mean.weights, mean.value) if value is not None]
        leaves = _leaves(outputs)
        text = _structure(outputs, leaves)
        if text in self._refused:
            return None
        minibatches = {
            id(leaf.minibatch_rows): leaf.minibatch_rows
            for leaf in leaves
            if leaf.minibatch_rows is not None
        }
        if reason := _refusal(leaves, list(minibatches.values())):
            self._refused.add(text)
            log.warning(REFUSED, _name(outputs), reason)
            return None
        named = text in self._needs_name
        if len(silos) > 1 and (named or not all(value.mixes(silos) for value in outputs)):
            raise SiloAsked("one by one")
        (minibatch,) = minibatches.values()
        flat = minibatch.flat(silos, places, of)
        arguments = [leaf.argument(silos, flat, named) for leaf in leaves]
        try:
            entry = self._entry(text, outputs, leaves, arguments)
        except SiloAsked:
            self._needs_name.add(text)
            return self.sums(mean)
        if entry is None:
            self._refused.add(text)
        if entry is None or not all(_is_valid(entry, n) for n in flat.numbers):
            return None
        times = (
            np.ones(len(places)) if mean.times is None else mean.times[places].astype(np.float64)
        )
        rows = minibatch.rows[places]
        # clients with equal numbers of rows are neighbours: they run the same loops
        order = _sorted(of * (flat.numbers[-1] + 1) + rows)
        clients = ClientRows(flat.starts[:-1][order], rows[order], of[order], times[order])
        tensors = [a for argument in arguments for a in tree.tensors(argument.value)]
        totals = entry.program(clients, tensors, len(silos))
        weights = np.empty_like(totals.weights)
        weights[order] = totals.weights
        total = tree.joined(entry.form, totals.results)
        return Sums(total, entry.signature, totals.parts, weights)

    def _entry(
        self,
        text: Any,
        outputs: Sequence[Described],
        leaves: Sequence[Described],
        arguments: Sequence[Argument],
    ) -> CompiledMean | None:
        parts: list[Any] = [text]
        for value, layout in arguments:
            tensors, form = tree.apart(value)
            shapes = [(tuple(a.shape)[layout != "same" :], a.dtype) for a in tensors]
            parts += [layout, form, *shapes]
        key = tuple(parts)
        if key not in self.known:
            if len(self.known) >= (most := self._limits.programs):
                log.warning(REFUSED, _name(outputs), f"there are {most} programs already")
                return None
            self.known[key] = _compile(outputs, leaves, arguments, self._limits)
        return self.known[key]


def _sorted(keys: Ints) -> Ints:
    """argsort; numpy sorts 16-bit integers several times faster."""
    few = int(keys.max(initial=0)) < 2**16
    return np.argsort(keys.astype(np.uint16) if few else keys, kind="stable")


def _refusal(leaves: Sequence[Described], minibatches: Sequence[Minibatch]) -> str | None:
    """Why work with these arguments cannot be compiled, whatever it is."""
    if autocast():
        return "it has fewer digits"
    if any(leaf.trains_otherwise for leaf in leaves):
        return "a block has BatchNorm or dropout"
    if len(minibatches) != 1:
        return "it is not about one minibatch"
    if minibatches[0].several:
        return "every local step has a minibatch of its own"
    if not all(leaf.is_shared for leaf in leaves):
        return "it is given more than rows and what a hub sends to all (noise, say)"
    return None


def _name(outputs: Sequence[Described]) -> str:
    f = outputs[-1].f
    return "a mean" if f is None else name_of(f)


def _is_valid(entry: CompiledMean, rows: int) -> bool:
    """Whether a program is valid for a number of rows. One that is valid for more rows is valid for
    one and none: its loops have no special cases."""
    if rows not in entry.rows:
        sizes = [[rows if s.rows else s.each for s in g.shape] for g in entry.program.parameters]
        unmet = entry.unmet([torch.empty(size, device="meta") for size in sizes])
        entry.rows[rows] = rows < 2 or unmet is None
        if not entry.rows[rows]:
            log.warning("clients' work is compiled for some numbers of rows only: %s", unmet)
    return entry.rows[rows]


def _compile(
    outputs: Sequence[Described],
    leaves: Sequence[Described],
    arguments: Sequence[Argument],
    limits: Limits,
) -> CompiledMean | None:
    """Trace and compile work, if possible."""
    began, weighted = time.perf_counter(), len(outputs) > 1
    tensors, form = tree.apart(tuple(_for_one_client(*argument) for argument in arguments))
    layouts = [argument.layout for argument in arguments for _ in tree.tensors(argument.value)]
    pairs = zip(tensors, layouts, strict=True)
    varies = [layout == "rows" and axis == 0 for a, layout in pairs for axis in range(a.ndim)]

    def work(*values: Any) -> Any:
        by_leaf = dict(zip(map(id, leaves), values, strict=True))
        return tuple(_evaluated(value, by_leaf) for value in outputs)

    def written(graph: fx.GraphModule, fake: Sequence[Tensor]) -> Program:
        from .decompose import decomposed

        plain = decomposed(graph, fake).graph
        emitter = Emitter(plain, better_turned(plain))
        for parameter, layout in zip(emitter.parameters, layouts, strict=True):
            if layout == "rows" and not parameter.shape[0].rows:
                raise Unsupported("it asks for the number of rows (with len, say)")
        if any(size.rows for a in emitter.results for size in a.shape):
            raise Unsupported("it gives something for each row, of which there is no mean")
        size = sum(numel(a.shape).each * a.kind.itemsize for a in emitter.results)
        if size > (most := limits.program_model):
            raise Unsupported(
                f"a client's {size} bytes are too many for its cache (at most {most})"
            )
        return Program(emitter, layouts, weighted, limits)

    name = _name(outputs)
    try:
        # Imported late: slow, and built on private parts of torch, which may be missing.
        from ..tracing.trace import traced

        program, form_of_outputs, unmet = traced(work, tensors, form, varies, written)
    except SiloAsked:
        raise
    except Exception as problem:  # what cannot be traced or compiled runs as it is
        log.warning(REFUSED, name, first_line(problem))
        return None
    log.info("%s was compiled in %.1f s", name, time.perf_counter() - began)
    compiled_program = cast(Program, program)
    gives = form_of_outputs[2][-1]
    return CompiledMean(
        compiled_program,
        gives,
        tree.signature(tree.joined(gives, compiled_program.like)),
        unmet,
        {},
    )


def _leaves(outputs: Sequence[Described]) -> list[Described]:
    """The arguments of work, each once."""
    leaves: dict[int, Described] = {}
    remaining = list(reversed(outputs))
    while remaining:
        value = remaining.pop()
        if value.f is not None:
            remaining += reversed(value.values)
        else:
            leaves[id(value)] = value
    return list(leaves.values())


def _structure(outputs: Sequence[Described], leaves: Sequence[Described]) -> Any:
    """The structure of the work: which functions are applied to which arguments."""
    element_index = {id(leaf): at for at, leaf in enumerate(leaves)}

    def of(value: Described) -> Any:
        return element_index[id(value)] if value.f is None else (value.f, *map(of, value.values))

    return tuple(map(of, outputs))


def _evaluated(value: Described, by_leaf: Mapping[int, Any]) -> Any:
    if value.f is None:
        return by_leaf[id(value)]
    return giving_tensors(value.f)(*[_evaluated(a, by_leaf) for a in value.values])


def _for_one_client(value: Any, layout: Layout) -> Any:
    """One client's part of an argument, with some rows: only shapes matter."""
    if layout == "same":
        return value
    if layout == "silo":
        return tree.map_tensors(lambda a: a[0], value)
    return tree.map_tensors(lambda a: a.new_zeros(TRACED_ROWS, *a.shape[1:]), value)
