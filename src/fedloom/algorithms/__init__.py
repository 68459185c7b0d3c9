"""Algorithms, one file each, or a package (vafl/, hyfem/). Importing this package registers them.

contract.py is what an algorithm is, shared/ what several of them use, verification/ their costs and
battery cases. May import: core, data, models, fabric, privacy; never an engine.
"""

from . import verification as _verification  # registers costs and cases
from .alone import Alone
from .central import Central
from .contract import Algorithm, State, Step
from .fedavg import FedAvg, FedProx
from .fedbcd import FedBCD
from .hyfem.hyfem import HyFEMAvg, HyFEMProx
from .shared.hub_steps import HubAdam, Relaxed
from .shared.minibatch import Draw, MinibatchSGD
from .shared.optimizers import SGD, Adam, AdamW
from .shared.step_sizes import Constant, Cosine, DelayBound, InverseSqrt, InverseTime, StepDecay
from .splitnn import SplitNN
from .splitnn_u import SplitNNU
from .tdcd import TDCD
from .tdcd_private_labels import TDCDPrivateLabels
from .vafl.splitnn_async import SplitNNAsync
from .vafl.vafl import VAFL
from .verification.battery_cases import Cases, Twin, cases
from .verification.costs import Facts, cost, total

__all__ = [
    "SGD",
    "TDCD",
    "VAFL",
    "Adam",
    "AdamW",
    "Algorithm",
    "Alone",
    "Cases",
    "Central",
    "Constant",
    "Cosine",
    "DelayBound",
    "Draw",
    "Facts",
    "FedAvg",
    "FedBCD",
    "FedProx",
    "HubAdam",
    "HyFEMAvg",
    "HyFEMProx",
    "InverseSqrt",
    "InverseTime",
    "MinibatchSGD",
    "Relaxed",
    "SplitNN",
    "SplitNNAsync",
    "SplitNNU",
    "State",
    "Step",
    "StepDecay",
    "TDCDPrivateLabels",
    "Twin",
    "cases",
    "cost",
    "total",
]

del _verification
