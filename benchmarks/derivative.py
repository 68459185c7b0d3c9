"""`python -m benchmarks.derivative`: what compiling a gradient saves.

The gradient of a local step of many clients at once, each with weights of its own, plain and
compiled; and of one shared model on the same rows, the floor. All in one process, one after the
other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedloom import resnet18
from fedloom.algorithms.shared.local import local_loss
from fedloom.core import tree
from fedloom.core.arithmetic import multiplying
from fedloom.core.gradients import grad
from fedloom.core.placed import Batch, Rows
from fedloom.engines.execute.compiled.compiler import compiled
from fedloom.engines.execute.tracing.trace import traced
from fedloom.engines.layers.gpu.convolutions import client_convolutions
from fedloom.engines.layers.rules import rows_may_vary
from fedloom.engines.limits import DEFAULT

from .cases import RESNET
from .gpu import kernels
from .timing import commit, duration, machine, side_by_side

Call = Callable[[], Any]


def rivals(clients: int, rows: int, width: int, precision: str, device: str) -> dict[str, Call]:
    case = RESNET.with_(rows=200, clients=2, batch=20, device=device, block=resnet18(3, 10, width))
    run = case.run(precision=precision)
    part, place = run.fed.part.values["silo0"], torch.device(device)
    weights, form = tree.apart(part.initial(run.fed.streams))
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(clients, rows, *case.shape, generator=draw).to(place)
    y = torch.randint(10, (clients, rows), generator=draw).to(place)
    rest = torch.randn(clients, rows, 10, generator=draw).to(place)
    mask = torch.ones(clients, rows, dtype=torch.bool, device=place)

    def loss(own: list[Tensor], rest: Tensor, mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return local_loss(tree.joined(form, own), part, Rows(rest, mask), Batch(x, y, mask))

    def for_all_clients(*tensors_given: Tensor) -> list[Tensor]:
        own, others = list(tensors_given[: len(weights)]), tensors_given[len(weights) :]
        with client_convolutions(place), rows_may_vary():
            return vmap(grad(loss))(own, *others)

    shared = [a.to(place) for a in weights]
    own_weights = [a.expand(clients, *a.shape).clone() for a in shared]
    all_rows = [a.flatten(0, 1) for a in (rest, mask, x, y)]
    trained = [a.clone().requires_grad_() for a in shared]
    fast = torch.compile(loss)

    def precise(f: Callable[..., Any], *tensors_given: Any) -> Call:
        def call() -> Any:
            with multiplying(precision, place):
                return f(*tensors_given)

        return call

    def floor(own: list[Tensor], *others: Tensor) -> Any:
        return torch.autograd.grad(fast(own, *others), own)

    tensors = [*own_weights, rest, mask, x, y]
    flat = tree.apart(tuple(tensors))[1]
    sizes = [False for a in tensors for _ in a.shape]  # whether they vary
    with multiplying(precision, place):
        by_torch = partial(compiled, recordings=DEFAULT.recordings)
        compiled_gradient, _, _ = traced(for_all_clients, tensors, flat, sizes, by_torch)
    return {
        "shared model": precise(grad(loss), shared, *all_rows),
        "shared model, compiled": precise(floor, trained, *all_rows),
        "clients": precise(for_all_clients, *tensors),
        "clients, compiled": precise(torch.no_grad()(compiled_gradient), *tensors),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rows", type=int, default=40, help="of a client")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", nargs="*", default=["tf32", "bf16"])
    parser.add_argument("--profile", action="store_true", help="say which kernels take longest")
    given = parser.parse_args()
    print(f"{machine()}; commit {commit()}")
    for precision in given.precision:
        calls = rivals(given.clients, given.rows, given.width, precision, given.device)
        best = {name: side_by_side({name: call}, 2)[name] for name, call in calls.items()}
        print(f"{precision}: " + ", ".join(f"{name} {duration(t)}" for name, t in best.items()))
        for name in [name for name in calls if given.profile and "compiled" in name]:
            print(f"{name}: {kernels(calls[name])}", flush=True)


if __name__ == "__main__":
    main()
