"""COIL-20: photographs of objects on a turntable."""

from __future__ import annotations

import numpy as np

from ....core.errors import DataError
from ...catalog import Files, dataset
from ...dataset import Dataset
from ..common import OWN_BUILD, arrays, labels, views

OFFSETS = 6
TESTED = (4, 5)


@dataset(
    "coil20",
    about="20 objects photographed from all around: 120 samples of 12 grey views, a demo set",
    files={
        "coil20_72views_32.npz": "05fcddc83ffa190da841395fe042a0c15f350172b91db1c5d7c65f4f30deeb5a"
    },
    get=(
        "coil20_72views_32.npz: X [20 objects, 72 angles, 32, 32] bytes and y, the 1,440 "
        "photographs of COIL-20 (Columbia University, CAVE) box-resized from 128 x 128. "
        f"{OWN_BUILD}"
    ),
    folder="coil20_views",
)
def coil20(files: Files) -> Dataset:
    """A sample is every sixth of the 72 photographs of an object, from one of six offsets."""
    x, y = arrays(files["coil20_72views_32.npz"], "X", "y")
    if x.shape[1:] != (72, 32, 32):
        raise DataError(f"{files['coil20_72views_32.npz']}: X is {x.shape}")
    samples = x.reshape(len(x), 12, OFFSETS, 32, 32).swapaxes(1, 2).reshape(-1, 12, 32, 32)
    offset = np.tile(np.arange(OFFSETS), len(x))
    return Dataset(
        name="coil20",
        ids=np.arange(len(samples)),
        blocks=views(samples),
        y=labels("coil20", np.repeat(y, OFFSETS), len(x)),
        test=np.isin(offset, TESTED),
        goal="classes",
        classes=tuple(f"object {k + 1}" for k in range(len(x))),
        keys={"offset": offset},
        note="a demo set, not a benchmark: samples of one object are 5 degrees apart",
    )
