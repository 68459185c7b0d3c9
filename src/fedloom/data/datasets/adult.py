"""Adult, or census income: does a person earn more than 50,000 dollars?"""

from __future__ import annotations

import numpy as np

from ...core.errors import DataError
from ..catalog import Files, dataset
from ..dataset import Dataset
from .common import OWN_BUILD, block, labels, matrix, split, standardise, table

NUMBERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
CATEGORIES = (
    "workclass",
    "education",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native_country",
)


@dataset(
    "adult",
    about="32,561 people of the 1994 census, 6 numbers and 8 categories, income over 50K",
    files={
        "adult_train.parquet": "efaa8e29e708e0b7f5ca7e14e8050d832b7d1eeed5b5ec36ace179981e4f1df3"
    },
    get=(
        "adult_train.parquet: adult.data of UCI's data set 2 without blanks, columns "
        f"{', '.join((*NUMBERS, *CATEGORIES))}, label. {OWN_BUILD}"
    ),
    folder="adult",
)
def adult(files: Files) -> Dataset:
    """Numbers standardised, categories one-hot in alphabetical order, unknown ('?') among them."""
    columns = table(files["adult_train.parquet"])
    if set(columns["label"]) - {"<=50K", ">50K"}:
        raise DataError(f"{files['adult_train.parquet']}: labels other than <=50K and >50K")
    test = split(len(columns["label"]), 0.25, "adult")
    parts, names = [standardise(matrix(columns, NUMBERS), ~test)], list(NUMBERS)
    for name in CATEGORIES:
        known = np.unique(columns[name])
        parts.append((columns[name][:, None] == known).astype(np.float32))
        names.extend(f"{name}={value}" for value in known)
    return Dataset(
        name="adult",
        ids=np.arange(len(test)),
        blocks={"features": block("adult", np.concatenate(parts, axis=1))},
        y=labels("adult", columns["label"] == ">50K", 2),
        test=test,
        goal="binary",
        columns={"features": tuple(names)},
        keys={name: columns[name] for name in CATEGORIES},
        note="the official training part only; test rows are drawn from it",
    )
