"""Algorithms, one file each. Importing this package registers them."""

from .alone import Alone
from .base import Algorithm, Draw, Facts, MinibatchSGD, State, Step, Twin
from .central import Central
from .fedavg import FedAvg, FedProx
from .fedbcd import FedBCD
from .hyfem import HyFEMAvg, HyFEMProx
from .splitnn import SplitNN
from .splitnn_async import SplitNNAsync
from .splitnn_u import SplitNNU
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
    "FedAvg",
    "FedBCD",
    "FedProx",
    "HyFEMAvg",
    "HyFEMProx",
    "InverseSqrt",
    "InverseTime",
    "MinibatchSGD",
    "SplitNN",
    "SplitNNAsync",
    "SplitNNU",
    "State",
    "Step",
    "StepDecay",
    "TDCDPrivateLabels",
    "Twin",
]
