"""House prices in Ames, Iowa (De Cock 2011): nine features."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from ..catalog import Files, dataset
from ..dataset import Dataset
from .common import OWN_BUILD, block, choice, matrix, split, standard_target, standardise, table

Which = Literal["2930", "1460"]

FEATURES = (
    "Fireplaces",
    "1stFlrSF",
    "OverallQual",
    "TotRmsAbvGrd",
    "GrLivArea",
    "LotArea",
    "GarageArea",
    "TotalBsmtSF",
    "BedroomAbvGr",
)
FILES = {
    "2930": ("ames_9feat_2930.csv.gz", "Order"),
    "1460": ("kaggle_train_9feat_1460.csv.gz", "Id"),
}


@dataset(
    "ames",
    about="2,928 houses in Ames, Iowa, 9 features, sale price",
    files={
        "ames_9feat_2930.csv.gz": (
            "cd0b104b522953675e73febf61a309ec1b6ee3036de255413aef2177452335f5"
        ),
        "kaggle_train_9feat_1460.csv.gz": (
            "86b5729a85d79c37cb93fa785ce215b1f47d1c2e08c6d76d42f75386d552d43f"
        ),
    },
    get=(
        f"Columns {', '.join(FEATURES)}, SalePrice of AmesHousing.csv (De Cock 2011), with Order, "
        "as ames_9feat_2930.csv.gz, and of train.csv of Kaggle's house-prices competition, with "
        f"Id, as kaggle_train_9feat_1460.csv.gz. {OWN_BUILD}"
    ),
    folder="house_prices_ames",
)
def ames(
    files: Files, which: Annotated[Which, "the full table of houses, or the competition's"] = "2930"
) -> Dataset:
    """Features and price standardised; `which` file, by its number of rows."""
    choice("ames: which", which, Which)
    file, key = FILES[which]
    columns = table(files[file])
    x = matrix(columns, FEATURES)
    whole = np.flatnonzero(~np.isnan(x).any(axis=1))
    dropped = len(x) - len(whole)
    x = x[whole]
    test = split(len(x), 0.3, "ames")
    y, scale = standard_target("ames", columns["SalePrice"][whole], ~test)
    return Dataset(
        name="ames",
        ids=columns[key][whole],
        blocks={"features": block("ames", standardise(x, ~test))},
        y=y,
        test=test,
        goal="number",
        columns={"features": FEATURES},
        note=f"{dropped} rows with an empty cell dropped; {scale}" if dropped else scale,
    )
