"""Algorithms, one file each. Importing this package registers them."""

from .alone import Alone
from .base import Algorithm, Draw, Facts, MinibatchSGD, State, Step, Twin
from .central import Central
from .hyfem import HyFEMAvg, HyFEMProx
from .stepsize import Constant, Cosine, InverseSqrt, StepDecay
from .tdcd import TDCD
from .tdcd_private_labels import TDCDPrivateLabels

__all__ = [
    "TDCD",
    "Algorithm",
    "Alone",
    "Central",
    "Constant",
    "Cosine",
    "Draw",
    "Facts",
    "HyFEMAvg",
    "HyFEMProx",
    "InverseSqrt",
    "MinibatchSGD",
    "State",
    "Step",
    "StepDecay",
    "TDCDPrivateLabels",
    "Twin",
]
