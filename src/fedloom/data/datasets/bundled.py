"""Sets that come with scikit-learn: nothing to download."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch

from ..catalog import dataset
from ..dataset import Dataset, Goal
from . import common

Standardise = Annotated[bool, "centre and scale columns, and numbers to predict"]


def _table(
    name: str, bunch: Any, goal: Goal, standardise: bool, classes: tuple[str, ...] = ()
) -> Dataset:
    x, y, test = bunch.data, torch.tensor(bunch.target), common.split(len(bunch.data), 0.25, name)
    note = ""
    if standardise:
        x = common.standardise(x, ~test)
        if goal == "number":
            y, note = common.standard_target(name, bunch.target, ~test)
    return Dataset(
        name=name,
        ids=np.arange(len(x)),
        blocks={"features": torch.tensor(x, dtype=torch.float32)},
        y=y,
        test=test,
        goal=goal,
        columns={"features": tuple(map(str, bunch.feature_names))},
        classes=classes,
        note=note,
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
        test=common.split(len(bunch.target), 0.25, "digits"),
        goal="classes",
        classes=tuple("0123456789"),
    )


@dataset("breast-cancer", about="569 biopsies, 30 features, benign or malignant (scikit-learn)")
def breast_cancer(standardise: Standardise = True) -> Dataset:
    from sklearn.datasets import load_breast_cancer

    return _table("breast-cancer", load_breast_cancer(), "binary", standardise)


@dataset("wine", about="178 wines, 13 features, 3 cultivars (scikit-learn)")
def wine(standardise: Standardise = True) -> Dataset:
    from sklearn.datasets import load_wine

    return _table("wine", load_wine(), "classes", standardise, ("0", "1", "2"))


@dataset("iris", about="150 flowers, 4 features, 3 species (scikit-learn)")
def iris(standardise: Standardise = True) -> Dataset:
    from sklearn.datasets import load_iris

    bunch = load_iris()
    return _table("iris", bunch, "classes", standardise, tuple(map(str, bunch.target_names)))


@dataset("diabetes", about="442 patients, 10 features, disease progression (scikit-learn)")
def diabetes(standardise: Standardise = True) -> Dataset:
    from sklearn.datasets import load_diabetes

    return _table("diabetes", load_diabetes(), "number", standardise)
