"""Algorithms, one file each. Importing this package registers them."""

from .alone import Alone
from .central import Central
from .contract import Algorithm, Draw, Facts, MinibatchSGD, State, Step, Twin
from .fedavg import FedAvg, FedProx
from .fedbcd import FedBCD
from .hyfem.hyfem import HyFEMAvg, HyFEMProx
from .splitnn import SplitNN
from .splitnn_u import SplitNNU
from .step_sizes import Constant, Cosine, DelayBound, InverseSqrt, InverseTime, StepDecay
from .tdcd import TDCD
from .tdcd_private_labels import TDCDPrivateLabels
from .vafl.splitnn_async import SplitNNAsync
from .vafl.vafl import VAFL

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
