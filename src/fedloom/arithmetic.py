"""How local work multiplies: in the model's own precision, or with fewer digits, as the matrix
units of a GPU do. Weights, their updates, means and messages keep the model's precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, get_args

import torch

from .errors import SettingError

Precision = Literal["float32", "float64", "tf32", "bf16"]


def dtype_of(precision: str) -> torch.dtype:
    """That of the model."""
    if precision not in get_args(Precision):
        known = ", ".join(get_args(Precision))
        raise SettingError(f"precision must be one of {known}, not {precision!r}")
    return torch.float64 if precision == "float64" else torch.float32


def multiplying(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Where local work is done."""
    if precision == "bf16":
        return _bf16(device)
    if precision == "tf32" and device.type == "cuda":
        return _tf32()
    return nullcontext()


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]


@contextmanager
def _bf16(device: torch.device) -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = device.type == "cuda" or before
    try:
        with torch.autocast(device.type, torch.bfloat16):
            yield
    finally:
        torch.backends.cudnn.benchmark = before
