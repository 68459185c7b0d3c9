"""Registered data sets, one file each. Importing this package registers them.

May import: core, data.
"""

from . import (
    adult,
    ames,
    bundled,
    cifar10,
    cifar10_subset,
    coil20,
    credit_default,
    fashion_mnist,
    mfeat,
    mimic3_ihm,
    mnist,
    modelnet10,
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
    "cifar10",
    "cifar10_subset",
    "coil20",
    "credit_default",
    "fashion_mnist",
    "mfeat",
    "mimic3_ihm",
    "mnist",
    "modelnet10",
    "parkinson",
    "physionet2012",
    "sqoe4",
    "superconductivity",
    "synthetic",
]
