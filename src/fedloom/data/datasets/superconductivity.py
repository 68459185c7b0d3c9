"""Critical temperatures of superconductors (Hamidieh 2018)."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ...core.errors import DataError, SettingError
from ..catalog import Files, dataset
from ..dataset import Dataset
from . import common
from .common import split

TARGET = "critical_temp"
TEST_SHARE = 1_263 / 21_263  # the papers train on 20,000 rows


@dataset(
    "superconductivity",
    about="21,263 superconductors, 81 features of their composition, critical temperature",
    files={
        "superconductivity.parquet": (
            "2df23a54a8bb8856ba5d5e20f5348192a1e802de9602e6cebc592136a22ad01b"
        )
    },
    get=(
        "superconductivity.parquet: the 82 columns of train.csv of UCI's data set 464, same names "
        f"and order. {common.OWN_BUILD}"
    ),
    folder="superconductivity",
)
def superconductivity(
    files: Files,
    rows: Annotated[int | None, "only the first so many (the file is sorted); none: all"] = None,
    standardise: Annotated[bool, "centre and scale columns and labels"] = True,
) -> Dataset:
    """`rows` takes the first rows: the file is sorted by family of material, so they are hotter
    than the rest."""
    columns = common.table(files["superconductivity.parquet"])
    names = tuple(name for name in columns if name != TARGET)
    if len(names) != 81:
        raise DataError(f"{files['superconductivity.parquet']}: {len(names)} features, not 81")
    size = len(columns[TARGET])
    if rows is not None and not 4 <= rows <= size:
        raise SettingError(f"superconductivity: rows = {rows} is not in 4..{size}")
    x, y = common.matrix(columns, names)[:rows], columns[TARGET][:rows]
    test = split(len(x), TEST_SHARE, "superconductivity")
    note = (
        "RECONSTRUCTED: the features were recomputed from the compositions and agree with all "
        "4,252 original rows at hand; the other 17,012 rows were not compared"
    )
    if standardise:
        x = common.standardise(x, ~test)
        target, scale = common.standard_target("superconductivity", y, ~test)
        note = f"{note}; {scale}"
    else:
        target = common.block("superconductivity", y)
    return Dataset(
        name="superconductivity",
        ids=np.arange(len(x)),
        blocks={"features": common.block("superconductivity", x)},
        y=target,
        test=test,
        goal="number",
        columns={"features": names},
        note=note,
    )
