"""Registered data sets of images, one file each; idx.py reads the files of MNIST and its like.

May import: core, data.
"""

from . import cifar10, cifar10_subset, coil20, fashion_mnist, mnist, modelnet10

__all__ = ["cifar10", "cifar10_subset", "coil20", "fashion_mnist", "mnist", "modelnet10"]
