"""Compiles clients' gradients with torch's compiler, where a run asks for it (`compile = true`).

A round's local work is the same step Q times, from other weights. So that step (or only its
gradient, if the algorithm does something else with it) is traced for all clients of a chunk and
given to torch's compiler. This takes a minute or two for a ResNet18, once, and halves its step on a
GPU: normalisation, activations and permutations become few passes over memory. Chunks with other
numbers of clients are compiled separately; their rows may vary. What cannot be compiled runs as it
is, and warns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.func import vmap

from ....core import tree
from ...layers.gpu.convolutions import client_convolutions
from ...layers.rules import rows_may_vary
from ..executor import log
from ..tracing.replay import Replayer
from ..workers import autocast
from .cuda_graphs import RecordedStep, recorder

AFTER = 20  # calls of a gradient before it is compiled; until then, its rows were seen to vary


class Compiler:
    """Computes functions of clients' tensors, inside vmap, for all clients at once."""

    def __init__(self, device: torch.device, after: int = AFTER, recordings: int = 128):
        self._device = device
        self.replayer = Replayer(after, partial(compiled, recordings=recordings))

    def __call__(self, key: Hashable, f: Callable[..., Any], args: Sequence[Any]) -> Any:
        """f(*args), inside exactly one vmap; `key`: identifies f."""
        tensors, form = tree.apart(tuple(args))
        forms: list[tree.Form] = []

        def of_all(batched: Sequence[Tensor]) -> tuple[Tensor, ...]:
            def mapped(*rows: Tensor) -> Any:
                with client_convolutions(self._device), rows_may_vary():
                    return vmap(lambda *row: f(*tree.joined(form, row)))(*rows)

            batched = [a.to(self._device) for a in batched]
            full_key = (key, form, len(batched[0]), autocast())
            results, shape = tree.apart(self.replayer(full_key, mapped, batched))
            forms.append(shape)
            return tuple(results)

        results = _WholeBatch.apply(of_all, *tensors)
        return tree.joined(forms[0], results)


class _WholeBatch(torch.autograd.Function):
    """Receives the tensors of a vmap with clients along the first axis. A tensor that is the same
    for all clients is repeated, so that the first step of a round, from the hub's weights, has the
    form of the others."""

    @staticmethod
    def forward(of_all: Any, *tensors: Tensor) -> Any:
        raise NotImplementedError("only inside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, of_all: Any, *tensors: Tensor) -> Any:
        def stacked(a: Tensor, axis: int | None) -> Tensor:
            if axis is None:
                return _with_fresh_layout(a.expand(info.batch_size, *a.shape))
            return _with_fresh_layout(a.movedim(axis, 0))

        results = of_all([stacked(a, axis) for a, axis in zip(tensors, in_dims[1:], strict=True)])
        return results, (0,) * len(results)


def _with_fresh_layout(a: Tensor) -> Tensor:
    """A tensor in the memory layout of a new one, as it is traced: a slice of another tensor is
    copied, and axes of size one get the usual stride. On a GPU, images and the weights of their
    layers have channels last, so that no step has to permute them."""
    if a.is_cuda and a.ndim == 5:
        return _plain(a.movedim(2, 4)).movedim(4, 2)
    return _plain(a)


def _plain(a: Tensor) -> Tensor:
    a = a.contiguous()
    return (a.clone() if a.storage_offset() else a).flatten().view(a.shape)


def compiled(
    graph: fx.GraphModule, fake: Sequence[Tensor], recordings: int
) -> Callable[..., Sequence[Tensor]]:
    """A traced graph, compiled; on a GPU also recorded, if the shapes of its results are fixed."""
    log.info("compiling a gradient; it may take a minute or two")
    like: list[Tensor] = [node.meta["val"] for node in _results(graph)]
    record = recorder([*fake, *like])
    if record is None or not all(isinstance(size, int) for a in like for size in a.shape):
        return _by_inductor(graph, fake)
    into = [_with_fresh_layout(a.new_empty(a.shape)) for a in like]
    _write_to_arguments(graph)
    step = _by_inductor(graph, [*fake, *into])
    return RecordedStep(lambda given, into: step(*given, *into), into, record, recordings)


def _by_inductor(graph: fx.GraphModule, fake: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    import torch._inductor  # if it fails, Replayer runs the work as it is
    from torch.utils._python_dispatch import _disable_current_modes

    with torch.no_grad():
        function = torch._inductor.compile(graph, list(fake))

    def play(*tensors: Tensor) -> Sequence[Tensor]:
        with _disable_current_modes():  # their effects are in the compiled code
            return function(*tensors)

    return play


def _write_to_arguments(graph: fx.GraphModule) -> None:
    """Write results into extra arguments: a recorded step must use the same tensors each time."""
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
