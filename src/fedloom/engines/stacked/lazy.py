"""Lazy values at clients, and local work on them by `torch.func.vmap` over a chunk.

A lazy value describes what each client would compute. It is computed for a chunk of clients at a
time. A chunk of one client is a plain call (unless gradients are compiled), and an argument that
says `loop_only` is computed client by client.

Work gets a part of the task without a silo's name: its trace then serves all silos that are alike,
and their clients can share a chunk. Work that asks for the name is computed silo by silo.
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
from ..execute.described import Argument, FlatRows
from ..execute.executor import Executors, Work, first_line, log
from ..layers.rules import ON_CPU, ReplacedLayers, RuleFinder, Rules
from .axis import Chunk, ChunkValue, on_device_of

if TYPE_CHECKING:
    from .minibatch import MinibatchRows

Call = Callable[[Local, str, Sequence[Any]], Any]


class LazyValue(AtClients):
    """A value at clients, not computed yet. `has`: the clients that have it; `scope`: its silos.
    For executors it is `Described`: an argument, or (LazyWork) work on other values."""

    f: Local | None = None
    values: Sequence[LazyValue] = ()
    minibatch_rows: MinibatchRows | None = None
    is_shared = False
    mixes_rows = trains_otherwise = False

    def __init__(self, has: Bools, scope: Sequence[str]):
        self.has, self.scope = has, scope

    def shapes(self) -> Ints | None:
        """A number for each client that differs where shapes do: clients of different shapes cannot
        share a chunk. None: shapes are equal within a silo, and across silos that are alike."""
        return None

    def widths(self) -> Ints | None:
        """The number of rows of each client's value; None if it has no rows."""
        return None

    def mixes(self, silos: tuple[str, ...]) -> bool:
        """Whether the clients of silos that are alike can share a chunk of this value."""
        return True

    def argument(self, silos: tuple[str, ...], flat: FlatRows, named: bool) -> Argument:
        raise NotImplementedError(f"{type(self).__name__} is computed client by client")

    def value(self, chunk: Chunk) -> ChunkValue:
        if self not in chunk.memo:
            chunk.memo[self] = self._compute(chunk)
        return chunk.memo[self]

    @abstractmethod
    def _compute(self, chunk: Chunk) -> ChunkValue: ...


class SharedValue(LazyValue):
    """One value for all clients of a silo: given to vmap unbatched, or repeated where clients of
    several silos share a chunk."""

    is_shared = True

    def __init__(
        self, values: Mapping[str, Any], has: Bools, stacked: Mapping[tuple[str, ...], Any] = {}
    ):
        """`stacked`: values of several silos that are stacked already."""
        super().__init__(has, tuple(values))
        self._values = values
        self._together = dict(stacked)

    def mixes(self, silos: tuple[str, ...]) -> bool:
        """Whether the values of these silos are one object, or can be stacked."""
        if silos not in self._together:
            values = [self._values[silo] for silo in silos]
            if all(value is values[0] for value in values):
                self._together[silos] = values[0]
                return True
            split = [tree.apart(value) for value in values]
            shapes = [[(a.shape, a.dtype) for a in tensors] for tensors, _ in split]
            same_form = all(form == split[0][1] for _, form in split)
            if not same_form or any(other != shapes[0] for other in shapes):
                return False
            self._together[silos] = stack(values)
        return True

    def argument(self, silos: tuple[str, ...], flat: FlatRows, named: bool) -> Argument:
        first = self._values[silos[0]]
        if len(silos) == 1:
            return Argument(tree.map_tensors(lambda a: a[None], first), "silo")
        value = self._together[silos]
        return Argument(value, "same" if value is first else "silo")

    def _compute(self, chunk: Chunk) -> ChunkValue:
        if not chunk.mixed:
            return ChunkValue(self._values[chunk.silos[0]], False)
        value = self._together[chunk.silos]
        if value is self._values[chunk.silos[0]]:
            return ChunkValue(value, False)
        if set(chunk.counts) == {1}:
            return ChunkValue(value, True)
        at = on_device_of(torch.from_numpy(chunk.of), value)
        return ChunkValue(tree.map_tensors(lambda a: a.index_select(0, at), value), True)


class TaskParts(LazyValue):
    """The silos' parts of the task, nameless where possible."""

    is_shared = True

    def __init__(self, parts: Mapping[str, Part], nameless: Mapping[str, NamelessPart], has: Bools):
        super().__init__(has, tuple(parts))
        self._parts, self._nameless = parts, nameless
        self.mixes_rows = any(part.mixes_rows for part in parts.values())
        self.trains_otherwise = any(part.block.trains_otherwise for part in parts.values())

    def argument(self, silos: tuple[str, ...], flat: FlatRows, named: bool) -> Argument:
        return Argument(self._of(silos[0], named), "same")

    def _of(self, silo: str, named: bool) -> Part:
        return (self._parts if named else self._nameless)[silo]

    def _compute(self, chunk: Chunk) -> ChunkValue:
        return ChunkValue(self._of(chunk.silos[0], chunk.named), False)


Groups = Sequence[tuple[Ints, ChunkValue]]  # places of clients, and their value


class StackedValues(LazyValue):
    """Computed values, in groups of clients with equal shapes. `clients`: length of the axis."""

    def __init__(self, groups: Groups, clients: int, scope: Sequence[str]):
        self._groups = groups
        self._group = np.full(clients, -1)  # the group of each client, -1: none
        self._position = np.full(clients, -1)  # its position in the group
        for number, (places, _) in enumerate(groups):
            self._group[places] = number
            self._position[places] = np.arange(len(places))
        super().__init__(self._group >= 0, scope)

    def shapes(self) -> Ints:
        return self._group

    def _compute(self, chunk: Chunk) -> ChunkValue:
        places, value = self._groups[int(self._group[chunk.places[0]])]
        if np.array_equal(places, chunk.places) or not value.stacked:
            return value
        return value.pick(self._position[chunk.places])


def stacked_by_shape(values: Mapping[int, Any]) -> Groups:
    """Values by place, in groups that can share a chunk."""
    places_by_shape: dict[Any, list[int]] = {}
    for place, value in values.items():
        places_by_shape.setdefault(tree.signature(value), []).append(place)
    return [
        (np.array(places), ChunkValue(stack([values[place] for place in places]), True))
        for places in places_by_shape.values()
    ]


def stack(trees: Sequence[Any]) -> Any:
    return tree.map_tensors(lambda *tensors: torch.stack(tensors), *trees)


def combined(shapes: Sequence[Ints | None]) -> Ints | None:
    """One number for each combination of shape numbers."""
    by_value = [numbers for numbers in shapes if numbers is not None]
    if len(by_value) < 2:
        return by_value[0] if by_value else None
    return np.unique(np.stack(by_value), axis=1, return_inverse=True)[1].reshape(-1)


def widest(widths: Sequence[Ints | None]) -> Ints | None:
    """The largest number of rows of each client."""
    different: list[Ints] = []
    for numbers in widths:
        if numbers is not None and not any(numbers is other for other in different):
            different.append(numbers)
    if len(different) < 2:
        return different[0] if different else None
    return np.maximum.reduce(different)


class Execution(NamedTuple):
    """How an engine executes local work. `call`: calls a function at a place with arguments;
    `named`: work that has asked for its silo's name; `rules`: replacements of layers."""

    call: Call
    executors: Executors
    named: set[Local]
    rules: Rules


class LazyWork(LazyValue):
    """Local work on lazy values. Work that depends on no client is computed once for all. `steps`:
    the number of local steps."""

    def __init__(
        self,
        execution: Execution,
        f: Local,
        values: Sequence[LazyValue],
        scope: Sequence[str],
        steps: int,
    ):
        has = values[0].has
        for value in values[1:]:
            if value.has is not has:
                has = has & value.has
        super().__init__(has, scope)
        self._execution = execution
        self._rules = partial(ReplacedLayers, execution.rules) if execution.rules else nullcontext
        self.f: Local = f
        self.values, self.steps = values, steps
        self._smallest_batch = 1 if execution.executors.batches_one else 2

    def mixes(self, silos: tuple[str, ...]) -> bool:
        return all(value.mixes(silos) for value in self.values)

    def shapes(self) -> Ints | None:
        return combined([value.shapes() for value in self.values])

    def widths(self) -> Ints | None:
        return widest([value.widths() for value in self.values])

    def _compute(self, chunk: Chunk) -> ChunkValue:
        if self.f in self._execution.named and not chunk.named:
            return self._silo_by_silo(chunk)
        try:
            return self._work(chunk, [value.value(chunk) for value in self.values])
        except SiloAsked:
            self._execution.named.add(self.f)
            return self._silo_by_silo(chunk)

    def _silo_by_silo(self, chunk: Chunk) -> ChunkValue:
        results = []
        for start, part in chunk.by_silo():
            count = len(part.places)
            args = []
            for value in self.values:
                chunk_value = value.value(chunk)
                args.append(
                    chunk_value.narrow(start, count) if chunk_value.stacked else value.value(part)
                )
            result = self._work(part, args)
            if not chunk.mixed:
                return result
            expanded = tree.map_tensors(lambda a, k=count: a.expand(k, *a.shape), result.tree)
            results.append(result.tree if result.stacked else expanded)
        return ChunkValue(tree.map_tensors(lambda *a: torch.cat(a), *results), True)

    def _work(self, chunk: Chunk, args: Sequence[ChunkValue]) -> ChunkValue:
        trees = [arg.tree for arg in args]
        where = f"clients of {', '.join(chunk.silos)}"
        stacked = tuple(arg.stacked for arg in args)
        if not any(stacked):
            return ChunkValue(self._execution.call(giving_tensors(self.f), where, trees), False)
        count = len(chunk.places)
        loop = any(getattr(arg, "loop_only", False) for arg in trees)
        if count >= self._smallest_batch and not loop:
            return ChunkValue(self._execution.call(self._for_all(stacked), where, trees), True)
        args_by_client = zip(*(arg.by_client(count) for arg in args), strict=True)
        for_one = giving_tensors(self.f) if loop else self._for_one()
        return ChunkValue(
            stack(
                [
                    self._execution.call(for_one, where, client_args)
                    for client_args in args_by_client
                ]
            ),
            True,
        )

    def _for_all(self, stacked: tuple[bool, ...]) -> Local:
        """f for all clients of a chunk at once, by vmap."""
        f = giving_tensors(self.f)

        def mapped(*trees: Any) -> Any:
            along = (0 if axis else None for axis in stacked)
            with steps_by(self._execution.executors.steps), self._rules():
                return vmap(f, in_dims=tuple(map(tree.axes, trees, along)))(*trees)

        run = self._execution.executors.run
        return wraps(f)(lambda *trees: run(Work((self.f, stacked), mapped, trees)))

    def _for_one(self) -> Local:
        """f for one client."""
        f = giving_tensors(self.f)

        def ruled(*trees: Any) -> Any:
            with self._rules():
                return f(*trees)

        run = self._execution.executors.run
        return wraps(f)(lambda *trees: run(Work((self.f, None), ruled, trees)))


class ClientNoises(LazyValue):
    """Noise of one shape for each client. `draw`: draws that of one client."""

    def __init__(
        self,
        draw: Callable[[Client], Tensor],
        client: Callable[[int], Client],
        has: Bools,
        scope: Sequence[str],
    ):
        super().__init__(has, scope)
        self._draw, self._client = draw, client

    def _compute(self, chunk: Chunk) -> ChunkValue:
        return ChunkValue(
            stack([self._draw(self._client(at)) for at in chunk.places.tolist()]), True
        )


def rules_for(part: Part) -> Rules:
    """The layer rules for a model on a CPU, if it has such layers and runs with them. This is tried
    out, because torch refuses some other layers on inputs with channels last."""
    if part.device.type != "cpu":
        return {}
    x, finder = part.shapes.made_up(part.silo, 2)[0], RuleFinder()
    params = {k: v.to(part.shapes.dtype) for k, v in part.block.initial(0).items()}

    counts = torch.ones(len(x), dtype=torch.bool)

    def total(params: Params, x: Tensor) -> Tensor:
        return part.block.in_training(params, x, counts, keys=torch.arange(len(x)))[0].sum()

    with finder:
        total(params, x)
    if not finder.any or part.loop_only:
        return ON_CPU if finder.any else {}
    try:
        with ReplacedLayers(ON_CPU):
            vmap(grad(total))(*stack([(params, x), (params, x)]))
    except RuntimeError as problem:
        log.info("layers are computed by torch's own functions: %s", first_line(problem))
        return {}
    return ON_CPU
