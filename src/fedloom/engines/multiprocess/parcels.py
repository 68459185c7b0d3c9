"""Trees of tensors as bytes, between processes of one owner: a description in JSON, then the
tensors as they lie in memory. Nothing in it is code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

HEAD = 8  # bytes that say how long the description is


def packed(tree: Any) -> bytes:
    tensors: list[Tensor] = []
    told = json.dumps(_described(tree, tensors)).encode()
    return b"".join([len(told).to_bytes(HEAD, "big"), told, *map(_bytes, tensors)])


def unpacked(parcel: bytes, device: torch.device) -> Any:
    start = HEAD + int.from_bytes(parcel[:HEAD], "big")
    return _built(json.loads(parcel[HEAD:start]), _Tensors(parcel, start, device))


def _bytes(a: Tensor) -> bytes:
    return a.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _described(tree: Any, tensors: list[Tensor]) -> Any:
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return {"tensor": str(tree.dtype).removeprefix("torch."), "shape": list(tree.shape)}
    if isinstance(tree, dict):
        return {"dict": [[_key(key), _described(a, tensors)] for key, a in tree.items()]}
    if isinstance(tree, tuple | list):
        kind = type(tree)
        name = "" if kind is tuple else f"{kind.__module__}:{kind.__qualname__}"
        return {"of": name, "parts": [_described(a, tensors) for a in tree]}
    return {"constant": _key(tree)}


def _key(constant: Any) -> Any:
    if constant is None or isinstance(constant, bool | int | float | str):
        return constant
    raise TypeError(f"{type(constant).__name__} cannot go from one process to another")


class _Tensors:
    """Tensors one after the other in a parcel."""

    def __init__(self, parcel: bytes, start: int, device: torch.device):
        self._parcel, self._at, self._device = parcel, start, device

    def next(self, dtype: torch.dtype, shape: list[int]) -> Tensor:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        own = torch.empty(shape, dtype=dtype)
        if size:
            words = np.frombuffer(self._parcel, np.uint8, size, self._at)
            own.view(-1).view(torch.uint8).numpy()[:] = words
        self._at += size
        return own.to(self._device)


def _built(told: Any, tensors: _Tensors) -> Any:
    if "tensor" in told:
        return tensors.next(getattr(torch, told["tensor"]), told["shape"])
    if "dict" in told:
        return {key: _built(part, tensors) for key, part in told["dict"]}
    if "constant" in told:
        return told["constant"]
    parts: Iterator[Any] = (_built(part, tensors) for part in told["parts"])
    if not told["of"]:
        return tuple(parts)
    kind = _kind(told["of"])
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def _kind(name: str) -> type[Any]:
    """A kind of tuple or list that is known here already."""
    module, _, path = name.partition(":")
    found: Any = sys.modules[module]
    for part in path.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, tuple | list)):
        raise TypeError(f"{name} is no kind of tuple")
    return found
