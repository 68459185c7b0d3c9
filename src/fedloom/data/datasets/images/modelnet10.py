"""ModelNet10: objects seen by 12 cameras."""

from __future__ import annotations

import numpy as np

from ...catalog import Files, dataset
from ...dataset import Dataset
from ..common import OWN_BUILD, arrays, labels, views


@dataset(
    "modelnet10",
    about="4,887 objects in 12 grey views of 32 x 32 pixels, 10 classes, official split",
    files={
        "modelnet10_12views_32_train.npz": (
            "6d2bf11fe34ae7c044a93278944e4c1f08fc3cf197eb9da79fcf9fe2b0fba5f8"
        ),
        "modelnet10_12views_32_test.npz": (
            "003ec20469f2cfd9c01987d02be96d3ceddc2d4088fed253cd939962b0b32d31"
        ),
    },
    get=(
        "modelnet10_12views_32_train.npz and _test.npz: X [objects, 12, 32, 32] bytes, y, valid, "
        "classes; view k is the object seen from azimuth 30 k degrees, rendered from "
        f"ModelNet10 (modelnet.cs.princeton.edu). {OWN_BUILD}"
    ),
    folder="modelnet10_views",
)
def modelnet10(files: Files) -> Dataset:
    """One block for each view; ids count all objects, those with hardly any voxels left out."""
    names = ("X", "y", "valid")
    train = arrays(files["modelnet10_12views_32_train.npz"], *names, "classes")
    test = arrays(files["modelnet10_12views_32_test.npz"], *names)
    x, y, valid = (np.concatenate(pair) for pair in zip(train[:3], test, strict=True))
    usable = np.flatnonzero(valid)
    classes = tuple(map(str, train[3]))
    return Dataset(
        name="modelnet10",
        ids=usable,
        blocks=views(x[usable]),
        y=labels("modelnet10", y[usable], len(classes)),
        test=usable >= len(train[1]),
        goal="classes",
        classes=classes,
        note=(
            "views rendered from voxels of 24^3, not the images of MVCNN; 10 classes, not "
            f"ModelNet40; {len(x) - len(usable)} nearly empty objects left out"
        ),
    )
