"""Values along the client axis, and local work on them: `torch.func.vmap` over a chunk.

A value at clients is lazy: a description of what each client would compute. It is computed for a
chunk of clients at a time. A chunk of one client is a plain call (but where derivatives are
compiled), and so is each client's work with an argument that says `loop_only`. Work is given a part
of the task that has no silo's name: what is recorded of it serves all silos that are alike, and
their clients can share a chunk. Work that asks for the name is done silo by silo.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from ...core import tree
from ...core.gradients import grad, steps_by
from ...core.placed import AtClients
from ...core.rng import Ints
from ...core.topology import Client
from ...fabric.local_work import Local, giving_tensors
from ...fabric.schedule import Bools
from ...models.block import Params
from ...models.task import NamelessPart, Part, SiloAsked
from ..execute.described import Flat, Given
from ..execute.executor import Executors, Work, first_line, log
from ..layers.rules import ON_CPU, Called, Instead, Rules
from .axis import Chunk, Value, beside

if TYPE_CHECKING:
    from .minibatch import Segments

Call = Callable[[Local, str, Sequence[Any]], Any]


class Lazy(AtClients):
    """What each client would compute. `has` says which clients have it, `scope` in which silos it
    lives. For executors it is `Described`: an argument, or (Mapped) work on other values."""

    f: Local | None = None
    values: Sequence[Lazy] = ()
    segments: Segments | None = None
    is_shared = False

    def __init__(self, has: Bools, scope: Sequence[str]):
        self.has, self.scope = has, scope

    def shapes(self) -> Ints | None:
        """For each client a number that differs where shapes do: clients of different shapes
        cannot share a chunk. None where all of a silo, and of silos that are alike, are alike."""
        return None

    def widths(self) -> Ints | None:
        """How many rows each client's value has; None where it has none."""
        return None

    def mixes(self, silos: tuple[str, ...]) -> bool:
        """Whether the clients of silos that are alike can share a chunk of this value."""
        return True

    def given(self, silos: tuple[str, ...], flat: Flat, named: bool) -> Given:
        raise NotImplementedError(f"{type(self).__name__} is computed client by client")

    def value(self, chunk: Chunk) -> Value:
        if self not in chunk.memo:
            chunk.memo[self] = self._compute(chunk)
        return chunk.memo[self]

    @abstractmethod
    def _compute(self, chunk: Chunk) -> Value: ...


class Same(Lazy):
    """One value for all clients of a silo: passed to vmap as it is, or once for each client where
    those of several silos share a chunk."""

    is_shared = True

    def __init__(
        self, values: Mapping[str, Any], has: Bools, stacked: Mapping[tuple[str, ...], Any] = {}
    ):
        """`stacked`: those of some silos, as far as they are so already."""
        super().__init__(has, tuple(values))
        self._values = values
        self._together = dict(stacked)

    def mixes(self, silos: tuple[str, ...]) -> bool:
        """The values of these silos are one, or can be stacked."""
        if silos not in self._together:
            mine = [self._values[silo] for silo in silos]
            if all(one is mine[0] for one in mine):
                self._together[silos] = mine[0]
                return True
            parts = [tree.apart(one) for one in mine]
            shapes = [[(a.shape, a.dtype) for a in tensors] for tensors, _ in parts]
            if any(form != parts[0][1] for _, form in parts) or any(
                one != shapes[0] for one in shapes
            ):
                return False
            self._together[silos] = stack(mine)
        return True

    def given(self, silos: tuple[str, ...], flat: Flat, named: bool) -> Given:
        """One value, or stacked."""
        first = self._values[silos[0]]
        if len(silos) == 1:
            return Given(tree.map_tensors(lambda a: a[None], first), "silo")
        both = self._together[silos]
        return Given(both, "same" if both is first else "silo")

    def _compute(self, chunk: Chunk) -> Value:
        if not chunk.mixed:
            return Value(self._values[chunk.silos[0]], False)
        both = self._together[chunk.silos]
        if both is self._values[chunk.silos[0]]:
            return Value(both, False)
        if set(chunk.counts) == {1}:
            return Value(both, True)
        at = beside(torch.from_numpy(chunk.of), both)
        return Value(tree.map_tensors(lambda a: a.index_select(0, at), both), True)


class Parts(Lazy):
    """The silos' parts of the task, without a name where there is another way."""

    is_shared = True

    def __init__(self, parts: Mapping[str, Part], nameless: Mapping[str, NamelessPart], has: Bools):
        super().__init__(has, tuple(parts))
        self._parts, self._nameless = parts, nameless

    def given(self, silos: tuple[str, ...], flat: Flat, named: bool) -> Given:
        return Given(self._of(silos[0], named), "same")

    def _of(self, silo: str, named: bool) -> Part:
        return (self._parts if named else self._nameless)[silo]

    def _compute(self, chunk: Chunk) -> Value:
        return Value(self._of(chunk.silos[0], chunk.named), False)


Groups = Sequence[tuple[Ints, Value]]  # clients by place, and their value


class Stacked(Lazy):
    """Values computed already, in groups of clients with equal shapes. `clients`: on the axis."""

    def __init__(self, groups: Groups, clients: int, scope: Sequence[str]):
        self._groups = groups
        self._group = np.full(clients, -1)  # which group a client is in, -1: none
        self._position = np.full(clients, -1)  # where in it
        for number, (places, _) in enumerate(groups):
            self._group[places] = number
            self._position[places] = np.arange(len(places))
        super().__init__(self._group >= 0, scope)

    def shapes(self) -> Ints:
        return self._group

    def _compute(self, chunk: Chunk) -> Value:
        places, value = self._groups[int(self._group[chunk.places[0]])]
        if np.array_equal(places, chunk.places) or not value.stacked:
            return value
        return value.pick(self._position[chunk.places])


def stacked_by_shape(each: Mapping[int, Any]) -> Groups:
    """Values by place, as groups that can share a chunk."""
    alike: dict[Any, list[int]] = {}
    for place, mine in each.items():
        alike.setdefault(tree.signature(mine), []).append(place)
    return [
        (np.array(places), Value(stack([each[place] for place in places]), True))
        for places in alike.values()
    ]


def stack(each: Sequence[Any]) -> Any:
    return tree.map_tensors(lambda *mine: torch.stack(mine), *each)


def together(shapes: Sequence[Ints | None]) -> Ints | None:
    """One number for each combination of numbers."""
    known = [mine for mine in shapes if mine is not None]
    if len(known) < 2:
        return known[0] if known else None
    return np.unique(np.stack(known), axis=1, return_inverse=True)[1].reshape(-1)


def widest(widths: Sequence[Ints | None]) -> Ints | None:
    """The largest number of rows of each client."""
    known: list[Ints] = []
    for mine in widths:
        if mine is not None and not any(mine is other for other in known):
            known.append(mine)
    if len(known) < 2:
        return known[0] if known else None
    return np.maximum.reduce(known)


class How(NamedTuple):
    """How an engine computes local work. `call`: a function, where it is called, its arguments;
    `named`: the work that was seen to ask for its silo; `rules`: for layers."""

    call: Call
    executors: Executors
    named: set[Local]
    rules: Rules


class Mapped(Lazy):
    """Local work on lazy values. What depends on no client is computed once for all. `steps`: how
    many local steps it is."""

    def __init__(
        self, how: How, f: Local, values: Sequence[Lazy], scope: Sequence[str], steps: int
    ):
        has = values[0].has
        for value in values[1:]:
            if value.has is not has:
                has = has & value.has
        super().__init__(has, scope)
        self._how = how
        self._ruled = partial(Instead, how.rules) if how.rules else nullcontext
        self.f: Local = f
        self.values, self.steps = values, steps
        self._least = 1 if how.executors.batches_one else 2

    def mixes(self, silos: tuple[str, ...]) -> bool:
        return all(value.mixes(silos) for value in self.values)

    def shapes(self) -> Ints | None:
        return together([value.shapes() for value in self.values])

    def widths(self) -> Ints | None:
        return widest([value.widths() for value in self.values])

    def _compute(self, chunk: Chunk) -> Value:
        if self.f in self._how.named and not chunk.named:
            return self._silo_by_silo(chunk)
        try:
            return self._work(chunk, [value.value(chunk) for value in self.values])
        except SiloAsked:
            self._how.named.add(self.f)
            return self._silo_by_silo(chunk)

    def _silo_by_silo(self, chunk: Chunk) -> Value:
        each = []
        for start, own in chunk.by_silo():
            count = len(own.places)
            args = []
            for value in self.values:
                whole = value.value(chunk)
                args.append(whole.narrow(start, count) if whole.stacked else value.value(own))
            result = self._work(own, args)
            if not chunk.mixed:
                return result
            expanded = tree.map_tensors(lambda a, k=count: a.expand(k, *a.shape), result.tree)
            each.append(result.tree if result.stacked else expanded)
        return Value(tree.map_tensors(lambda *a: torch.cat(a), *each), True)

    def _work(self, chunk: Chunk, args: Sequence[Value]) -> Value:
        trees = [arg.tree for arg in args]
        where = f"clients of {', '.join(chunk.silos)}"
        stacked = tuple(arg.stacked for arg in args)
        if not any(stacked):
            return Value(self._how.call(giving_tensors(self.f), where, trees), False)
        count = len(chunk.places)
        loop = any(getattr(arg, "loop_only", False) for arg in trees)
        if count >= self._least and not loop:
            return Value(self._how.call(self._together(stacked), where, trees), True)
        each = zip(*(arg.each(count) for arg in args), strict=True)
        alone = giving_tensors(self.f) if loop else self._alone()
        return Value(stack([self._how.call(alone, where, mine) for mine in each]), True)

    def _together(self, stacked: tuple[bool, ...]) -> Local:
        """f for all clients of a chunk at once."""
        f = giving_tensors(self.f)

        def mapped(*trees: Any) -> Any:
            along = (0 if axis else None for axis in stacked)
            with steps_by(self._how.executors.steps), self._ruled():
                return vmap(f, in_dims=tuple(map(tree.axes, trees, along)))(*trees)

        run = self._how.executors.run
        return wraps(f)(lambda *trees: run(Work((self.f, stacked), mapped, trees)))

    def _alone(self) -> Local:
        """f for one client by itself."""
        f = giving_tensors(self.f)

        def ruled(*trees: Any) -> Any:
            with self._ruled():
                return f(*trees)

        run = self._how.executors.run
        return wraps(f)(lambda *trees: run(Work((self.f, None), ruled, trees)))


class OwnNoise(Lazy):
    """Noise of one shape for each client of a silo. `draw`: of a client."""

    def __init__(
        self,
        draw: Callable[[Client], Tensor],
        client: Callable[[int], Client],
        has: Bools,
        scope: Sequence[str],
    ):
        super().__init__(has, scope)
        self._draw, self._client = draw, client

    def _compute(self, chunk: Chunk) -> Value:
        return Value(stack([self._draw(self._client(at)) for at in chunk.places.tolist()]), True)


def rules_for(part: Part) -> Rules:
    """On a CPU, those for a model that has such layers and can be computed with them: it is tried,
    because torch refuses some other layers that channels come last to."""
    if part.device.type != "cpu":
        return {}
    x, called = part.shapes.made_up(part.silo, 2)[0], Called()
    params = {k: v.to(part.shapes.dtype) for k, v in part.block.initial(0).items()}

    def total(params: Params, x: Tensor) -> Tensor:
        return part.block(params, x).sum()

    with called:
        total(params, x)
    if not called.any or part.loop_only:
        return ON_CPU if called.any else {}
    try:
        with Instead(ON_CPU):
            vmap(grad(total))(*stack([(params, x), (params, x)]))
    except RuntimeError as problem:
        log.info("layers are computed as torch has them: %s", first_line(problem))
        return {}
    return ON_CPU
