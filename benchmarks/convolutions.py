"""`python -m benchmarks.convolutions`: ways to convolve for many clients at once, on a GPU.

For the layers of a ResNet18 on CIFAR halves: milliseconds of a convolution and of its gradients by
the image and by the weights, for one shared model on all rows (the floor), and for clients with
weights of their own by cuDNN's grouped convolutions, by FedLoom's kernels, and as
engines/layers/gpu/convolutions.py chooses.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedloom.engines.layers.gpu.convolutions import Layer

from .timing import commit, machine, once

aten = torch.ops.aten
LAYERS = [  # channels, outputs, height, width, taps, stride; how many such layers
    ((3, 64, 32, 16, 3, 1), 1),
    ((64, 64, 32, 16, 3, 1), 4),
    ((64, 128, 32, 16, 3, 2), 1),
    ((64, 128, 32, 16, 1, 2), 1),
    ((128, 128, 16, 8, 3, 1), 3),
    ((128, 256, 16, 8, 3, 2), 1),
    ((128, 256, 16, 8, 1, 2), 1),
    ((256, 256, 8, 4, 3, 1), 3),
    ((256, 512, 8, 4, 3, 2), 1),
    ((256, 512, 8, 4, 1, 2), 1),
    ((512, 512, 4, 2, 3, 1), 3),
]
WAYS = ("shared", "cuDNN", "kernels", "chosen")


def channels_last(a: Tensor) -> Tensor:
    return a.contiguous(memory_format=torch.channels_last)


def ways(shape: tuple[int, ...], clients: int, rows: int, kind: torch.dtype) -> dict[str, list]:
    """For each way, three calls."""
    from fedloom.engines.layers.gpu import kernels

    channels, outputs, high, wide, taps, stride = shape
    padding = taps // 2
    settings = [stride, stride], [padding, padding], [1, 1], False, [0, 0]

    def images(count: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(count, groups * channels, high, wide, device="cuda", dtype=kind)
        weight = torch.randn(groups * outputs, channels, taps, taps, device="cuda", dtype=kind)
        gradient = torch.randn_like(aten.convolution(x, weight, None, *settings, groups))
        return channels_last(x), channels_last(weight), channels_last(gradient)

    def by_cudnn(
        groups: int, x: Tensor, weight: Tensor, gradient: Tensor
    ) -> list[Callable[[], Any]]:
        def backward(of: int) -> Any:
            wanted = [of == 0, of == 1, False]
            return aten.convolution_backward(gradient, x, weight, None, *settings, groups, wanted)

        return [
            lambda: aten.convolution(x, weight, None, *settings, groups),
            lambda: backward(0),
            lambda: backward(1),
        ]

    x, weight, gradient = images(rows, clients)
    transposed = weight.unflatten(0, (clients, -1)).permute(0, 3, 4, 2, 1).contiguous()
    layer = Layer(x, weight, [stride, stride], [padding, padding], clients)
    by_kernels = [
        lambda: kernels.forward(x, weight, clients, stride, padding),
        lambda: kernels.by_image(gradient, transposed, high, wide, clients, stride, padding),
        lambda: kernels.by_weight(gradient, x, taps, taps, clients, stride, padding),
    ]
    return {
        "shared": by_cudnn(1, *images(rows * clients, 1)),
        "cuDNN": by_cudnn(clients, x, weight, gradient),
        "kernels": by_kernels if channels % 16 == 0 else [],
        "chosen": [
            layer.forward,
            lambda: layer.by_image(gradient),
            lambda: layer.by_weight(gradient),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rows", type=int, default=40, help="of a client")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    print(f"{machine()}; commit {commit()}; {args.clients} clients of {args.rows} rows")
    for kind in (torch.float32, torch.bfloat16):
        total = dict.fromkeys(WAYS, 0.0)
        for shape, times in LAYERS:
            times_by_way = {}
            for way, calls in ways(shape, args.clients, args.rows, kind).items():
                for call in calls * 2:
                    call()
                times_by_way[way] = [once(call, 5) * 1e3 for call in calls]
                total[way] += times * sum(times_by_way[way])
            texts = (
                f"{way} {' '.join(f'{t:.2f}' for t in t3)}"
                for way, t3 in times_by_way.items()
                if t3
            )
            print(f"{kind} {shape} x {times}: {'; '.join(texts)}", flush=True)
        print(f"{kind} in all: " + ", ".join(f"{w} {t:.1f} ms" for w, t in total.items()))


if __name__ == "__main__":
    main()
