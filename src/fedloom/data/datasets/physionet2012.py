"""PhysioNet/CinC Challenge 2012: 48 hours of intensive care, death in hospital."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from ..catalog import Files, dataset
from ..dataset import Dataset
from .common import OWN_BUILD, arrays, block, choice, labels, standardise

TestSet = Literal["b", "c"]
Channels = Literal[37, 74, 76]

ARRAYS = ("X", "mask", "static", "static_names", "y", "ids")


@dataset(
    "physionet2012",
    about="8,000 intensive-care stays, 48 hours x 76 channels, death in hospital",
    files={
        "physionet2012_set_a.npz": (
            "d39a876b25680989d803c4cb26269d113e4f8936b5a8f538b4fb1fee7723294d"
        ),
        "physionet2012_set_b.npz": (
            "98e2952bf5bc8a05c0ad333be8616fbbaeab1e6b7a622fa90dbf9b61a6ffb41f"
        ),
        "physionet2012_set_c.npz": (
            "e169b41ef693d4649e5ab3e34a12fbb5d35e27a34d7954a53ec9e3d89122bb36"
        ),
    },
    get=(
        "physionet2012_set_a.npz, _b and _c, each made from the text files of "
        "physionet.org/content/challenge-2012: X [stays, 48, 37] hourly, last value carried "
        "forward, set-a medians before the first reading; mask [stays, 48, 37]; static "
        "[stays, 8] and static_names (Age, Gender, Height, Weight0, four ICU_...); y; ids. "
        f"{OWN_BUILD}"
    ),
    folder="physionet2012",
)
def physionet2012(
    files: Files,
    test_set: Annotated[TestSet, "which of the challenge's other sets is for testing"] = "b",
    channels: Annotated[
        Channels, "37: values; 74: with whether each was measured; 76: age and gender too"
    ] = 76,
) -> Dataset:
    """Set a for training, set b or c for testing. Channels: 37 readings, 37 times whether one was
    taken in that hour, age, gender (or the first 37 or 74 of these); readings and age are
    standardised over set a."""
    choice("physionet2012: test_set", test_set, TestSet)
    choice("physionet2012: channels", channels, Channels)
    parts = [arrays(files[f"physionet2012_set_{part}.npz"], *ARRAYS) for part in ("a", test_set)]
    x, mask, static, _, y, ids = (np.concatenate(pair) for pair in zip(*parts, strict=True))
    names = [str(name) for name in parts[0][ARRAYS.index("static_names")]]
    test = np.arange(len(ids)) >= len(parts[0][-1])
    person = static[:, [names.index("Age"), names.index("Gender")]]
    person[:, :1] = standardise(person[:, :1], ~test)
    hourly = np.broadcast_to(person[:, None], (*x.shape[:2], 2))
    series = np.concatenate([standardise(x, ~test), mask.astype(np.float32), hourly], axis=2)
    units = [name for name in names if name.startswith("ICU_")]
    unit = static[:, [names.index(name) for name in units]].argmax(axis=1)
    return Dataset(
        name="physionet2012",
        ids=ids,
        blocks={"series": block("physionet2012", series[:, :, :channels])},
        y=labels("physionet2012", y, 2),
        test=test,
        goal="binary",
        keys={"icu": np.array([name.removeprefix("ICU_") for name in units])[unit]},
        note=(
            "an open stand-in for MIMIC-III in-hospital mortality: the same shape, 48 x 76, but "
            "other patients and other variables; outliers are kept"
        ),
    )
