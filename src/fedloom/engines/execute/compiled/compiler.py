"""Clients' derivatives compiled, where a run asks for it (`compile = true`).

A round's local work is Q times the same step from other weights. So the step (or the derivative,
where an algorithm goes on with it in other ways), for all clients of a chunk at once, is what is
traced and given to torch's compiler: it takes a minute or two for a ResNet18 once, and halves its
step on a GPU, because normalisation, activations and changes of the order of axes become few passes
over memory. Chunks of other numbers of clients are compiled apart; their rows may vary. What cannot
be compiled runs as it is, and warns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.func import vmap

from ....core import tree
from ...layers.gpu.convolutions import of_clients
from ...layers.rules import rows_may_vary
from ..executor import log
from ..tracing.player import Player
from ..workers import autocast
from .cuda_graphs import Recorded, recorder

AFTER = 20  # calls of a derivative before it is compiled: by then its rows were seen to vary


class Compiler:
    """Computes functions of clients' tensors, inside vmap, for all clients at once."""

    def __init__(self, device: torch.device, after: int = AFTER, recordings: int = 128):
        self._device = device
        self.player = Player(after, partial(compiled, recordings=recordings))

    def __call__(self, key: Hashable, f: Callable[..., Any], args: Sequence[Any]) -> Any:
        """f(*args), one level of vmap being on; `key`: what f is."""
        tensors, form = tree.apart(tuple(args))
        found: list[tree.Form] = []

        def of_all(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
            def mapped(*mine: Tensor) -> Any:
                with of_clients(self._device), rows_may_vary():
                    return vmap(lambda *one: f(*tree.joined(form, one)))(*mine)

            given = [a.to(self._device) for a in given]
            known = (key, form, len(given[0]), autocast())
            results, shape = tree.apart(self.player(known, mapped, given))
            found.append(shape)
            return tuple(results)

        results = _Together.apply(of_all, *tensors)
        return tree.joined(found[0], results)


class _Together(torch.autograd.Function):
    """vmap hands its tensors over as they are, clients along their first axis. What is the same
    for all is repeated, so that the first step of a round, from the hub's weights, is like the
    others."""

    @staticmethod
    def forward(of_all: Any, *tensors: Tensor) -> Any:
        raise NotImplementedError("only inside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, of_all: Any, *tensors: Tensor) -> Any:
        def stacked(a: Tensor, axis: int | None) -> Tensor:
            if axis is None:
                return _as_new(a.expand(info.batch_size, *a.shape))
            return _as_new(a.movedim(axis, 0))

        results = of_all([stacked(a, axis) for a, axis in zip(tensors, in_dims[1:], strict=True)])
        return results, (0,) * len(results)


def _as_new(a: Tensor) -> Tensor:
    """Where and in the order that a new tensor is, which is what is traced: what lies in another
    one is copied, and axes of one have no other stride. On a GPU, images and the weights of their
    layers have channels last, so that no step has to put them in another order."""
    if a.is_cuda and a.ndim == 5:
        return _plain(a.movedim(2, 4)).movedim(4, 2)
    return _plain(a)


def _plain(a: Tensor) -> Tensor:
    a = a.contiguous()
    return (a.clone() if a.storage_offset() else a).flatten().view(a.shape)


def compiled(
    graph: fx.GraphModule, fake: Sequence[Tensor], recordings: int
) -> Callable[..., Sequence[Tensor]]:
    """A traced graph, compiled; on a GPU also recorded, if the shapes of its results are known."""
    log.info("compiling a derivative; it may take a minute or two")
    like: list[Tensor] = [node.meta["val"] for node in _results(graph)]
    record = recorder([*fake, *like])
    if record is None or not all(isinstance(size, int) for a in like for size in a.shape):
        return _made(graph, fake)
    into = [_as_new(a.new_empty(a.shape)) for a in like]
    _write(graph)
    step = _made(graph, [*fake, *into])
    return Recorded(lambda given, into: step(*given, *into), into, record, recordings)


def _made(graph: fx.GraphModule, fake: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    import torch._inductor  # what cannot be had of it is run as it is (Player)
    from torch.utils._python_dispatch import _disable_current_modes

    with torch.no_grad():
        made = torch._inductor.compile(graph, list(fake))

    def play(*tensors: Tensor) -> Sequence[Tensor]:
        with _disable_current_modes():  # what they change was compiled in
            return made(*tensors)

    return play


def _write(graph: fx.GraphModule) -> None:
    """Results go into tensors that are given after the others: a step that is recorded has to use
    the same ones again, and what is compiled writes them there at once."""
    nodes = graph.graph
    results, output = _results(graph), nodes.output_node()
    last = [node for node in nodes.nodes if node.op == "placeholder"][-1]
    for number, result in enumerate(results):
        with nodes.inserting_after(last):
            last = nodes.placeholder(f"into_{number}")
        with nodes.inserting_before(output):
            nodes.call_function(torch.ops.aten.copy_.default, (last, result))
    output.args = ((),)
    graph.recompile()


def _results(graph: fx.GraphModule) -> Sequence[fx.Node]:
    return cast(Sequence[fx.Node], graph.graph.output_node().args[0])
