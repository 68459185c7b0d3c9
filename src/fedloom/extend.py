"""What a package that adds to FedLoom imports: registries, decorators, contracts.

Import from here, not from the packages below: these names change only with a note in the changelog.
What users type (`TDCD`, `Task`, `Run`, `errors`) is in `fedloom`, tests for an algorithm are in
`fedloom.testing`.

Registries: `algorithms`, `models`, `losses`, `datasets`, `metrics`, `vertical_partitioners`,
`horizontal_partitioners`, `writers`, `transports`, `executors`. Each has `register(name)`, a
decorator; an installed package declares an entry point in the group of the same name
(`fedloom.algorithms`, ...) instead, or as well. Data sets and metrics have decorators of their own,
`dataset` and `metric`.

An algorithm is a subclass of `Algorithm`, or of `MinibatchSGD` or a finished one. Its `round` is
written over the verbs of a `Fabric`; `cost` and `cases` are registered beside it. Local work is
given plain values: a `Batch`, `Rows`, a `Part` of the task, a `Theta`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .algorithms import (
    Algorithm,
    Cases,
    Draw,
    Facts,
    MinibatchSGD,
    State,
    Step,
    Twin,
    cases,
    cost,
    total,
)
from .core import tree
from .core.extras import need
from .core.gradients import by_row, grad, whole
from .core.placed import AtClients, AtHubs, Batch, Known, RowMap, Rows
from .core.registry import (
    Registry,
    algorithms,
    datasets,
    executors,
    horizontal_partitioners,
    losses,
    metrics,
    models,
    transports,
    vertical_partitioners,
    writers,
)
from .core.settings import Count, NotNegative, Positive, Share, above, at_least, between
from .core.topology import Client, Party
from .data.catalog import Files, dataset
from .data.dataset import Dataset
from .data.partition.vertical import Region
from .engines.execute.executor import Executor, Options, Work
from .fabric.kinds import Kind
from .fabric.local_work import by_rows, in_shares
from .fabric.verbs import Fabric
from .models.losses import Loss
from .models.task import Part, Theta
from .records.metrics import Scored, metric
from .records.record import Record
from .records.writers import Writer

if TYPE_CHECKING:
    from .transports.carrier.carried import CarriedTransport, Carrier
    from .transports.links.party import Links, PartyTransport, TransportOptions

_OF_TRANSPORTS = {  # they need the extra `network`, which not everybody has
    "CarriedTransport": "transports.carrier.carried",
    "Carrier": "transports.carrier.carried",
    "Links": "transports.links.party",
    "PartyTransport": "transports.links.party",
    "TransportOptions": "transports.links.party",
}

__all__ = [
    "Algorithm",
    "AtClients",
    "AtHubs",
    "Batch",
    "CarriedTransport",
    "Carrier",
    "Cases",
    "Client",
    "Count",
    "Dataset",
    "Draw",
    "Executor",
    "Fabric",
    "Facts",
    "Files",
    "Kind",
    "Known",
    "Links",
    "Loss",
    "MinibatchSGD",
    "NotNegative",
    "Options",
    "Part",
    "Party",
    "PartyTransport",
    "Positive",
    "Record",
    "Region",
    "Registry",
    "RowMap",
    "Rows",
    "Scored",
    "Share",
    "State",
    "Step",
    "Theta",
    "TransportOptions",
    "Twin",
    "Work",
    "Writer",
    "above",
    "algorithms",
    "at_least",
    "between",
    "by_row",
    "by_rows",
    "cases",
    "cost",
    "dataset",
    "datasets",
    "executors",
    "grad",
    "horizontal_partitioners",
    "in_shares",
    "losses",
    "metric",
    "metrics",
    "models",
    "total",
    "transports",
    "tree",
    "vertical_partitioners",
    "whole",
    "writers",
]


def __getattr__(name: str) -> Any:
    if name not in _OF_TRANSPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need("network", f"fedloom.extend.{name}")
    return getattr(import_module(f".{_OF_TRANSPORTS[name]}", "fedloom"), name)


def __dir__() -> list[str]:
    return __all__
