"""Losses: of classes, of numbers, and of your own."""

from .base import Loss
from .choose import LossLike, loss_of
from .of_classes import BinaryCrossEntropy, CrossEntropy
from .of_numbers import Huber, Poisson, Quantile, Squared
from .own import OwnLoss

__all__ = [
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Huber",
    "Loss",
    "LossLike",
    "OwnLoss",
    "Poisson",
    "Quantile",
    "Squared",
    "loss_of",
]
