"""Trees of tensors as bytes, between processes of one owner: a description in JSON, then the
contents of the tensors. Nothing in it is code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

HEAD = 8  # bytes for the length of the description


def packed(tree: Any) -> bytes:
    tensors: list[Tensor] = []
    description = json.dumps(_described(tree, tensors)).encode()
    return b"".join([len(description).to_bytes(HEAD, "big"), description, *map(_bytes, tensors)])


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
    """Reads the tensors of a parcel in turn."""

    def __init__(self, parcel: bytes, start: int, device: torch.device):
        self._parcel, self._at, self._device = parcel, start, device

    def next(self, dtype: torch.dtype, shape: list[int]) -> Tensor:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        tensor = torch.empty(shape, dtype=dtype)
        if size:
            content = np.frombuffer(self._parcel, np.uint8, size, self._at)
            tensor.view(-1).view(torch.uint8).numpy()[:] = content
        self._at += size
        return tensor.to(self._device)


def _built(description: Any, tensors: _Tensors) -> Any:
    if "tensor" in description:
        return tensors.next(getattr(torch, description["tensor"]), description["shape"])
    if "dict" in description:
        return {key: _built(part, tensors) for key, part in description["dict"]}
    if "constant" in description:
        return description["constant"]
    parts: Iterator[Any] = (_built(part, tensors) for part in description["parts"])
    if not description["of"]:
        return tuple(parts)
    kind = _kind(description["of"])
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def _kind(name: str) -> type[Any]:
    """A class of tuples or lists that is imported already."""
    module, _, path = name.partition(":")
    kind: Any = sys.modules[module]
    for part in path.split("."):
        kind = getattr(kind, part)
    if not (isinstance(kind, type) and issubclass(kind, tuple | list)):
        raise TypeError(f"{name} is no kind of tuple")
    return kind
