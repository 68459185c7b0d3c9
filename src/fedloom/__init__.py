"""FedLoom: federated learning on data that is cut both ways.

Vertically across silos (organisations with different features of the same people), horizontally
across the clients inside each silo. See README.md and ARCHITECTURE.md.
"""

from . import errors
from .algorithms import TDCD, Alone, Central, Cosine, InverseSqrt, StepDecay, TDCDPrivateLabels
from .data import sets as _sets  # registers the data sets
from .data.catalog import load as load_dataset
from .data.cut import Partition
from .data.partition import partition
from .data.placement import Placement, Shard
from .data.tables import read_tables
from .federation.clock import Network
from .federation.schedule import Drawn
from .model import Model, load_model
from .models.library import cnn, linear, lstm, mlp, resnet18
from .models.task import Task
from .run import Run

__version__ = "0.1.0.dev0"

__all__ = [
    "TDCD",
    "Alone",
    "Central",
    "Cosine",
    "Drawn",
    "InverseSqrt",
    "Model",
    "Network",
    "Partition",
    "Placement",
    "Run",
    "Shard",
    "StepDecay",
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

del _sets
