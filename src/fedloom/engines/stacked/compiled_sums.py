"""Sums over clients' work, compiled: rows lie one after the other, without padding, weights are
read where they are, and what a client computes is added up at once.

Work is traced for one client with some rows. The result is what the reference engine computes, up
to the order of sums.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor, fx

from ...core import tree
from ...core.rng import Floats, Ints
from ...fabric.local_work import giving_tensors, name_of
from ...models.task import SiloAsked
from ..execute.native.arrays import Unknown, numbers
from ..execute.native.emit import Emitter, better_turned
from ..execute.native.program import Clients, Program, Way
from ..execute.replay import first_line, log
from ..execute.workers import autocast
from .client_axis import Lazy, Mapped, Parts, Same, can_mix
from .minibatch import Flat, Scattered, Taken

HINT = 7  # rows of the client that work is traced for
MOST = 64  # programs: work that is another function in every round would never end compiling
LARGE = 256 * 2**10  # bytes of a client's model for which torch's products are faster
REFUSED = "%s is not compiled, and runs as it is: %s"


class Found(NamedTuple):
    """`total`: by silo, a tree with a first axis for silos; `form`: the signature of a client's
    value; `parts`: what weights add up to, by silo; `weights`: each client's."""

    total: Any
    form: Any
    parts: Tensor
    weights: Floats


class Entry(NamedTuple):
    """A program, the form and the signature of what it gives, why it does not hold for tensors of
    other sizes, and for which numbers of rows it does."""

    program: Program
    form: tree.Form
    signature: Any
    unmet: Callable[[Sequence[Tensor]], str | None]
    rows: dict[int, bool]


class Given(NamedTuple):
    """A value that work is given, for all clients, and where each client's own part of it is."""

    value: Any
    way: Way


class Natively:
    """Programs, by what they compute."""

    def __init__(self) -> None:
        self._known: dict[Any, Entry | None] = {}
        self._asking: set[Any] = set()  # work that asks for its silo
        self._refused: set[Any] = set()  # work that cannot be compiled

    def sums(
        self,
        silos: tuple[str, ...],
        places: Ints,
        of: Ints,
        times: Ints | None,
        lazy: Lazy,
        weights: Lazy | None,
    ) -> Found | None:
        """Sums over these clients, by silo (`of`: which of them each is in; `times`: how many each
        client of the axis stands for); None if they are not to be had so. SiloAsked: each silo
        must be asked for by itself."""
        wanted = [value for value in (weights, lazy) if value is not None]
        leaves = _leaves(wanted)
        said = _said(wanted, leaves)
        if said in self._refused:
            return None
        if reason := _why_not(leaves):
            self._refused.add(said)
            log.warning(REFUSED, _name(wanted), reason)
            return None
        named = said in self._asking
        if len(silos) > 1 and (named or not all(can_mix(value, silos) for value in wanted)):
            raise SiloAsked("one by one")
        (segments,) = {id(a.segments): a.segments for a in leaves if _has_rows(a)}.values()
        flat = segments.flat(silos, places, of)
        given = [_given(leaf, silos, flat, named) for leaf in leaves]
        try:
            entry = self._entry(said, wanted, leaves, given)
        except SiloAsked:
            self._asking.add(said)
            return self.sums(silos, places, of, times, lazy, weights)
        if entry is None:
            self._refused.add(said)
        if entry is None or not all(_holds(entry, n) for n in flat.numbers):
            return None
        stands = np.ones(len(places)) if times is None else times[places].astype(np.float64)
        rows = segments.rows[places]
        order = _sorted(of * (flat.numbers[-1] + 1) + rows)  # as many rows: the same loops
        clients = Clients(flat.starts[:-1][order], rows[order], of[order], stands[order])
        tensors = [a for one in given for a in tree.tensors(one.value)]
        found = entry.program(clients, tensors, len(silos))
        own = np.empty_like(found.weights)
        own[order] = found.weights
        total = tree.joined(entry.form, found.results)
        return Found(total, entry.signature, found.parts, own)

    def _entry(
        self, said: Any, wanted: Sequence[Lazy], leaves: Sequence[Lazy], given: Sequence[Given]
    ) -> Entry | None:
        key: list[Any] = [said]
        for value, way in given:
            tensors, form = tree.apart(value)
            shapes = [(tuple(a.shape)[way != "same" :], a.dtype) for a in tensors]
            key += [way, form, *shapes]
        if tuple(key) not in self._known:
            if len(self._known) >= MOST:
                log.warning(REFUSED, _name(wanted), f"there are {MOST} programs already")
                return None
            self._known[tuple(key)] = _made(wanted, leaves, given)
        return self._known[tuple(key)]


KNOWN = (Parts, Same, Taken, Scattered)


def _sorted(keys: Ints) -> Ints:
    """numpy sorts short numbers several times faster."""
    few = int(keys.max(initial=0)) < 2**16
    return np.argsort(keys.astype(np.uint16) if few else keys, kind="stable")


def _has_rows(leaf: Lazy) -> TypeGuard[Taken | Scattered]:
    return isinstance(leaf, Taken | Scattered)


def _why_not(leaves: Sequence[Lazy]) -> str | None:
    """Why it cannot be done so, whatever the work is."""
    if autocast():
        return "it has fewer digits"
    if len({id(leaf.segments) for leaf in leaves if _has_rows(leaf)}) != 1:
        return "it is not about one minibatch"
    if any(leaf.segments.several for leaf in leaves if _has_rows(leaf)):
        return "every local step has a minibatch of its own"
    if not all(isinstance(leaf, KNOWN) for leaf in leaves):
        return "it is given more than rows and what a hub sends to all (noise, say)"
    return None


def _name(wanted: Sequence[Lazy]) -> str:
    return name_of(wanted[-1].f) if isinstance(wanted[-1], Mapped) else "a mean"


def _given(leaf: Lazy, silos: tuple[str, ...], flat: Flat, named: bool) -> Given:
    if isinstance(leaf, Parts):
        return Given(leaf.of(silos[0], named), "same")
    if isinstance(leaf, Same):
        value, one = leaf.together(silos)
        return Given(value, "same" if one else "silo")
    return Given(cast(Taken | Scattered, leaf).flat(silos, flat), "rows")


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


def _made(wanted: Sequence[Lazy], leaves: Sequence[Lazy], given: Sequence[Given]) -> Entry | None:
    """Work, traced and compiled, if it can be."""
    from ..execute.native.decompose import decomposed
    from ..execute.tracing import traced  # slow to import, as what it is built on

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
        if size > LARGE:
            raise Unknown(f"a client's {size} bytes are too many for its cache (at most {LARGE})")
        return Program(emitter, ways, weighted)

    name = _name(wanted)
    try:
        program, found, unmet, _ = traced(work, tensors, form, varies, written)
    except SiloAsked:
        raise
    except Exception as problem:  # whatever cannot be traced or compiled is done as ever
        log.warning(REFUSED, name, first_line(problem))
        return None
    log.info("%s was compiled in %.1f s", name, time.perf_counter() - began)
    made = cast(Program, program)
    gives = found[2][-1]
    return Entry(made, gives, tree.signature(tree.joined(gives, made.like)), unmet, {})


def _leaves(wanted: Sequence[Lazy]) -> list[Lazy]:
    """What work is given that is no work itself, each once."""
    found: dict[int, Lazy] = {}
    left = list(reversed(wanted))
    while left:
        value = left.pop()
        if isinstance(value, Mapped):
            left += reversed(value.values)
        else:
            found[id(value)] = value
    return list(found.values())


def _said(wanted: Sequence[Lazy], leaves: Sequence[Lazy]) -> Any:
    """Which functions, of which values."""
    place = {id(leaf): at for at, leaf in enumerate(leaves)}

    def of(value: Lazy) -> Any:
        return (value.f, *map(of, value.values)) if isinstance(value, Mapped) else place[id(value)]

    return tuple(map(of, wanted))


def _computed(value: Lazy, known: Mapping[int, Any]) -> Any:
    if not isinstance(value, Mapped):
        return known[id(value)]
    return giving_tensors(value.f)(*[_computed(a, known) for a in value.values])


def _of_one(value: Any, way: Way) -> Any:
    """One client's, with some rows: only shapes count."""
    if way == "same":
        return value
    if way == "silo":
        return tree.map_tensors(lambda a: a[0], value)
    return tree.map_tensors(lambda a: a.new_zeros(HINT, *a.shape[1:]), value)
