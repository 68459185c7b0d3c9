"""Default of credit card clients (Yeh 2009)."""

from __future__ import annotations

from ..catalog import Files, dataset
from ..dataset import Dataset
from .common import OWN_BUILD, block, labels, matrix, split, standardise, table

MONTHS = range(1, 7)
BLOCKS = {
    "demographics": ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"),
    "repayment": tuple(f"PAY_{k}" for k in MONTHS),
    "bills": tuple(f"BILL_AMT{k}" for k in MONTHS),
    "payments": tuple(f"PAY_AMT{k}" for k in MONTHS),
}
TARGET = "default_next_month"


@dataset(
    "credit-default",
    about="30,000 credit card clients, 23 features in 4 blocks, default in the next month",
    files={
        "credit_default.parquet": "1ad249e9750443cb47795af458221cc0fc4f5e2966baad9bc2d25ac020296bba"
    },
    get=(
        "credit_default.parquet: the columns of UCI's data set 350 (also UCI_Credit_Card.csv in "
        "github.com/FederatedAI/FATE, examples/data), with PAY_0 named PAY_1 and the target "
        f"{TARGET}. {OWN_BUILD}"
    ),
    folder="credit_default",
)
def credit_default(files: Files) -> Dataset:
    """All columns standardised, the codes (SEX, EDUCATION, MARRIAGE) taken as numbers."""
    columns = table(files["credit_default.parquet"])
    test = split(len(columns["ID"]), 0.25, "credit-default")
    return Dataset(
        name="credit-default",
        ids=columns["ID"],
        blocks={
            name: block("credit-default", standardise(matrix(columns, names), ~test))
            for name, names in BLOCKS.items()
        },
        y=labels("credit-default", columns[TARGET], 2),
        test=test,
        goal="binary",
        columns=BLOCKS,
        keys={name: columns[name] for name in ("SEX", "EDUCATION", "MARRIAGE")},
    )
