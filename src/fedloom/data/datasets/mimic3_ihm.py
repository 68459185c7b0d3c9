"""MIMIC-III in-hospital mortality, from a user's own run of the public benchmark."""

from __future__ import annotations

import numpy as np

from ...core.errors import DataError
from ..catalog import Files, dataset
from ..dataset import Dataset
from .common import arrays, block, labels

SHAPE = (48, 76)


@dataset(
    "mimic3-ihm",
    about="intensive-care stays of MIMIC-III, 48 hours x 76 channels, death in hospital",
    files={"train.npz": None, "test.npz": None},
    get="""\
MIMIC-III needs a PhysioNet account. Make the in-hospital-mortality task of
github.com/YerevaNN/mimic3-benchmarks, then save, where mimic3models/in_hospital_mortality/main.py
has its readers, discretizer (1 hour) and normalizer, train.npz and test.npz with X [stays, 48, 76]
and y [stays] of 0 and 1:
    parts = [utils.load_data(r, discretizer, normalizer) for r in (train_reader, val_reader)]
    x, y = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    np.savez("train.npz", X=x.astype("float32"), y=y)
    x, y = utils.load_data(test_reader, discretizer, normalizer)
    np.savez("test.npz", X=x.astype("float32"), y=y)""",
    folder="mimic3-ihm",
)
def mimic3_ihm(files: Files) -> Dataset:
    """The arrays as they are: the benchmark has normalised them."""
    parts = {file: arrays(files[file], "X", "y") for file in ("train.npz", "test.npz")}
    for file, (x, y) in parts.items():
        if x.shape[1:] != SHAPE or y.shape != x.shape[:1]:
            raise DataError(
                f"{files[file]}: X is {x.shape} and y {y.shape}, not [stays, 48, 76] and [stays]"
            )
    x, y = (np.concatenate(pair) for pair in zip(*parts.values(), strict=True))
    return Dataset(
        name="mimic3-ihm",
        ids=np.arange(len(y)),
        blocks={"series": block("mimic3-ihm", x)},
        y=labels("mimic3-ihm", y, 2),
        test=np.arange(len(y)) >= len(parts["train.npz"][1]),
        goal="binary",
    )
