"""The idx format of MNIST and the sets shaped like it."""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ....core.errors import DataError
from ...dataset import Dataset
from ..common import Array, labels, pixels, reading

NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read_idx(path: Path) -> Array:
    """The bytes of an idx file, gzipped or not, in their shape."""
    with reading(path):
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        if raw[:3] != b"\0\0\x08":
            raise DataError(f"{path} is not an idx file of unsigned bytes")
        shape = [int(n) for n in np.frombuffer(raw, dtype=">u4", count=raw[3], offset=4)]
        body = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * len(shape))
    if body.size != math.prod(shape):
        raise DataError(f"{path} holds {body.size} bytes, its header says {math.prod(shape)}")
    return body.reshape(shape)


def digit_images(name: str, paths: Mapping[str, Path], classes: tuple[str, ...]) -> Dataset:
    """The four files as one set, training rows first; `paths` by the names without .gz."""
    parts = [read_idx(paths[file]) for file in NAMES]
    for file, part in zip(NAMES, parts, strict=True):
        if part.ndim != (3 if "images" in file else 1):
            raise DataError(f"{paths[file]} has {part.ndim} dimensions")
    train_x, train_y, test_x, test_y = parts
    x = np.concatenate([train_x, test_x])
    return Dataset(
        name=name,
        ids=np.arange(len(x)),
        blocks={"pixels": pixels(x[:, None])},
        y=labels(name, np.concatenate([train_y, test_y]), len(classes)),
        test=np.arange(len(x)) >= len(train_x),
        goal="classes",
        classes=classes,
    )
