"""Devices, and the precision of local work.

Products may be computed in TF32 or bfloat16, as a GPU's matrix units do. Weights, their updates,
means and messages keep the model's precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

from .errors import SettingError

Precision = Literal["float32", "float64", "tf32", "bf16"]


def device_of(name: str | torch.device) -> torch.device:
    """The device of this name; SettingError where torch does not have it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingError(f"device: {name!r}; known are cpu, cuda and cuda:0, ...") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"device {name}: torch finds no GPU here")
    return device


def dtype_of(precision: Precision) -> torch.dtype:
    """The dtype of the model's weights."""
    return torch.float64 if precision == "float64" else torch.float32


def multiplying(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """A context in which products have this precision."""
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
