"""Fashion-MNIST, with its official split."""

from __future__ import annotations

import numpy as np

from ....core.errors import DataError
from ...catalog import Files, dataset
from ...dataset import Dataset
from .idx import NAMES, digit_images

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataset(
    "fashion-mnist",
    about="70,000 articles of clothing of 28 x 28 pixels, 10 classes, official split",
    files=dict.fromkeys(f"{name}.gz" for name in NAMES),
    get=(
        "The four files of data/fashion in github.com/zalandoresearch/fashion-mnist (Debian has "
        "them in the package dataset-fashion-mnist), gzipped or unpacked; they carry the names of "
        "MNIST's files, so they need a folder of their own."
    ),
)
def fashion_mnist(files: Files) -> Dataset:
    """Pixels in 0..1."""
    paths = {name: files[f"{name}.gz"] for name in NAMES}
    data = digit_images("fashion-mnist", paths, CLASSES)
    # MNIST's files have the same names, and no checksum tells them apart here.
    for part in (data.test, ~data.test):
        if len(np.unique(np.bincount(data.y[part], minlength=10))) > 1:
            raise DataError(
                f"{paths[NAMES[0]].parent}: classes are not equally frequent, as they are in "
                "Fashion-MNIST; are these MNIST's files?"
            )
    return data
