"""FedLoom: federated learning on data that is cut both ways.

Vertically across silos (organisations with different features of the same people), horizontally
across the clients inside each silo. Here is what a user types; `fedloom.extend` has what packages
that add to FedLoom need. See README.md and ARCHITECTURE.md.
"""

from .algorithms import (
    SGD,
    TDCD,
    VAFL,
    Adam,
    AdamW,
    Alone,
    Central,
    Constant,
    Cosine,
    DelayBound,
    FedAvg,
    FedBCD,
    FedProx,
    HubAdam,
    HyFEMAvg,
    HyFEMProx,
    InverseSqrt,
    InverseTime,
    Relaxed,
    SplitNN,
    SplitNNAsync,
    SplitNNU,
    StepDecay,
    TDCDPrivateLabels,
)
from .config.sections import Stopping
from .core import errors
from .data import datasets as _datasets  # registers the data sets
from .data.catalog import load as load_dataset
from .data.partition.arrays import partition
from .data.partition.partition import Partition
from .data.placement import Placement, Shard
from .data.tables.read import read_tables
from .fabric.schedule import Drawn
from .fabric.simclock.clock import Network
from .models.library import cnn, linear, lstm, mlp, resnet18
from .models.task import Task
from .privacy.settings import Privacy
from .runs.callbacks import Callback, Stop
from .runs.export import Model, load_model
from .runs.pooled.baseline import Pooled
from .runs.run import Run

__version__ = "0.1.0.dev0"

__all__ = [
    "SGD",
    "TDCD",
    "VAFL",
    "Adam",
    "AdamW",
    "Alone",
    "Callback",
    "Central",
    "Constant",
    "Cosine",
    "DelayBound",
    "Drawn",
    "FedAvg",
    "FedBCD",
    "FedProx",
    "HubAdam",
    "HyFEMAvg",
    "HyFEMProx",
    "InverseSqrt",
    "InverseTime",
    "Model",
    "Network",
    "Partition",
    "Placement",
    "Pooled",
    "Privacy",
    "Relaxed",
    "Run",
    "Shard",
    "SplitNN",
    "SplitNNAsync",
    "SplitNNU",
    "StepDecay",
    "Stop",
    "Stopping",
    "TDCDPrivateLabels",
    "Task",
    "cnn",
    "errors",
    "linear",
    "load_dataset",
    "load_model",
    "lstm",
    "mlp",
    "partition",
    "read_tables",
    "resnet18",
]

del _datasets


def __dir__() -> list[str]:
    return __all__
