"""FedLoom: federated learning on data that is cut both ways.

Vertically across silos (organisations with different features of the same people), horizontally
across the clients inside each silo. See README.md and ARCHITECTURE.md.
"""

from . import errors
from .algorithms import TDCD, Alone, Central, Cosine, InverseSqrt, StepDecay, TDCDPrivateLabels
from .data.partition import partition
from .data.placement import Placement, Shard
from .federation.schedule import Drawn, Everyone, Moment, Recorded, Scripted
from .models.library import cnn, linear, lstm, mlp, resnet18
from .models.task import Task
from .run import Run, Snapshot

__version__ = "0.1.0.dev0"

__all__ = [
    "TDCD",
    "Alone",
    "Central",
    "Cosine",
    "Drawn",
    "Everyone",
    "InverseSqrt",
    "Moment",
    "Placement",
    "Recorded",
    "Run",
    "Scripted",
    "Shard",
    "Snapshot",
    "StepDecay",
    "TDCDPrivateLabels",
    "Task",
    "cnn",
    "errors",
    "linear",
    "lstm",
    "mlp",
    "partition",
    "resnet18",
]
