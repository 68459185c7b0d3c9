"""Registered data sets, one file each; those of images are in images/. Importing this package
registers them.

May import: core, data.
"""

from . import (
    adult,
    ames,
    bundled,
    credit_default,
    images,
    mfeat,
    mimic3_ihm,
    parkinson,
    physionet2012,
    sqoe4,
    superconductivity,
    synthetic,
)

__all__ = [
    "adult",
    "ames",
    "bundled",
    "credit_default",
    "images",
    "mfeat",
    "mimic3_ihm",
    "parkinson",
    "physionet2012",
    "sqoe4",
    "superconductivity",
    "synthetic",
]
