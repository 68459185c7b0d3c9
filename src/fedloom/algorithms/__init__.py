"""Algorithms, one file each. Importing this package registers them."""

from .alone import Alone
from .base import Algorithm, Draw, Facts, MinibatchSGD, State, Step, Twin
from .central import Central
from .splitnn_async import SplitNNAsync
from .stepsize import Constant, Cosine, DelayBound, InverseSqrt, InverseTime, StepDecay
from .tdcd import TDCD
from .tdcd_private_labels import TDCDPrivateLabels
from .vafl import VAFL

__all__ = [
    "TDCD",
    "VAFL",
    "Algorithm",
    "Alone",
    "Central",
    "Constant",
    "Cosine",
    "DelayBound",
    "Draw",
    "Facts",
    "InverseSqrt",
    "InverseTime",
    "MinibatchSGD",
    "SplitNNAsync",
    "State",
    "Step",
    "StepDecay",
    "TDCDPrivateLabels",
    "Twin",
]
