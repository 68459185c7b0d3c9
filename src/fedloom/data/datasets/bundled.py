"""Sets that come with scikit-learn, the extra `data`: nothing to download."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch

from ...core.extras import need
from ..catalog import dataset
from ..dataset import Dataset, Goal
from . import common

Standardise = Annotated[bool, "centre and scale columns, and numbers to predict"]


def _bundled(name: str) -> Any:
    need("data", f"the data set {name.replace('_', '-')}")
    import sklearn.datasets

    return getattr(sklearn.datasets, f"load_{name}")()


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
    bunch = _bundled("digits")
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
    return _table("breast-cancer", _bundled("breast_cancer"), "binary", standardise)


@dataset("wine", about="178 wines, 13 features, 3 cultivars (scikit-learn)")
def wine(standardise: Standardise = True) -> Dataset:
    return _table("wine", _bundled("wine"), "classes", standardise, ("0", "1", "2"))


@dataset("iris", about="150 flowers, 4 features, 3 species (scikit-learn)")
def iris(standardise: Standardise = True) -> Dataset:
    bunch = _bundled("iris")
    return _table("iris", bunch, "classes", standardise, tuple(map(str, bunch.target_names)))


@dataset("diabetes", about="442 patients, 10 features, disease progression (scikit-learn)")
def diabetes(standardise: Standardise = True) -> Dataset:
    return _table("diabetes", _bundled("diabetes"), "number", standardise)
