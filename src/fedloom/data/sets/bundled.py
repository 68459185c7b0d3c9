"""Sets that come with scikit-learn: nothing to download."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...rng import Streams
from ..catalog import dataset
from ..dataset import Dataset, Goal


def split(size: int, share: float, name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are for testing: a fixed share, drawn once and for all by the set's name."""
    test = np.zeros(size, dtype=bool)
    test[Streams(0).common("test rows", name).permutation(size)[: round(share * size)]] = True
    return test


def _table(name: str, bunch: Any, goal: Goal, classes: tuple[str, ...] = ()) -> Dataset:
    return Dataset(
        name=name,
        ids=np.arange(len(bunch.data)),
        blocks={"features": torch.tensor(bunch.data, dtype=torch.float32)},
        y=torch.tensor(bunch.target),
        test=split(len(bunch.data), 0.25, name),
        goal=goal,
        columns={"features": tuple(map(str, bunch.feature_names))},
        classes=classes,
    )


@dataset("digits", about="1,797 handwritten digits of 8 x 8 pixels, 10 classes (scikit-learn)")
def digits() -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Dataset(
        name="digits",
        ids=np.arange(len(bunch.target)),
        blocks={"pixels": torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16},
        y=torch.tensor(bunch.target),
        test=split(len(bunch.target), 0.25, "digits"),
        goal="classes",
        classes=tuple("0123456789"),
    )


@dataset("breast-cancer", about="569 biopsies, 30 features, benign or malignant (scikit-learn)")
def breast_cancer() -> Dataset:
    from sklearn.datasets import load_breast_cancer

    return _table("breast-cancer", load_breast_cancer(), "binary")


@dataset("wine", about="178 wines, 13 features, 3 cultivars (scikit-learn)")
def wine() -> Dataset:
    from sklearn.datasets import load_wine

    return _table("wine", load_wine(), "classes", ("0", "1", "2"))


@dataset("iris", about="150 flowers, 4 features, 3 species (scikit-learn)")
def iris() -> Dataset:
    from sklearn.datasets import load_iris

    bunch = load_iris()
    return _table("iris", bunch, "classes", tuple(map(str, bunch.target_names)))


@dataset("diabetes", about="442 patients, 10 features, disease progression (scikit-learn)")
def diabetes() -> Dataset:
    from sklearn.datasets import load_diabetes

    return _table("diabetes", load_diabetes(), "number")
