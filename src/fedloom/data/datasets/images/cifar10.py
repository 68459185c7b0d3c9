"""CIFAR-10 in its official versions, binary and for Python, with its official split."""

from __future__ import annotations

import pickletools
from pathlib import Path

import numpy as np

from ....core.errors import DataError
from ...catalog import Files, dataset
from ...dataset import Dataset
from ..common import Array, labels, pixels, reading

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
PARTS = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
PIXELS = 3 * 32 * 32

ImagesAndLabels = tuple[Array, Array]  # images [n, 3072], labels [n]


@dataset(
    "cifar10",
    about="60,000 colour photographs of 32 x 32 pixels, 10 classes, official split",
    files=dict.fromkeys(f"{part}.bin" for part in PARTS),
    get=(
        "The binary version, cifar-10-binary.tar.gz, of Krizhevsky's page "
        "(www.cs.toronto.edu/~kriz/cifar.html), unpacked: data_batch_1.bin to data_batch_5.bin "
        "and test_batch.bin. With the version for Python, use cifar10-python."
    ),
    folder="cifar-10-batches-bin",
)
def cifar10(files: Files) -> Dataset:
    """Pixels in 0..1, colours first."""
    return _joined("cifar10", [binary_part(files[f"{part}.bin"]) for part in PARTS])


@dataset(
    "cifar10-python",
    about="CIFAR-10 from its version for Python",
    files=dict.fromkeys(PARTS),
    get=(
        "The version for Python, cifar-10-python.tar.gz, of Krizhevsky's page "
        "(www.cs.toronto.edu/~kriz/cifar.html), unpacked: data_batch_1 to data_batch_5 and "
        "test_batch."
    ),
    folder="cifar-10-batches-py",
)
def cifar10_python(files: Files) -> Dataset:
    """Pixels in 0..1, colours first."""
    return _joined("cifar10-python", [python_part(files[part]) for part in PARTS])


def binary_part(path: Path) -> ImagesAndLabels:
    """Images and labels of a binary file: records of a label and 3,072 bytes."""
    with reading(path):
        raw = np.fromfile(path, dtype=np.uint8)
    if raw.size == 0 or raw.size % (1 + PIXELS):
        raise DataError(f"{path}: {raw.size} bytes are not records of {1 + PIXELS} bytes")
    rows = raw.reshape(-1, 1 + PIXELS)
    return rows[:, 1:], rows[:, 0]


def python_part(path: Path) -> ImagesAndLabels:
    """Images and labels of a pickled {"data": array, "labels": list}. Unpickling can run any code,
    so pickle's operations are listed and not executed: the one long string is the images, the
    numbers after "labels" are the labels."""
    images, labels, key = b"", [], ""
    with reading(path):
        for operation, value, _ in pickletools.genops(path.read_bytes()):
            if isinstance(value, str | bytes) and value in KEYS:
                key = value if isinstance(value, str) else value.decode()
            elif key == "data" and isinstance(value, str | bytes) and len(value) >= PIXELS:
                images = value.encode("latin-1") if isinstance(value, str) else value
            elif key == "labels" and operation.name in ("BININT", "BININT1", "BININT2"):
                labels.append(value)
    if not images or len(images) != PIXELS * len(labels):
        raise DataError(f"{path} is not a batch of CIFAR-10 images and labels")
    pixel = np.frombuffer(images, dtype=np.uint8).reshape(-1, PIXELS)
    return pixel, np.array(labels, dtype=np.int64)


KEYS = ("data", "labels", "filenames", "batch_label", b"data", b"labels", b"filenames")


def _joined(name: str, parts: list[ImagesAndLabels]) -> Dataset:
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    whole = [len(labels) for _, labels in parts] == [10_000] * 6
    return Dataset(
        name=name,
        ids=np.arange(len(y)),
        blocks={"pixels": pixels(x.reshape(-1, 3, 32, 32))},
        y=labels(name, y, 10),
        test=np.arange(len(y)) >= len(y) - len(parts[-1][1]),
        goal="classes",
        classes=CLASSES,
        note="" if whole else f"{len(y)} images, not the official 6 x 10,000",
    )
